//! Background work that must end before the program does.
//!
//! A dropped guard sends its release and does not wait for it. If that drop is the program's last act, something must
//! wait, or the next holder waits for the lease to run out. Two things do, each for [`AT_EXIT`] at most: the drop of the
//! last handle on a store, and the end of a thread. A thread waits for the work that it has started itself; the main thread, if it
//! has used a store, waits for the work of all threads, because its end is the end of the process. That covers a `Locks` that sits
//! in a `static` and is never dropped: the C library runs the destructors of the thread that calls `exit`.

use std::{
    cell::RefCell,
    process,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::sync::Notify;

use crate::{Clock, Moment, SystemClock, io, observer};

/// The longest that a drop or the end of a thread waits.
pub(crate) const AT_EXIT: Duration = Duration::from_millis(500);

/// Counts what is under way in the background for one store.
#[derive(Debug)]
pub(crate) struct Pending {
    /// A child process made by `fork` has nothing to wait for: the work is its parent's.
    process: u32,
    count: Mutex<usize>,
    one_less: Condvar,
    none_left: Notify,
}

/// One piece of work under way; it is done when this is dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    _work: Arc<Work>,
}

#[derive(Debug)]
struct Work(Arc<Pending>);

/// The stores of the process, for the end of the main thread.
static STORES: Mutex<Vec<Weak<Pending>>> = Mutex::new(Vec::new());

impl Pending {
    fn new() -> Self {
        let (one_less, none_left) = Default::default();
        Self { process: process::id(), count: Mutex::new(0), one_less, none_left }
    }

    /// For a new store.
    pub(crate) fn of_new_store() -> Arc<Self> {
        let pending = Arc::new(Self::new());
        remember(&mut STORES.lock().unwrap_or_else(PoisonError::into_inner), Arc::downgrade(&pending));
        StartedHere::register_main();
        pending
    }

    /// One more. The thread that calls this waits for it when it ends.
    pub(crate) fn begin(self: &Arc<Self>) -> Ticket {
        *self.count() += 1;
        let work = Arc::new(Work(self.clone()));
        StartedHere::note(&work);
        Ticket { _work: work }
    }

    /// Blocks until nothing is under way; false if time ran out first.
    pub(crate) fn wait(&self, within: Duration) -> bool {
        let by = SystemClock.now() + within;
        let done = self.wait_until(by, || false);
        observer::flush(by.since(SystemClock.now()));
        done
    }

    /// Blocks until nothing is under way, or `done`, which is checked whenever something has ended.
    fn wait_until(&self, by: Moment, done: impl Fn() -> bool) -> bool {
        if io::is_current() || self.process != process::id() {
            return false;
        }
        let mut count = self.count();
        while *count > 0 && !done() {
            let left = by.since(SystemClock.now());
            if left.is_zero() {
                return false;
            }
            let waited = self.one_less.wait_timeout(count, left);
            count = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Ready once nothing is under way.
    pub(crate) async fn none_left(&self) {
        loop {
            let notified = self.none_left.notified();
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

impl Drop for Work {
    fn drop(&mut self) {
        let mut count = self.0.count();
        *count -= 1;
        self.0.one_less.notify_all();
        if *count == 0 {
            self.0.none_left.notify_waiters();
        }
    }
}

/// Appends to a list of what may have ended, which stays as short as what has not.
fn remember<T>(list: &mut Vec<Weak<T>>, item: Weak<T>) {
    if list.len() == list.capacity() {
        list.retain(|item| item.strong_count() > 0);
        list.reserve(list.len() + 8);
    }
    list.push(item);
}

thread_local! {
    static STARTED_HERE: StartedHere = const { StartedHere(RefCell::new(Vec::new())) };
}

/// The work that a thread has started; waits for it when the thread ends.
struct StartedHere(RefCell<Vec<Weak<Work>>>);

impl StartedHere {
    fn note(work: &Arc<Work>) {
        if !io::is_current() {
            // An error means that this thread is ending already, and its destructor has run.
            STARTED_HERE.try_with(|here| remember(&mut here.0.borrow_mut(), Arc::downgrade(work))).ok();
        }
    }

    /// Has the main thread wait at its end, though it may start nothing itself.
    fn register_main() {
        STARTED_HERE.try_with(|_| ()).ok();
    }
}

impl Drop for StartedHere {
    fn drop(&mut self) {
        let by = SystemClock.now() + AT_EXIT;
        for work in self.0.take() {
            let Some(pending) = work.upgrade().map(|work| work.0.clone()) else { continue };
            pending.wait_until(by, || work.strong_count() == 0);
        }
        if is_main_thread() {
            let stores = std::mem::take(&mut *STORES.lock().unwrap_or_else(PoisonError::into_inner));
            for pending in stores.iter().filter_map(Weak::upgrade) {
                pending.wait_until(by, || false);
            }
            observer::flush(by.since(SystemClock.now()));
        }
    }
}

#[cfg(target_os = "linux")]
fn is_main_thread() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}

#[cfg(not(target_os = "linux"))]
fn is_main_thread() -> bool {
    std::thread::current().name() == Some("main")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::mpsc::{self, Receiver},
        thread,
    };

    /// A thread that begins something and ends; its ticket, and a signal when it has ended.
    fn begins_and_ends(pending: &Arc<Pending>) -> (Ticket, Receiver<()>) {
        let (begun, ticket) = mpsc::channel();
        let pending = pending.clone();
        let thread = thread::spawn(move || begun.send(pending.begin()).unwrap());
        let ticket = ticket.recv().unwrap();
        let (joined, ended) = mpsc::channel();
        thread::spawn(move || thread.join().map(|()| joined.send(()).unwrap()));
        (ticket, ended)
    }

    #[test]
    fn the_end_of_a_thread_waits_for_what_it_began() {
        let pending = Arc::new(Pending::new());
        let (ticket, ended) = begins_and_ends(&pending);
        assert!(!pending.wait(Duration::from_millis(20)), "one is under way");
        assert!(ended.recv_timeout(Duration::from_millis(20)).is_err(), "the thread waits for it");
        drop(ticket);
        ended.recv_timeout(AT_EXIT / 2).unwrap();
        assert!(pending.wait(Duration::ZERO));
    }

    #[test]
    fn the_end_of_a_thread_does_not_wait_for_what_others_began() {
        let pending = Arc::new(Pending::new());
        let _of_this_thread = pending.begin();
        let (ticket, ended) = begins_and_ends(&pending);
        drop(ticket);
        ended.recv_timeout(AT_EXIT / 2).unwrap();
    }

    #[test]
    fn what_has_ended_is_not_remembered() {
        let mut list = Vec::new();
        for _ in 0..1000 {
            remember(&mut list, Arc::downgrade(&Arc::new(())));
        }
        assert!(list.capacity() < 100, "{}", list.capacity());
    }
}
