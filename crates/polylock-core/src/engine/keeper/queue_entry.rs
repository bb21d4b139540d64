//! The entry of a waiting request, and the time from which the lease of its grant counts.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::{KeepAlive, Moment};

/// The entry of a request in the queue, as its keep-alives have found it.
#[derive(Debug, Default)]
pub(crate) struct QueueEntry {
    /// When the last keep-alive was sent that found the request in the queue.
    queued_at: Mutex<Option<Moment>>,
    left: Notify,
}

impl QueueEntry {
    /// Ready when a keep-alive has not found the request in the queue: it holds the lock and has missed the notification, or has no
    /// entry any more. The next claim finds out which.
    pub(crate) async fn left(&self) {
        self.left.notified().await;
    }

    /// The time from which the lease of a grant counts whose notification has arrived now, after a claim that was sent at `claimed`
    /// and returned a queue position. The store has granted the lock after it received the claim, and after it received every
    /// keep-alive that found the request in the queue.
    pub(crate) fn granted_after(&self, claimed: Moment) -> Moment {
        self.queued_at().map_or(claimed, |queued_at| queued_at.max(claimed))
    }

    /// Notes the outcome of a keep-alive that was sent at `sent`.
    pub(super) fn apply(&self, sent: Moment, outcome: &KeepAlive) {
        if *outcome == KeepAlive::Queued {
            let mut queued_at = self.queued_at();
            *queued_at = queued_at.max(Some(sent));
        } else {
            self.left.notify_one();
        }
    }

    fn queued_at(&self) -> MutexGuard<'_, Option<Moment>> {
        self.queued_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
