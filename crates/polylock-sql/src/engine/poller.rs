//! Who looks after what others do: one task per store, only while somebody waits.
//!
//! What a round is, is the dialect's: a look at the tables, or a look whether the pushed news still come in. No departure
//! is missed by looking:
//! 1. a claim reads in its region that somebody is in its way, then says so to the hub, then marks the poller as having
//!    to look;
//! 2. a round takes the mark first and looks afterwards;
//! 3. so whoever leaves after 1 is seen by a round after it, and whoever was put into the hub after a look is looked after
//!    by the next round, whose snapshot is later than the claim's.

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use polylock_core::{Clock, SystemClock};
use tokio::task::JoinHandle;

use super::{Dialect, Inner, background::Background};

/// The pause after a failure.
const AFTER_FAILURE: Duration = Duration::from_millis(250);

/// While nothing happens, each pause is longer than the one before by one part in so many.
///
/// That bounds what a hand-over takes longer than it must, in parts of the time since the last one. It must be a small part:
/// in a queue of processes, one's delay is in the time that the next one counts. When pauses grew by half, eight processes
/// in a queue, each of which held the lock for an instant, drove one another to the longest pause.
const GROWTH: u32 = 8;

/// The pauses between rounds, from the first to the longest.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// When somebody begins to wait, and after a find.
    pub(crate) shortest: Duration,
    /// In the end: the most that a hand-over between processes waits for a round.
    pub(crate) longest: Duration,
    /// The least pause, as a multiple of the time that the round took.
    pub(crate) share: u32,
}

/// What a round found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    /// Nothing has happened, or nobody can tell.
    Quiet,
    /// Something has: the next round is due after this. The shortest pause if someone who is waited for has left; at most
    /// a few times that otherwise, because a queue of processes moves on this fast.
    Soon(Duration),
}

/// The running task, if there is one.
#[derive(Debug)]
pub(super) struct Poller {
    /// Whether someone waits who was not looked after yet.
    news: AtomicBool,
    running: Mutex<Option<JoinHandle<()>>>,
    rounds: Background,
}

impl Default for Poller {
    fn default() -> Self {
        let rounds = Background::new("could not look for releases by other processes");
        Self { news: AtomicBool::default(), running: Mutex::default(), rounds }
    }
}

impl<D: Dialect> Inner<D> {
    /// Someone waits, and the hub knows for whom.
    pub(super) fn attend(self: &Arc<Self>) {
        self.poller.news.store(true, Ordering::Release);
        let mut running = self.poller.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.as_ref().is_none_or(JoinHandle::is_finished) {
            *running = Some(tokio::spawn(poll(Arc::downgrade(self))));
        }
    }

    /// Whether nobody waits, so that the poller ends. Who waits from now on starts a new one.
    fn rests(&self) -> bool {
        let mut running = self.poller.running.lock().unwrap_or_else(PoisonError::into_inner);
        let rests = self.hub.is_empty();
        if rests {
            *running = None;
        }
        rests
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        if let Some(poller) = self.running.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            poller.abort();
        }
    }
}

async fn poll<D: Dialect>(store: Weak<Inner<D>>) {
    let mut pause = match store.upgrade() {
        Some(store) => store.dialect.pace().shortest,
        None => return,
    };
    loop {
        let wakeups = match store.upgrade() {
            Some(store) => store.dialect.wakeups(&store.hub),
            None => return,
        };
        SystemClock.before(SystemClock.now() + pause, wakeups).await;
        let Some(store) = store.upgrade() else { return };
        if store.rests() {
            return;
        }
        let (pace, began) = (store.dialect.pace(), SystemClock.now());
        let news = store.poller.news.swap(false, Ordering::Acquire);
        let round = store.dialect.round(&store.hub, news).await;
        if round.is_ok() {
            store.poller.rounds.succeeded();
        }
        pause = match round {
            Ok(Round::Soon(next)) => next,
            Ok(Round::Quiet) => (pause + pause / GROWTH).min(pace.longest),
            Err(failure) => {
                // The waiters claim, and meet the fault themselves or find it mended.
                store.poller.rounds.failed(&failure);
                store.hub.ring_all();
                AFTER_FAILURE
            }
        };
        // A long look, because hundreds wait, is taken less often.
        pause = pause.max(SystemClock.now().since(began) * pace.share);
    }
}
