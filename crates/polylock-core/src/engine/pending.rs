//! What has been begun in the background and must end before the program does.
//!
//! A dropped guard sends its release and does not wait for it. If that drop is the program's last act, something must
//! wait, or the next holder waits for the lease to run out. Two things do, each for [`AT_EXIT`] at most: the drop of the
//! last handle on a store, and the end of a thread that has opened the store or dropped guards. The second covers a `Locks`
//! that sits in a `static` and is never dropped: the C library runs the destructors of the thread that calls `exit`, which is
//! mostly the main thread, where mostly the store was opened.

use std::{
    cell::RefCell,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::sync::Notify;

use crate::io;

/// The longest that a drop or the end of a thread waits.
pub(crate) const AT_EXIT: Duration = Duration::from_millis(500);

/// Counts what is under way in the background for one store.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    count: Mutex<usize>,
    none_left: Condvar,
    none_left_async: Notify,
}

/// One thing under way; it is done when this is dropped.
#[derive(Debug)]
pub(crate) struct Ticket(Arc<Pending>);

impl Pending {
    /// For a new store. The thread that calls this waits for what is under way when it ends.
    pub(crate) fn of_this_thread() -> Arc<Self> {
        let pending = Arc::default();
        BegunHere::note(&pending);
        pending
    }

    /// One more. The thread that calls this waits for it when it ends.
    pub(crate) fn begin(self: &Arc<Self>) -> Ticket {
        *self.count() += 1;
        BegunHere::note(self);
        Ticket(self.clone())
    }

    /// Blocks until nothing is under way; false if time ran out first.
    pub(crate) fn wait(&self, within: Duration) -> bool {
        if io::is_current() {
            return false;
        }
        let waited = self.none_left.wait_timeout_while(self.count(), within, |count| *count > 0);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Ready once nothing is under way.
    pub(crate) async fn none_left(&self) {
        loop {
            let notified = self.none_left_async.notified();
            if *self.count() == 0 {
                return;
            }
            notified.await;
        }
    }

    fn count(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut count = self.0.count();
        *count -= 1;
        if *count == 0 {
            self.0.none_left.notify_all();
            self.0.none_left_async.notify_waiters();
        }
    }
}

thread_local! {
    static BEGUN_HERE: BegunHere = const { BegunHere(RefCell::new(Vec::new())) };
}

/// The stores that a thread has opened, or for which it has begun something; waits for them when the thread ends.
struct BegunHere(RefCell<Vec<Weak<Pending>>>);

impl BegunHere {
    fn note(pending: &Arc<Pending>) {
        if !io::is_current() {
            // An error means that this thread is ending already, and what it waited with is gone.
            BEGUN_HERE.try_with(|begun| begun.remember(pending)).ok();
        }
    }

    fn remember(&self, pending: &Arc<Pending>) {
        let mut stores = self.0.borrow_mut();
        if !stores.iter().any(|store| store.as_ptr() == Arc::as_ptr(pending)) {
            stores.retain(|store| store.strong_count() > 0);
            stores.push(Arc::downgrade(pending));
        }
    }
}

impl Drop for BegunHere {
    fn drop(&mut self) {
        for pending in self.0.borrow().iter().filter_map(Weak::upgrade) {
            pending.wait(AT_EXIT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::mpsc, thread};

    #[test]
    fn the_end_of_a_thread_waits_for_what_it_began() {
        let pending = Arc::new(Pending::default());
        let (begun, ticket) = mpsc::channel();
        let thread = thread::spawn({
            let pending = pending.clone();
            move || begun.send(pending.begin()).unwrap()
        });
        let ticket = ticket.recv().unwrap();
        let (joined, ended) = mpsc::channel();
        let joiner = thread::spawn(move || thread.join().map(|()| joined.send(()).unwrap()));
        assert!(!pending.wait(Duration::from_millis(20)), "one is under way");
        assert!(ended.recv_timeout(Duration::from_millis(20)).is_err(), "the thread waits for it");
        drop(ticket);
        ended.recv_timeout(AT_EXIT / 2).unwrap();
        joiner.join().unwrap().unwrap();
        assert!(pending.wait(Duration::ZERO));
    }
}
