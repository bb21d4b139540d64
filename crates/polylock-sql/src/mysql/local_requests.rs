//! The requests of this process: those that may have an entry in the tables, and the recently released ones.
//!
//! The release of a request of this process notifies its waiters, so the poller looks up the requests of other processes only.
//!
//! A claim receives from the server the request that is ahead. Before the claim has registered it in the
//! [`Wakeups`](polylock_core::wakeups::Wakeups), a release of the same process may already have notified:
//! 1. The server replies to a claim: A is ahead.
//! 2. A is released, which notifies the waiters behind A: there are none yet.
//! 3. The claim registers itself behind A, and would wait for the poller.
//!
//! So a release records its request here *before* it notifies, and a claim checks here *after* it has registered: at least one of
//! the two sees the other.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use polylock_core::{Clock, Request, RequestId, SystemClock, requests::RequestTable, sync::lock};

/// The number of recorded releases: more than can happen while the reply to one claim is on its way. The poller still finds
/// releases that were dropped from the record.
const MAX_RELEASED: usize = 1024;

/// The requests of this process.
#[derive(Debug, Default)]
pub(super) struct LocalRequests(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The requests, each kept until its entry has certainly expired.
    claimed: RequestTable<()>,
    /// The recently released requests, oldest first.
    order: VecDeque<RequestId>,
    released: HashSet<RequestId>,
}

impl LocalRequests {
    /// Records that a claim of `request` is about to be sent, or was granted.
    pub(super) fn claim(&self, request: &Request) {
        self.claim_for(request.id, request.ttl.max(request.queue_lease()));
    }

    fn claim_for(&self, request: RequestId, time: Duration) {
        let now = SystemClock.now();
        self.lock().claimed.update(request, now, now + time, || ());
    }

    /// Records that a keep-alive has extended the entry of `request`.
    pub(super) fn extend(&self, request: &Request) {
        let until = SystemClock.now() + request.ttl.max(request.queue_lease());
        self.lock().claimed.extend(&request.id, until);
    }

    /// Returns true if `request` belongs to this process, which notifies its waiters when it is released.
    pub(super) fn is_claimed(&self, request: RequestId) -> bool {
        let now = SystemClock.now();
        self.lock().claimed.until(&request).is_some_and(|until| until > now)
    }

    /// Returns the number of requests that may have an entry.
    pub(super) fn len(&self) -> usize {
        self.lock().claimed.len()
    }

    /// Removes `request`: it may have an entry, but this process will not see its end.
    pub(super) fn forget(&self, request: RequestId) {
        self.lock().claimed.remove(&request);
    }

    /// Records that `request` was released. The caller notifies its waiters afterwards.
    pub(super) fn release(&self, request: RequestId) {
        let mut state = self.lock();
        state.claimed.remove(&request);
        if !state.released.insert(request) {
            return;
        }
        state.order.push_back(request);
        if state.order.len() > MAX_RELEASED
            && let Some(oldest) = state.order.pop_front()
        {
            state.released.remove(&oldest);
        }
    }

    /// Returns true if `request` was released recently.
    pub(super) fn was_released(&self, request: RequestId) -> bool {
        self.lock().released.contains(&request)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn recent_releases_are_recorded_in_bounded_memory() {
        let requests = LocalRequests::default();
        let (first, last) = (RequestId::from_bytes([1; 16]), RequestId::from_bytes([2; 16]));
        requests.claim_for(first, MINUTE);
        assert!(requests.is_claimed(first) && !requests.was_released(first));
        requests.release(first);
        requests.release(first);
        assert!(!requests.is_claimed(first) && requests.was_released(first) && !requests.was_released(last));
        for _ in 1..MAX_RELEASED {
            requests.release(RequestId::random());
        }
        assert!(requests.was_released(first));
        requests.release(last);
        assert!(!requests.was_released(first) && requests.was_released(last));
        requests.claim_for(last, MINUTE);
        requests.forget(last);
        let state = requests.lock();
        assert_eq!(
            (state.order.len(), state.released.len(), state.claimed.len()),
            (MAX_RELEASED, MAX_RELEASED, 0)
        );
    }

    #[test]
    fn expired_requests_are_removed() {
        let requests = LocalRequests::default();
        let (left, live) = (RequestId::random(), RequestId::random());
        requests.claim_for(left, Duration::ZERO);
        requests.claim_for(live, MINUTE);
        assert!(!requests.is_claimed(left) && requests.is_claimed(live));
        for _ in 0..1000 {
            requests.claim_for(RequestId::random(), Duration::ZERO);
        }
        assert!(requests.lock().claimed.len() < 100 && requests.is_claimed(live));
    }
}
