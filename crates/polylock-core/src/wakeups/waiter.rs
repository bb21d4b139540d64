//! The handle by which a claim records its outcome.

use std::sync::Mutex;

use super::state::State;
use crate::{RequestId, sync::lock};

/// The handle by which a claim records its outcome in the registry. Dropping it means that the outcome is unknown: the request stays
/// registered until [`Wakeups::remove`](super::Wakeups::remove).
#[derive(Debug)]
#[must_use = "the registry needs the outcome of the claim"]
pub struct Waiter<'a> {
    pub(super) state: &'a Mutex<State>,
    pub(super) request: RequestId,
    /// 0 if the request does not queue.
    pub(super) ticket: u64,
    pub(super) has_position: bool,
}

impl Waiter<'_> {
    /// Returns the number by which the store identifies the waiter to [`Wakeups::deliver`](super::Wakeups::deliver); 0 if the request
    /// does not queue. All claims of one registration have the same number.
    #[must_use]
    pub const fn ticket(&self) -> u64 {
        self.ticket
    }

    /// Returns true if an earlier claim of the request returned a queue position, by which this one can look up its entry.
    #[must_use]
    pub const fn has_position(&self) -> bool {
        self.has_position
    }

    /// Returns the queue position that the last claim returned.
    #[must_use]
    pub fn position(&self) -> Option<u64> {
        lock(self.state).waiters.get(&self.request)?.position
    }

    /// Records the queue position that the claim returned, a number that no later position has.
    pub fn queued_at(&self, position: u64) {
        self.update(|state| {
            if let Some(waiter) = state.waiters.get_mut(&self.request) {
                waiter.position = Some(position);
            }
        });
    }

    /// Records that the request waits until `ahead` has left; replaces the request that it waited for before. Must be called in the
    /// critical section in which the claim has read the queue, so that no release comes in between.
    pub fn queued_behind(&self, ahead: RequestId) {
        self.update(|state| state.watch(self.request, ahead));
    }

    /// Ends the registration: the claim was granted.
    pub fn granted(self) {
        self.update(|state| state.remove(self.request));
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        if self.ticket != 0 {
            change(&mut lock(self.state));
        }
    }
}
