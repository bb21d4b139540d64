//! The waiters of this process, by lock, in order of arrival.
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

use crate::{LockName, sync::lock};

/// The queues of all locks with waiters in this process.
#[derive(Debug, Default)]
pub(crate) struct LocalQueues {
    queues: Mutex<HashMap<LockName, Queue>>,
}

#[derive(Debug, Default)]
struct Queue {
    last: u64,
    waiters: BTreeMap<u64, Arc<Signal>>,
}

#[derive(Debug, Default)]
struct Signal {
    is_first: AtomicBool,
    notify: Notify,
}

impl Signal {
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
    number: u64,
    signal: Arc<Signal>,
}

impl LocalQueues {
    /// Joins the queue of `name` at its end.
    pub(crate) fn join(self: &Arc<Self>, name: &LockName) -> LocalPosition {
        let signal = Arc::new(Signal::default());
        let mut queues = self.lock();
        let queue = queues.entry(name.clone()).or_default();
        queue.last += 1;
        if queue.waiters.is_empty() {
            signal.promote();
        }
        queue.waiters.insert(queue.last, signal.clone());
        LocalPosition { queues: self.clone(), name: name.clone(), number: queue.last, signal }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockName, Queue>> {
        lock(&self.queues)
    }
}

impl LocalPosition {
    /// Returns true if no other waiter of this process is ahead.
    pub(crate) fn is_first(&self) -> bool {
        self.signal.is_first.load(Ordering::Acquire)
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
        queue.waiters.remove(&self.number);
        match queue.waiters.values().next() {
            Some(next) if self.is_first() => next.promote(),
            Some(_) => {}
            None => drop(queues.remove(&self.name)),
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
        let (a, b, c, other) = (queues.join(&n), queues.join(&n), queues.join(&n), queues.join(&m));
        let first = |position: &LocalPosition| position.first().now_or_never().is_some();
        assert_eq!([&a, &b, &c, &other].map(first), [true, false, false, true]);
        drop(b);
        assert_eq!([&a, &c].map(first), [true, false], "it was not the first");
        drop(a);
        assert!(first(&c) && c.is_first());
        drop((c, other));
        assert!(queues.lock().is_empty());
    }
}
