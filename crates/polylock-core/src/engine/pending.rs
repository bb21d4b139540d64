//! Background work that must end before the program does.
//!
//! A dropped guard sends its release and does not wait for it. If that drop is the last action of the program, the program must
//! wait for the release; otherwise the next holder waits until the lease expires. Two events wait, each for [`AT_EXIT`] at most:
//! the drop of the last handle on a store, and the end of a thread. A thread waits for the work that it has started itself; the
//! main thread, if it has used a store, waits for the work of all threads, because its end is the end of the process. That covers a
//! `Locks` in a `static`, which is never dropped: the C library runs the destructors of the thread that calls `exit`.

use std::{
    cell::RefCell,
    process,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

use crate::{Clock, Moment, SystemClock, io, observer, process::is_simulated, sync::lock};

/// The longest time that a drop or the end of a thread waits.
pub(crate) const AT_EXIT: Duration = Duration::from_millis(500);

/// Counts the background work in progress for one store.
#[derive(Debug)]
pub(crate) struct Pending {
    /// The process that opened the store. A child process made by `fork` does not wait, because the work is its parent's.
    process: u32,
    count: Mutex<usize>,
    work_ended: Condvar,
    drained: Notify,
}

/// One piece of work in progress; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct WorkGuard {
    _work: Arc<Work>,
}

#[derive(Debug)]
struct Work(Arc<Pending>);

/// The stores of the process, for the end of the main thread.
static STORES: Mutex<Vec<Weak<Pending>>> = Mutex::new(Vec::new());

/// The process that has opened the last of them, 0 before. A child process made by `fork` has nothing to wait for, and must not lock a mutex that a
/// thread of its parent may have had.
static PROCESS: AtomicU32 = AtomicU32::new(0);

impl Pending {
    fn new() -> Self {
        let (work_ended, drained) = Default::default();
        Self { process: process::id(), count: Mutex::new(0), work_ended, drained }
    }

    /// Creates the counter of a new store.
    pub(crate) fn for_new_store() -> Arc<Self> {
        let pending = Arc::new(Self::new());
        PROCESS.store(pending.process, Ordering::Relaxed);
        push_weak(&mut lock(&STORES), Arc::downgrade(&pending));
        StartedByThread::register_main();
        pending
    }

    /// Begins one piece of work. The calling thread waits for it when the thread ends.
    pub(crate) fn begin(self: &Arc<Self>) -> WorkGuard {
        *self.count() += 1;
        let work = Arc::new(Work(self.clone()));
        StartedByThread::track(&work);
        WorkGuard { _work: work }
    }

    /// Blocks until no work is in progress; returns false if `within` expired first.
    pub(crate) fn wait(&self, within: Duration) -> bool {
        if self.process != process::id() {
            return false;
        }
        let by = SystemClock.now() + within;
        let done = self.wait_until(by, || false);
        observer::flush(by.since(SystemClock.now()));
        done
    }

    /// Blocks until no work is in progress, or until `done` returns true, which is checked whenever some work has ended.
    fn wait_until(&self, by: Moment, done: impl Fn() -> bool) -> bool {
        if io::is_current() || is_simulated() || self.process != process::id() {
            return false;
        }
        let mut count = self.count();
        while *count > 0 && !done() {
            let left = by.since(SystemClock.now());
            if left.is_zero() {
                return false;
            }
            let waited = self.work_ended.wait_timeout(count, left);
            count = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Waits until no work is in progress.
    pub(crate) async fn drained(&self) {
        loop {
            let notified = self.drained.notified();
            if *self.count() == 0 {
                return;
            }
            notified.await;
        }
    }

    fn count(&self) -> MutexGuard<'_, usize> {
        lock(&self.count)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let mut count = self.0.count();
        *count -= 1;
        self.0.work_ended.notify_all();
        if *count == 0 {
            self.0.drained.notify_waiters();
        }
    }
}

/// Appends to a list of weak references. A full list is first cleared of the dead ones.
fn push_weak<T>(list: &mut Vec<Weak<T>>, item: Weak<T>) {
    if list.len() == list.capacity() {
        list.retain(|item| item.strong_count() > 0);
        list.reserve(list.len() + 8);
    }
    list.push(item);
}

thread_local! {
    static STARTED_BY_THREAD: StartedByThread = const { StartedByThread(RefCell::new(Vec::new())) };
}

/// The work that a thread has started; its drop at the end of the thread waits for the work.
struct StartedByThread(RefCell<Vec<Weak<Work>>>);

impl StartedByThread {
    fn track(work: &Arc<Work>) {
        if !io::is_current() && !is_simulated() {
            // An error means that this thread is ending, and its destructor has run.
            STARTED_BY_THREAD
                .try_with(|started| push_weak(&mut started.0.borrow_mut(), Arc::downgrade(work)))
                .ok();
        }
    }

    /// Makes the main thread wait at its end, even if it starts no work itself.
    fn register_main() {
        STARTED_BY_THREAD.try_with(|_| ()).ok();
    }
}

impl Drop for StartedByThread {
    fn drop(&mut self) {
        let opened_by = PROCESS.load(Ordering::Relaxed);
        if opened_by != 0 && opened_by != process::id() {
            return;
        }
        let by = SystemClock.now() + AT_EXIT;
        for work in self.0.take() {
            let Some(pending) = work.upgrade().map(|work| work.0.clone()) else { continue };
            pending.wait_until(by, || work.strong_count() == 0);
        }
        if is_main_thread() {
            let stores = std::mem::take(&mut *lock(&STORES));
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

    /// Starts a thread that begins a piece of work and ends. Returns its ticket, and the signal that it has ended.
    fn begins_and_ends(pending: &Arc<Pending>) -> (WorkGuard, Receiver<()>) {
        let (begun, guard) = mpsc::channel();
        let pending = pending.clone();
        let thread = thread::spawn(move || begun.send(pending.begin()).unwrap());
        let guard = guard.recv().unwrap();
        let (joined, ended) = mpsc::channel();
        thread::spawn(move || thread.join().map(|()| joined.send(()).unwrap()));
        (guard, ended)
    }

    #[test]
    fn the_end_of_a_thread_waits_for_the_work_that_it_started() {
        let pending = Arc::new(Pending::new());
        let (guard, ended) = begins_and_ends(&pending);
        assert!(!pending.wait(Duration::from_millis(20)), "one is under way");
        assert!(ended.recv_timeout(Duration::from_millis(20)).is_err(), "the thread waits for it");
        drop(guard);
        ended.recv_timeout(AT_EXIT / 2).unwrap();
        assert!(pending.wait(Duration::ZERO));
    }

    #[test]
    fn the_end_of_a_thread_does_not_wait_for_the_work_of_other_threads() {
        let pending = Arc::new(Pending::new());
        let _of_this_thread = pending.begin();
        let (guard, ended) = begins_and_ends(&pending);
        drop(guard);
        ended.recv_timeout(AT_EXIT / 2).unwrap();
    }

    #[test]
    fn ended_work_is_removed_from_the_list() {
        let mut list = Vec::new();
        for _ in 0..1000 {
            push_weak(&mut list, Arc::downgrade(&Arc::new(())));
        }
        assert!(list.capacity() < 100, "{}", list.capacity());
    }
}
