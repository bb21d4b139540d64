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
    last: Mutex<Option<(Moment, bool)>>,
}

impl Readiness {
    /// Returns true if the store replies.
    pub(crate) async fn of(&self, locks: &Locks) -> bool {
        // The others wait for the same reply.
        let mut last = self.last.lock().await;
        let now = SystemClock.now();
        if let Some((at, found)) = &*last
            && now < *at + KEPT
        {
            return *found;
        }
        let problem = match SystemClock.before(now + READY, locks.inspect("polylock")).await {
            Some(Ok(_) | Err(Error::Unsupported { .. })) => None,
            Some(Err(error)) => Problem::from(&error).detail.or_else(|| Some(error.to_string())),
            None => Some("no reply within 2 s".to_owned()),
        };
        // Once for each outage, however many ask.
        let was_ready = last.as_ref().is_none_or(|(_, ready)| *ready);
        if let Some(problem) = problem.as_ref().filter(|_| was_ready) {
            tracing::warn!("the store is not ready: {problem}");
        }
        let found = problem.is_none();
        *last = Some((SystemClock.now(), found));
        found
    }
}
