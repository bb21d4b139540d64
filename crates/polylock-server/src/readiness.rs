//! The last reply of the store, which counts for a moment.

use std::time::Duration;

use polylock_core::{Clock, Error, Locks, Moment, SystemClock};
use polylock_protocol::Problem;
use tokio::sync::Mutex;

/// The time within which a store must reply.
const READY: Duration = Duration::from_secs(2);
/// The time for which a reply of the store counts. Anybody may ask, so the store has as few requests by ten thousand as by one.
const KEPT: Duration = Duration::from_secs(1);

/// The last reply of the store.
#[derive(Debug, Default)]
pub(crate) struct Readiness {
    last: Mutex<Option<(Moment, Result<(), Problem>)>>,
}

impl Readiness {
    /// Returns the problem of the store, if it has one.
    pub(crate) async fn of(&self, locks: &Locks) -> Result<(), Problem> {
        // The others wait for the same reply.
        let mut last = self.last.lock().await;
        let now = SystemClock.now();
        if let Some((at, found)) = &*last
            && now < *at + KEPT
        {
            return found.clone();
        }
        let found = match SystemClock.before(now + READY, locks.inspect("polylock")).await {
            Some(Ok(_) | Err(Error::Unsupported { .. })) => Ok(()),
            Some(Err(error)) => Err((&error).into()),
            None => Err(Problem::new("unavailable", "the store does not reply", 503, "no reply within 2 s")),
        };
        *last = Some((SystemClock.now(), found.clone()));
        found
    }
}
