//! A clock that all processes of a machine share, and waits with a timeout.

use std::{
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use polylock_core::{Clock, Moment, SystemClock};

/// The timeout of operations that normally complete at once: a longer one counts as hung.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the current time of the clock that continues while the machine is suspended. It is the same for all processes.
#[must_use]
pub fn now() -> Moment {
    SystemClock.now()
}

/// Waits for `time`. For pauses that are part of the work or of a fault; a test waits for a condition instead.
pub async fn pause(time: Duration) {
    SystemClock.sleep_until(now() + time).await;
}

/// Blocks until `condition` is true, and returns true; returns false after `limit`.
pub fn within(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let until = now() + limit;
    loop {
        if condition() {
            return true;
        }
        if now() >= until {
            return false;
        }
        thread::park_timeout(Duration::from_millis(1));
    }
}

/// Waits until `condition` is true.
///
/// # Panics
/// If it is still false after [`TIMEOUT`].
pub async fn until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let limit = now() + TIMEOUT;
    while !condition().await {
        assert!(now() < limit, "{what}: not within {TIMEOUT:?}");
        pause(Duration::from_millis(1)).await;
    }
}

/// Returns the time of day, for what people read; it does not affect locks.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "a calendar day, which does not affect locks")]
pub fn time_of_day() -> SystemTime {
    SystemTime::now()
}

/// Returns the number of days since the Unix epoch.
#[must_use]
pub fn day() -> u64 {
    time_of_day().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / (24 * 3600)
}
