//! The requests of this process that wait for a notification, by lock.
//!
//! Of the waiters of a lock in one process, core lets only the first one claim, so there is hardly ever more than one here.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use polylock_core::{LockName, Request, RequestId};
use tokio::sync::Notify;

/// The waiting requests of all locks.
#[derive(Debug, Default)]
pub(super) struct Waiters(Mutex<Locks>);

/// In order of arrival.
type Locks = HashMap<LockName, Vec<Waiter>>;

#[derive(Debug)]
struct Waiter {
    request: RequestId,
    notify: Arc<Notify>,
}

impl Waiters {
    /// Adds `request`, unless it is there. Notifications are kept for it from now on.
    pub(super) fn enter(&self, request: &Request) {
        let mut locks = self.lock();
        let waiting = locks.entry(request.name.clone()).or_default();
        if waiting.iter().all(|waiter| waiter.request != request.id) {
            waiting.push(Waiter { request: request.id, notify: Arc::default() });
        }
    }

    /// Removes `request`.
    pub(super) fn leave(&self, request: &Request) {
        let mut locks = self.lock();
        if let Some(waiting) = locks.get_mut(&request.name) {
            waiting.retain(|waiter| waiter.request != request.id);
            if waiting.is_empty() {
                locks.remove(&request.name);
            }
        }
    }

    /// Waits for a notification; ready at once if there was one since [`enter`](Self::enter), or `request` is not there.
    ///
    /// # Cancel safety
    /// Yes: a notification that has come is kept for the next call.
    pub(super) async fn notified(&self, request: &Request) {
        let notify = self.lock().get(&request.name).and_then(|waiting| {
            waiting.iter().find(|waiter| waiter.request == request.id).map(|waiter| waiter.notify.clone())
        });
        if let Some(notify) = notify {
            notify.notified().await;
        }
    }

    /// The lock may be free: notifies its first waiter.
    pub(super) fn notify(&self, name: &LockName) {
        if let Some(first) = self.lock().get(name).and_then(|waiting| waiting.first()) {
            first.notify.notify_one();
        }
    }

    /// Any lock may be free: notifies all waiters.
    pub(super) fn notify_all(&self) {
        for waiter in self.lock().values().flatten() {
            waiter.notify.notify_one();
        }
    }

    /// Whether a request waits for the lock.
    pub(super) fn waits(&self, name: &LockName) -> bool {
        self.lock().contains_key(name)
    }

    fn lock(&self) -> MutexGuard<'_, Locks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use polylock_core::Mode;
    use std::time::Duration;

    #[test]
    fn the_first_waiter_of_the_lock_is_notified_and_nothing_stays_behind() {
        let waiters = Waiters::default();
        let request =
            |name| Request::new(LockName::new(name).unwrap(), Mode::Exclusive, Duration::from_secs(1));
        let notified = |request| waiters.notified(request).now_or_never().is_some();
        let (a, b, other) = (request("n"), request("n"), request("m"));
        for request in [&a, &b, &other, &a] {
            waiters.enter(request);
        }
        waiters.notify(&a.name);
        assert_eq!([&a, &a, &b, &other].map(notified), [true, false, false, false]);
        waiters.leave(&a);
        waiters.notify(&a.name);
        assert_eq!([&b, &other].map(notified), [true, false]);
        waiters.notify_all();
        assert_eq!([&b, &other].map(notified), [true, true]);
        assert!(waiters.waits(&b.name));
        waiters.leave(&b);
        waiters.leave(&other);
        assert!(!waiters.waits(&b.name) && waiters.lock().is_empty());
        assert!(notified(&b), "it is not there: claim again");
    }
}
