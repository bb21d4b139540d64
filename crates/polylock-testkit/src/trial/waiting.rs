//! Waiting in cases: time limits, and the passage of time.

use std::{
    future::IntoFuture,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use polylock_core::{Clock, SystemClock};

/// The seconds of `POLYLOCK_TESTKIT_TIMEOUT`, 30 by default, in milliseconds.
static TIMEOUT_MILLIS: LazyLock<AtomicU64> = LazyLock::new(|| {
    let seconds = std::env::var("POLYLOCK_TESTKIT_TIMEOUT").map_or(30, |seconds| {
        let parsed = seconds.parse::<u64>();
        parsed.unwrap_or_else(|error| panic!("POLYLOCK_TESTKIT_TIMEOUT={seconds}: {error}"))
    });
    AtomicU64::new(seconds.saturating_mul(1000))
});

/// The timeout of operations that normally complete at once. It detects hangs; it does not measure performance.
pub(crate) fn timeout() -> Duration {
    Duration::from_millis(TIMEOUT_MILLIS.load(Ordering::Relaxed))
}

/// Sets the timeout for the whole process: for tests of the suite itself, in which cases fail on purpose.
#[doc(hidden)]
pub fn set_timeout(timeout: Duration) {
    TIMEOUT_MILLIS.store(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// The time limit of operations that must not wait for a lease to run out. A waiter's lease lasts 5 s, a holder's a minute.
pub(crate) const SOON: Duration = Duration::from_secs(4);

/// Awaits `future`, which must be ready within [`timeout`].
pub(crate) async fn soon<T>(what: &str, future: impl IntoFuture<Output = T>) -> T {
    within(timeout(), what, future).await
}

/// Awaits `future`, which must be ready within `limit`.
pub(crate) async fn within<T>(limit: Duration, what: &str, future: impl IntoFuture<Output = T>) -> T {
    tokio::time::timeout(limit, future).await.unwrap_or_else(|_| panic!("{what}: no result within {limit:?}"))
}

/// Polls `condition` until it holds, which must happen within [`timeout`].
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let limit = SystemClock.now() + timeout();
    while !condition() {
        assert!(SystemClock.now() < limit, "{what}: not within {:?}", timeout());
        pause().await;
    }
}

/// Waits for `time`, in cases that depend on elapsed time.
pub(crate) async fn pass(time: Duration) {
    SystemClock.sleep_until(SystemClock.now() + time).await;
}

/// Waits a moment, before a condition is looked at again.
pub(crate) async fn pause() {
    pass(Duration::from_millis(2)).await;
}
