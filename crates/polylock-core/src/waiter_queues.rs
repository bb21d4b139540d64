//! The waiters of one process for a store without a queue, by lock and in order of arrival, and their wake-ups. A store with a queue
//! has [`wakeups`](crate::wakeups) instead.
//!
//! Of the waiters of a lock in one process, core lets only the first one claim ([`Order::Unordered`](crate::Order)), so there is
//! hardly ever more than one here.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::sync::Notify;

use crate::{LockName, Request, RequestId, Wake, sync::lock};

/// One FIFO queue for each lock with waiters.
///
/// A store's claim calls [`join`](Self::join) and sends a request only if no waiter is ahead. Its wait calls [`notified`](Self::notified).
/// A claim that was granted and a release call [`leave`](Self::leave), which wakes the next waiter.
#[derive(Debug, Default)]
pub struct WaiterQueues {
    queues: Mutex<BTreeMap<LockName, VecDeque<Waiter>>>,
}

#[derive(Debug)]
struct Waiter {
    request: RequestId,
    /// `Some` from the first notification or the first wait.
    notify: Option<Arc<Notify>>,
}

impl Waiter {
    fn notify(&mut self) {
        self.notify.get_or_insert_default().notify_one();
    }
}

impl WaiterQueues {
    /// Returns the number of waiters ahead of `request`, which is appended if it is not queued. From now on notifications for it
    /// are kept.
    pub fn join(&self, request: &Request) -> usize {
        let mut queues = self.lock();
        let queue = queues.entry(request.name.clone()).or_default();
        queue.iter().position(|waiter| waiter.request == request.id).unwrap_or_else(|| {
            queue.push_back(Waiter { request: request.id, notify: None });
            queue.len() - 1
        })
    }

    /// Removes `request`, which holds the lock or has given up, and wakes the new head of the queue, if that changes. Returns true
    /// if the request was queued.
    pub fn leave(&self, request: &Request) -> bool {
        let mut queues = self.lock();
        let Some(queue) = queues.get_mut(&request.name) else { return false };
        let Some(position) = queue.iter().position(|waiter| waiter.request == request.id) else {
            return false;
        };
        queue.remove(position);
        match queue.front_mut() {
            Some(next) if position == 0 => next.notify(),
            Some(_) => {}
            None => drop(queues.remove(&request.name)),
        }
        true
    }

    /// Waits for a notification for `request`. Returns at once if one has arrived since the request joined, or if it is not queued.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: a notification that has arrived is kept for the next call.
    pub async fn notified(&self, request: &Request) -> Wake {
        let notify = self.lock().get_mut(&request.name).and_then(|queue| {
            let waiter = queue.iter_mut().find(|waiter| waiter.request == request.id)?;
            Some(waiter.notify.get_or_insert_default().clone())
        });
        if let Some(notify) = notify {
            notify.notified().await;
        }
        Wake::Stale
    }

    /// Wakes the head of the queue, because the lock may be free.
    pub fn wake(&self, name: &LockName) {
        if let Some(first) = self.lock().get_mut(name).and_then(VecDeque::front_mut) {
            first.notify();
        }
    }

    /// Wakes all waiters, because any lock may be free: for example after a loss of notifications.
    pub fn wake_all(&self) {
        self.lock().values_mut().flatten().for_each(Waiter::notify);
    }

    /// Returns true if the lock has waiters.
    #[must_use]
    pub fn waits(&self, name: &LockName) -> bool {
        self.lock().contains_key(name)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<LockName, VecDeque<Waiter>>> {
        lock(&self.queues)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mode;
    use futures_util::FutureExt;
    use std::time::Duration;

    #[test]
    fn only_the_next_waiter_is_woken_when_the_first_leaves() {
        let queue = WaiterQueues::default();
        let request = || Request::new(LockName::new("n").unwrap(), Mode::Exclusive, Duration::from_secs(1));
        let woken = |request| queue.notified(request).now_or_never().is_some();
        let (a, b, c) = (request(), request(), request());
        assert_eq!([&a, &b, &c, &b].map(|request| queue.join(request)), [0, 1, 2, 1]);
        assert!(queue.leave(&b));
        assert_eq!([&a, &c].map(woken), [false; 2], "it was not the first");
        assert_eq!((queue.leave(&a), queue.leave(&a)), (true, false));
        assert_eq!([&c, &c].map(woken), [true, false], "woken once");
        queue.wake(&a.name);
        assert!(woken(&c) && queue.waits(&a.name));
        assert!(queue.leave(&c));
        assert!(!queue.waits(&a.name) && queue.lock().is_empty());
    }
}
