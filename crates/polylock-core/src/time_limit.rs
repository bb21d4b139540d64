//! The time limit of a store operation: after it, no message of the operation may have an effect.
//!
//! A release, a park or a break can be given up by its caller while a message is under way, and another process may extend the hold since.
//! So each message names an expiry by the server's clock, which must not be later than the time at which its caller gives it up. Only the
//! caller knows that time: core retries an operation until the end of a lease, and the lock service has the time limit of its client. It is in
//! the context of the operation's task, so it passes through every wrapper of a store without a parameter. A store that starts another task for
//! a message reads it before.
//!
//! ```
//! # use std::time::Duration;
//! # use polylock_core::{Clock, SystemClock, time_limit};
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let timeout = Duration::from_secs(3);
//! assert_eq!(time_limit::within(timeout), timeout);
//! let by = SystemClock.now() + Duration::from_secs(1);
//! let left = time_limit::until(by, async { time_limit::within(timeout) }).await;
//! assert!(left <= Duration::from_secs(1));
//! # });
//! ```
//!
//! A caller may also give an operation up before its limit, and release the request through another process. That process knows nothing of
//! the messages under way, so two rules meet at [`LONGEST`]: a claim of a request that other processes know counts for no longer after it is sent, and
//! the release of such a request refuses claims for at least as long.

use std::{future::Future, time::Duration};

use crate::{
    Fault, Operation, Result, Unavailable,
    clock::{Clock, Moment, SystemClock},
};

/// The longest time for which a message of a request that [other processes know](crate::Request::outlives_process) counts after its caller has sent it,
/// and the shortest time for which the release of such a request refuses claims.
pub const LONGEST: Duration = Duration::from_secs(5);

tokio::task_local! {
    static LIMIT: Moment;
}

/// Returns `operation` with a time limit by the [`SystemClock`]. It does not end then: its messages must have no effect any more. An earlier limit
/// around it stays.
pub fn until<F: Future>(by: Moment, operation: F) -> impl Future<Output = F::Output> {
    let by = LIMIT.try_with(|outer| by.min(*outer)).unwrap_or(by);
    LIMIT.scope(by, operation)
}

/// Returns `timeout`, or the time until the limit of the current operation if that is shorter.
#[must_use]
pub fn within(timeout: Duration) -> Duration {
    LIMIT.try_with(|by| by.since(SystemClock.now()).min(timeout)).unwrap_or(timeout)
}

/// Checks that the limit of the current operation has not passed, for a store whose operations have their effect at once.
///
/// # Errors
/// A temporary error if it has: the caller has given the operation up.
pub fn check(backend: &'static str, operation: Operation) -> Result<()> {
    if within(Duration::MAX).is_zero() {
        return Err(
            Unavailable::new(backend, operation, Fault::Temporary, "its caller has given it up").into()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[tokio::test]
    async fn the_earlier_of_two_limits_counts() {
        let now = SystemClock.now();
        let second = Duration::from_secs(1);
        let inner = |by| async move { until(by, async { within(10 * second) }).await };
        let left = until(now + second, inner(now + 5 * second)).await;
        assert!(left <= second && left > Duration::ZERO, "{left:?}");
        let left = until(now + 5 * second, inner(now + second)).await;
        assert!(left <= second && left > Duration::ZERO, "{left:?}");
        assert_eq!(until(now, async { within(second) }).await, Duration::ZERO);
        assert_eq!(within(second), second);
    }
}
