//! The waiters of this process, by lock, in the order of the store's queue, or in order of arrival if the store has none.
//!
//! The first waiter of each lock acts for all: it alone checks from time to time that no notification was missed; and if the store
//! has no queue, it alone claims. So neither cost grows with the number of waiters.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::Notify;

use crate::{LockName, bug::Bug, process::has_bug, sync::lock};

/// The queues of all locks with waiters in this process.
#[derive(Debug, Default)]
pub(crate) struct LocalQueues {
    queues: Mutex<HashMap<LockName, Queue>>,
}

/// The number of a waiter's entry in the store, or zero; then its number in this process.
type Place = (u64, u64);

#[derive(Debug, Default)]
struct Queue {
    last: u64,
    waiters: BTreeMap<Place, Arc<Signal>>,
}

impl Queue {
    /// Adds a waiter. Of all waiters, the first one is promoted.
    fn insert(&mut self, place: Place, signal: Arc<Signal>) {
        if let Some(next) = self.waiters.range(place..).next().map(|(_, next)| next) {
            next.demote();
        }
        signal.demote();
        self.waiters.insert(place, signal);
        self.promote_first();
    }

    /// Promotes the first waiter, unless it was the first one before.
    fn promote_first(&self) {
        if let Some(first) = self.waiters.values().next().filter(|first| !first.is_first()) {
            first.promote();
        }
    }
}

#[derive(Debug, Default)]
struct Signal {
    is_first: AtomicBool,
    notify: Notify,
}

impl Signal {
    fn is_first(&self) -> bool {
        self.is_first.load(Ordering::Acquire)
    }

    fn demote(&self) {
        self.is_first.store(false, Ordering::Release);
    }

    fn promote(&self) {
        self.is_first.store(true, Ordering::Release);
        self.notify.notify_one();
    }
}

/// The position of one waiter; dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct LocalPosition {
    queues: Arc<LocalQueues>,
    name: LockName,
    place: Place,
    signal: Arc<Signal>,
}

impl LocalQueues {
    /// Joins the queue of `name`, at the place of the entry with this number in the store.
    pub(crate) fn join(self: &Arc<Self>, name: &LockName, number: Option<u64>) -> LocalPosition {
        let signal = Arc::new(Signal::default());
        let mut queues = self.lock();
        let queue = queues.entry(name.clone()).or_default();
        queue.last += 1;
        let place = (number.unwrap_or(0), queue.last);
        queue.insert(place, signal.clone());
        LocalPosition { queues: self.clone(), name: name.clone(), place, signal }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockName, Queue>> {
        lock(&self.queues)
    }
}

impl LocalPosition {
    /// Returns true if no other waiter of this process is ahead.
    pub(crate) fn is_first(&self) -> bool {
        self.signal.is_first()
    }

    /// Moves the waiter to the place of its entry in the store. Without this, a waiter whose entry was created again behind others would
    /// be the only one that checks the lock, and the one that is granted it would never check:
    /// 1. A and B wait. The entry of A expires, because the store is unavailable for a while.
    /// 2. A claims again, and has an entry behind that of B.
    /// 3. The lease of the holder expires, which notifies nobody.
    /// 4. A checks the lock from time to time: B is ahead.
    pub(crate) fn move_to(&mut self, number: u64) {
        if self.place.0 == number {
            return;
        }
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(&self.name) else { return };
        queue.waiters.remove(&self.place);
        self.place.0 = number;
        queue.insert(self.place, self.signal.clone());
    }

    /// Waits until no other waiter of this process is ahead.
    pub(crate) async fn first(&self) {
        while !self.is_first() {
            self.signal.notify.notified().await;
        }
    }
}

impl Drop for LocalPosition {
    fn drop(&mut self) {
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(&self.name) else { return };
        queue.waiters.remove(&self.place);
        if !has_bug(Bug::UnpromotedWaiter) {
            queue.promote_first();
        }
        if queue.waiters.is_empty() {
            queues.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn the_next_waiter_is_promoted_when_the_first_leaves() {
        let queues = Arc::new(LocalQueues::default());
        let [n, m] = ["n", "m"].map(|name| LockName::new(name).unwrap());
        let (a, b, c, other) =
            (queues.join(&n, None), queues.join(&n, None), queues.join(&n, None), queues.join(&m, None));
        let first = |position: &LocalPosition| position.first().now_or_never().is_some();
        assert_eq!([&a, &b, &c, &other].map(first), [true, false, false, true]);
        drop(b);
        assert_eq!([&a, &c].map(first), [true, false], "it was not the first");
        drop(a);
        assert!(first(&c) && c.is_first());
        drop((c, other));
        assert!(queues.lock().is_empty());
    }

    #[test]
    fn the_first_waiter_of_the_store_is_the_first_one() {
        let queues = Arc::new(LocalQueues::default());
        let n = LockName::new("n").unwrap();
        let [mut a, mut b, c] = [7, 5, 9].map(|number| queues.join(&n, Some(number)));
        let first = |waiters: [&LocalPosition; 3]| waiters.map(LocalPosition::is_first);
        assert_eq!(first([&a, &b, &c]), [false, true, false]);
        b.move_to(8);
        assert_eq!(first([&a, &b, &c]), [true, false, false]);
        assert!(a.first().now_or_never().is_some() && b.first().now_or_never().is_none());
        a.move_to(10);
        drop(b);
        assert_eq!((a.is_first(), c.is_first()), (false, true));
        assert!(c.first().now_or_never().is_some());
        drop(c);
        assert!(a.is_first());
    }
}
