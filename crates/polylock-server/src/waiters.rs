//! The clients that wait at this server.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use polylock_core::{Moment, Request, RequestId, sync::lock};

/// The time beyond the lease of a queue entry after which its client has gone, or waits at another server.
const SLACK: Duration = Duration::from_secs(1);

/// The requests that wait in the store, for clients of this server.
///
/// The store keeps a waiter in this process until its release. A client that has died, or that continues on another server, releases
/// nothing here, so its waiter is dropped when the client has neither claimed nor extended it for the lease of a queue entry.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Mutex<HashMap<RequestId, (Request, Moment)>>);

impl Waiters {
    /// Records that `request` waits.
    pub(crate) fn insert(&self, request: &Request, now: Moment) {
        self.lock().insert(request.id, (request.clone(), now + request.queue_lease() + SLACK));
    }

    /// Records that `request` is extended, if it waits here.
    pub(crate) fn extend(&self, request: &Request, now: Moment) {
        if let Some((_, until)) = self.lock().get_mut(&request.id) {
            *until = now + request.queue_lease() + SLACK;
        }
    }

    /// Records that `request` does not wait any more.
    pub(crate) fn remove(&self, request: &Request) {
        self.lock().remove(&request.id);
    }

    /// Removes and returns the requests without a client.
    pub(crate) fn take_expired(&self, now: Moment) -> Vec<Request> {
        let mut waiters = self.lock();
        waiters.extract_if(|_, (_, until)| *until < now).map(|(_, (request, _))| request).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, (Request, Moment)>> {
        lock(&self.0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use polylock_core::{LockName, Mode};

    use super::*;

    #[test]
    fn a_waiter_without_a_client_is_dropped() {
        let (waiters, at) = (Waiters::default(), |s| Moment::default() + Duration::from_secs(s));
        let request = || Request::new(LockName::new("n").unwrap(), Mode::Exclusive, Duration::from_secs(30));
        let [gone, extended, granted] = [request(), request(), request()];
        for request in [&gone, &extended, &granted] {
            waiters.insert(request, at(0));
        }
        waiters.extend(&extended, at(4));
        waiters.remove(&granted);
        waiters.extend(&granted, at(4));
        assert!(waiters.take_expired(at(6)).is_empty());
        let expired: Vec<_> = waiters.take_expired(at(7)).iter().map(|request| request.id).collect();
        assert_eq!(expired, [gone.id]);
        let expired: Vec<_> = waiters.take_expired(at(11)).iter().map(|request| request.id).collect();
        assert_eq!(expired, [extended.id]);
    }
}
