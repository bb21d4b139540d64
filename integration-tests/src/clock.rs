//! Moments that all processes of a machine share, and waits that end.

use std::{thread, time::Duration};

use polylock_core::{Clock, Moment, SystemClock};

/// How long anything may take that normally happens at once: beyond it, it hangs.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The present, by the clock that goes on while the machine sleeps: the same for all processes.
#[must_use]
pub fn now() -> Moment {
    SystemClock.now()
}

/// Ready after `time`. For a pause that is part of the work or of the fault, never to make sure of something.
pub async fn pause(time: Duration) {
    SystemClock.sleep_until(now() + time).await;
}

/// Blocks until `happened`, at most for `limit`; whether it did.
pub fn within(limit: Duration, mut happened: impl FnMut() -> bool) -> bool {
    let until = now() + limit;
    loop {
        if happened() {
            return true;
        }
        if now() >= until {
            return false;
        }
        thread::park_timeout(Duration::from_millis(1));
    }
}

/// Waits until `happened`, at most for [`PATIENCE`].
///
/// # Panics
/// If it does not happen.
pub async fn until<F: Future<Output = bool>>(what: &str, mut happened: impl FnMut() -> F) {
    let limit = now() + PATIENCE;
    while !happened().await {
        assert!(now() < limit, "{what}: not within {PATIENCE:?}");
        pause(Duration::from_millis(1)).await;
    }
}

/// The number of today, by the machine's calendar.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "a day of the calendar, which decides nothing about locks")]
pub fn day() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    since.as_secs() / (24 * 3600)
}
