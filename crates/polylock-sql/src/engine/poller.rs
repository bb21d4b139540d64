//! Background poller that detects releases by other processes: one task per store, which runs only while there are waiters.
//!
//! The dialect defines a round: a query of the tables, or a check that notifications still arrive. Polling misses no departure:
//! 1. a claim reads in its critical section that another request is in its way, and registers that request in the
//!    [`Wakeups`](polylock_core::wakeups::Wakeups); then the waiter sets the poller's `waiter_added` flag;
//! 2. a round clears the flag first and queries the tables afterwards;
//! 3. so a request that leaves after step 1 is seen by a later round, and a request that is registered after a query is covered by the next
//!    round, with a snapshot that is later than the claim's.

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use polylock_core::{Clock, Executor, SystemClock, sync::lock, wakeups::Wakeups};
use tokio::task::JoinHandle;

use super::{
    background::Background,
    dialect::{Dialect, PollOutcome},
};

/// The pause after a failed round.
const AFTER_FAILURE: Duration = Duration::from_millis(250);

/// While nothing happens, each pause is longer than the one before by one part in this many.
///
/// This limits the delay of a hand-over to a fraction of the time since the last one. The fraction must be small, because in a queue of
/// processes the delay of one adds to the time that the next one measures. When pauses grew by half, eight processes in a queue, each of
/// which held the lock for an instant, drove one another to the longest pause.
const GROWTH: u32 = 8;

/// The part of a store that the poller uses.
pub(super) struct PolledStore<D> {
    pub(super) dialect: D,
    pub(super) context: Arc<StoreContext>,
}

/// The waiters of a store on the connections of all runtimes, and their poller.
#[derive(Debug, Default)]
pub(super) struct StoreContext {
    pub(super) wakeups: Arc<Wakeups>,
    poller: Poller,
}

/// The poller task, if it runs.
#[derive(Debug)]
struct Poller {
    /// True if a waiter was added since the last round began.
    waiter_added: AtomicBool,
    running: Mutex<Option<JoinHandle<()>>>,
    polls: Background,
}

impl Default for Poller {
    fn default() -> Self {
        let polls = Background::new("could not poll for releases by other processes");
        Self { waiter_added: AtomicBool::default(), running: Mutex::default(), polls }
    }
}

impl<D: Dialect> PolledStore<D> {
    /// Starts the poller if it does not run. The caller has registered a waiter.
    pub(super) fn ensure_poller_running(self: &Arc<Self>) {
        self.context.poller.waiter_added.store(true, Ordering::Release);
        let mut running = lock(&self.context.poller.running);
        if running.as_ref().is_none_or(JoinHandle::is_finished) {
            *running = Some(Executor::current().spawn(run_poller(Arc::downgrade(self))));
        }
    }

    /// Returns true if there are no waiters, so that the poller ends. The next waiter starts a new one.
    fn stop_poller_if_idle(&self) -> bool {
        let mut running = lock(&self.context.poller.running);
        let is_idle = self.context.wakeups.is_empty();
        if is_idle {
            *running = None;
        }
        is_idle
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        if let Some(poller) = self.running.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            poller.abort();
        }
    }
}

async fn run_poller<D: Dialect>(store: Weak<PolledStore<D>>) {
    let mut pause = match store.upgrade() {
        Some(store) => store.dialect.poll_interval().shortest,
        None => return,
    };
    loop {
        let notifications = match store.upgrade() {
            Some(store) => store.dialect.receive_notifications(&store.context.wakeups),
            None => return,
        };
        SystemClock.before(SystemClock.now() + pause, notifications).await;
        let Some(store) = store.upgrade() else { return };
        if store.stop_poller_if_idle() {
            return;
        }
        let (interval, began) = (store.dialect.poll_interval(), SystemClock.now());
        let waiter_added = store.context.poller.waiter_added.swap(false, Ordering::Acquire);
        let outcome = store.dialect.poll(&store.context.wakeups, waiter_added).await;
        if outcome.is_ok() {
            store.context.poller.polls.succeeded();
        }
        let work = match outcome {
            Ok(PollOutcome::Waited { .. }) => Duration::ZERO,
            _ => SystemClock.now().since(began),
        };
        pause = match outcome {
            Ok(PollOutcome::NextAfter(next)) => next,
            Ok(PollOutcome::Waited { changed: true }) => interval.shortest,
            Ok(PollOutcome::Unchanged | PollOutcome::Waited { changed: false }) => {
                (pause + pause / GROWTH).min(interval.longest)
            }
            Err(failure) => {
                // The waiters claim again, and either fail for the same reason or find the fault repaired.
                store.context.poller.polls.failed(&failure);
                store.context.wakeups.notify_all();
                AFTER_FAILURE
            }
        };
        // A round that takes long, because there are hundreds of waiters, runs less often.
        pause = pause.max(work * interval.min_ratio);
    }
}
