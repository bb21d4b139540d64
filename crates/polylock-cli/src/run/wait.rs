//! Waiting for the store and for the lock: with a display, until a signal comes.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use polylock::{Clock, Guard, Lock, LockName, LockStatus, Locks, Moment, OwnerId, Progress, SystemClock};
use rustix::process::Signal;

use super::status_log::StatusLog;
use crate::{
    output::{Output, Seen, Waiting, position},
    signals::Signals,
};

/// A shorter wait is not reported.
pub(super) const SILENT: Duration = Duration::from_millis(500);
/// How often the spinner turns.
const TURN: Duration = Duration::from_millis(100);
/// How often the store is asked who holds the lock, while somebody reads it.
const LOOK: Duration = Duration::from_secs(3);

/// How a wait ended.
pub(super) enum Waited<T> {
    /// With an answer of the store.
    Answered(polylock::Result<T>),
    /// By a signal; the place in the queue is being given up.
    Interrupted(Signal),
}

/// What a display of the wait needs to know.
pub(super) struct Watched<'a> {
    pub(super) output: &'a Output,
    /// The store, without secrets.
    pub(super) store: &'a str,
    pub(super) progress: &'a Progress,
    /// The limit of the wait.
    pub(super) limit: Option<Duration>,
    pub(super) began: Moment,
}

/// Waits for the store to be opened by `connecting`.
pub(super) async fn connect(
    connecting: impl Future<Output = polylock::Result<Locks>>,
    watched: &Watched<'_>,
    log: &StatusLog,
    signals: &mut Signals,
) -> Waited<Locks> {
    tokio::select! {
        biased;
        signal = signals.next_end() => Waited::Interrupted(signal),
        answer = connecting => Waited::Answered(answer),
        never = watched.display(log.name.clone()) => match never {},
    }
}

/// Waits for the lock.
pub(super) async fn acquire(
    lock: Lock,
    locks: &Locks,
    watched: &Watched<'_>,
    log: &mut StatusLog,
    signals: &mut Signals,
) -> Waited<Guard> {
    // Boxed, so that leaving this function drops it: that leaves the queue.
    let mut attempt = Box::pin(lock.acquire());
    tokio::select! {
        biased;
        signal = signals.next_end() => Waited::Interrupted(signal),
        answer = &mut attempt => Waited::Answered(answer),
        never = watched.display_queue(locks, log) => match never {},
    }
}

/// Waits for `time`, unless a signal comes first.
pub(super) async fn pause(time: Duration, signals: &mut Signals) -> Option<Signal> {
    tokio::select! {
        biased;
        signal = signals.next_end() => Some(signal),
        () = SystemClock.sleep_until(SystemClock.now() + time) => None,
    }
}

impl Watched<'_> {
    /// Shows an outage of a store that is being opened, until it is dropped.
    async fn display(&self, name: LockName) -> Infallible {
        let clock = SystemClock;
        clock.sleep_until(clock.now() + SILENT).await;
        let mut waiting = None;
        loop {
            if let Some(outage) = self.progress.outage() {
                let waiting = waiting.get_or_insert_with(|| Waiting::begin(*self.output, self.store));
                waiting.show(&self.seen(&name, None).during(&outage));
            }
            clock.sleep_until(clock.now() + TURN).await;
        }
    }

    /// Shows the queue and writes it down, until it is dropped.
    async fn display_queue(&self, locks: &Locks, log: &mut StatusLog) -> Infallible {
        let clock = SystemClock;
        let (name, me) = (log.name.clone(), log.owner.clone());
        clock.sleep_until(clock.now() + SILENT).await;

        let mut waiting = Waiting::begin(*self.output, self.store);
        let is_repeated = waiting.is_repeated() || log.is_read();
        if !is_repeated && !waiting.is_shown() {
            // Nobody would see what it costs the store to know.
            return std::future::pending().await;
        }
        let look = Look::start(locks.clone(), name.clone(), is_repeated);
        // The first line should tell who holds the lock.
        look.first(clock.now() + SILENT).await;
        let mut place = None;
        loop {
            let status = look.latest();
            write_place(log, status.as_ref(), &me, &mut place);
            let outage = self.progress.outage();
            let seen = self.seen(&name, status.as_ref().map(|status| (status, &me)));
            waiting.show(&outage.iter().fold(seen, |seen, outage| seen.during(outage)));
            clock.sleep_until(clock.now() + TURN).await;
        }
    }

    fn seen<'s>(&self, name: &'s LockName, status: Option<(&'s LockStatus, &'s OwnerId)>) -> Seen<'s> {
        Seen::new(name, status, SystemClock.now().since(self.began), self.limit)
    }
}

fn write_place(log: &mut StatusLog, status: Option<&LockStatus>, me: &OwnerId, place: &mut Option<usize>) {
    let now = status.and_then(|status| position(status, me));
    if let Some(position) = now.filter(|_| now != *place) {
        log.queued(position);
        *place = now;
    }
}

/// Looks at the lock beside the display, so that a slow store does not stop the spinner.
struct Look {
    latest: Arc<Mutex<Option<(LockStatus, Moment)>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Look {
    /// Looks once, or again and again.
    fn start(locks: Locks, name: LockName, is_repeated: bool) -> Self {
        let latest = Arc::new(Mutex::new(None));
        let place = latest.clone();
        let task = tokio::spawn(async move {
            loop {
                // A store that can't be inspected, or not now, leaves the display with less to show.
                let status = locks.inspect(&name).await.ok().map(|status| (status, SystemClock.now()));
                *place.lock().unwrap_or_else(PoisonError::into_inner) = status;
                if !is_repeated {
                    return;
                }
                SystemClock.sleep_until(SystemClock.now() + LOOK).await;
            }
        });
        Self { latest, task }
    }

    /// What was seen last, with the ages that the holds have now.
    fn latest(&self) -> Option<LockStatus> {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone();
        latest.map(|(mut status, at)| {
            let since = SystemClock.now().since(at);
            status.holders.iter_mut().for_each(|holder| holder.age += since);
            status
        })
    }

    /// Waits until something was seen, at most until `limit`.
    async fn first(&self, limit: Moment) {
        while self.latest().is_none() && SystemClock.now() < limit {
            SystemClock.sleep_until(SystemClock.now() + TURN / 4).await;
        }
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        self.task.abort();
    }
}
