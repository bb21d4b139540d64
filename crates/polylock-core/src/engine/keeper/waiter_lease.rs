//! The queue entry of a waiting request, and the time from which the lease of its grant counts.

use std::sync::{Mutex, MutexGuard};

use tokio::sync::Notify;

use crate::{KeepAlive, Moment, sync::lock};

/// The queue entry of a request, as reported by its keep-alives.
#[derive(Debug, Default)]
pub(crate) struct WaiterLease {
    /// The time at which the last keep-alive was sent that found the request in the queue.
    queued_at: Mutex<Option<Moment>>,
    left: Notify,
}

impl WaiterLease {
    /// Completes when a keep-alive has not found the request in the queue: the request holds the lock and has missed the
    /// notification, or has no entry any more. The next claim shows which of the two applies.
    pub(crate) async fn left_queue(&self) {
        self.left.notified().await;
    }

    /// Returns the time from which the lease of a grant counts, if its notification arrives now, after a claim that was sent at
    /// `claimed` and returned a queue position. The store has granted the lock after it received the claim, and after it received
    /// every keep-alive that found the request in the queue.
    pub(crate) fn granted_after(&self, claimed: Moment) -> Moment {
        self.queued_at().map_or(claimed, |queued_at| queued_at.max(claimed))
    }

    /// Records the outcome of a keep-alive that was sent at `sent`.
    pub(super) fn apply(&self, sent: Moment, outcome: &KeepAlive) {
        if *outcome == KeepAlive::Queued {
            let mut queued_at = self.queued_at();
            *queued_at = queued_at.max(Some(sent));
        } else {
            self.left.notify_one();
        }
    }

    fn queued_at(&self) -> MutexGuard<'_, Option<Moment>> {
        lock(&self.queued_at)
    }
}
