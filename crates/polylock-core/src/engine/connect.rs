//! Opens a store that may be unavailable for the moment, with retries within a time limit.

use std::{future::Future, time::Duration};

use super::{acquisition::FIRST_REPLY, backoff::Backoff};
use crate::{
    Clock, Error, Fault, Moment, Operation, Progress, Result, Store, SystemClock, Unavailable, duration, io,
};

/// The longest pause before the next attempt, before the jitter.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The time that the first attempt may take, even if the limit is shorter: to open a store takes several round trips, and a limit of 5 ms says
/// only that the caller does not want to wait for a server that fails.
const FIRST_ATTEMPT: Duration = Duration::from_secs(2);

/// Opens a store with `open`, and retries a temporary failure until `limit` has expired. With [`Duration::ZERO`], `open` is called
/// once. An attempt that is not answered ends with the limit, too. `backend` is the name of the store.
///
/// # Errors
/// The error of the last attempt.
///
/// # Cancel safety
/// The same as `open`.
pub async fn connect_within<F>(
    backend: &'static str,
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
    let mut last = None;
    loop {
        let shortest = if last.is_none() { FIRST_ATTEMPT } else { FIRST_REPLY };
        let stop = if limit.is_zero() { Moment::NEVER } else { until.max(SystemClock.now() + shortest) };
        let opened = tokio::select! {
            biased;
            opened = open() => opened,
            () = at(stop, backend) => {
                return Err(last.unwrap_or_else(|| unanswered(backend, SystemClock.now().since(began))));
            }
        };
        let error = match opened {
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
        let backend = unavailable.backend;
        last = Some(error);
        // The runtime of the caller may have no timers.
        io::run(backend, SystemClock.sleep_until(again)).await?;
    }
}

/// Completes at this time; never without a thread for it.
async fn at(time: Moment, backend: &'static str) {
    if time == Moment::NEVER || io::run(backend, SystemClock.sleep_until(time)).await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn unanswered(backend: &'static str, waited: Duration) -> Error {
    let waited = duration::format(Duration::from_millis(waited.as_millis().try_into().unwrap_or(u64::MAX)));
    let cause = format!(
        "no reply within {waited}: check the host and the port, and that a server of this kind listens there"
    );
    Unavailable::new(backend, Operation::Connect, Fault::Temporary, cause).into()
}
