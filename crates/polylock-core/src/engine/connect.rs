//! Opens a store that may be unavailable for the moment, with retries within a time limit.

use std::{future::Future, time::Duration};

use super::backoff::Backoff;
use crate::{Clock, Error, Progress, Result, Store, SystemClock, io};

/// The longest pause before the next attempt, before the jitter.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Opens a store with `open`, and retries a temporary failure until `limit` has expired. With [`Duration::ZERO`], `open` is called
/// once.
///
/// # Errors
/// The error of the last attempt.
///
/// # Cancel safety
/// The same as `open`.
pub async fn connect_within<F>(
    limit: Duration,
    progress: &Progress,
    mut open: impl FnMut() -> F,
) -> Result<Store>
where
    F: Future<Output = Result<Store>>,
{
    let began = SystemClock.now();
    let until = began + limit;
    let mut backoff = Backoff::up_to(LONGEST_PAUSE);
    loop {
        let error = match open().await {
            Ok(store) => {
                progress.available();
                return Ok(store);
            }
            Err(error) => error,
        };
        let now = SystemClock.now();
        let Error::Unavailable(unavailable) = &error else { return Err(error) };
        if !error.is_temporary() || now >= until {
            return Err(error);
        }
        let again = (now + error.retry_after().unwrap_or_else(|| backoff.next())).min(until);
        tracing::debug!(error = &error as &dyn std::error::Error, "store unavailable, connecting again");
        progress.failing(began, until, &error);
        // The runtime of the caller may have no timers.
        io::run(unavailable.backend, SystemClock.sleep_until(again)).await?;
    }
}
