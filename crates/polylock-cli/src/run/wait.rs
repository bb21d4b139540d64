//! Waiting for the lock: with a display, and with an ear for signals.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use polylock::{Clock, Guard, Lock, LockName, LockStatus, Locks, Moment, OwnerId, SystemClock};
use rustix::process::Signal;

use super::status_log::StatusLog;
use crate::{
    output::{Output, Waiting, position},
    signals::Signals,
};

/// A shorter wait is not reported.
pub(super) const SILENT: Duration = Duration::from_millis(500);
/// How often the spinner turns.
const TURN: Duration = Duration::from_millis(100);
/// How often the store is asked who holds the lock.
const LOOK: Duration = Duration::from_secs(1);

/// How a wait ended.
pub(super) enum Waited {
    /// With the lock, or because there is none to be had.
    Answered(polylock::Result<Guard>),
    /// By a signal; the place in the queue is being given up.
    Interrupted(Signal),
}

/// Waits for the lock.
pub(super) async fn acquire(
    lock: Lock,
    locks: &Locks,
    store: &str,
    output: &Output,
    log: &mut StatusLog,
    signals: &mut Signals,
) -> Waited {
    // Boxed, so that leaving this function drops it: that leaves the queue.
    let mut attempt = Box::pin(lock.acquire());
    tokio::select! {
        biased;
        signal = signals.next_end() => Waited::Interrupted(signal),
        answer = &mut attempt => Waited::Answered(answer),
        never = display(locks, store, output, log) => match never {},
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

/// Shows the wait and writes it down, until it is dropped.
async fn display(
    locks: &Locks,
    store: &str,
    output: &Output,
    log: &mut StatusLog,
) -> std::convert::Infallible {
    let clock = SystemClock;
    let start = clock.now();
    let (name, me) = (log.name.clone(), log.owner.clone());
    clock.sleep_until(start + SILENT).await;

    let seen = Look::start(locks.clone(), name.clone());
    // The first line should tell who holds the lock.
    seen.first(clock.now() + SILENT).await;
    let mut waiting = Waiting::begin(*output, store);
    let mut place = None;
    loop {
        let status = seen.latest();
        write_place(log, status.as_ref(), &me, &mut place);
        waiting.show(&name, status.as_ref(), &me, clock.now().since(start));
        clock.sleep_until(clock.now() + TURN).await;
    }
}

fn write_place(log: &mut StatusLog, status: Option<&LockStatus>, me: &OwnerId, place: &mut Option<usize>) {
    let now = status.and_then(|status| position(status, me));
    if let Some(position) = now.filter(|_| now != *place) {
        log.queued(position);
        *place = now;
    }
}

/// Looks at the lock again and again, beside the display, so that a slow store does not stop the spinner.
struct Look {
    latest: Arc<Mutex<Option<LockStatus>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Look {
    fn start(locks: Locks, name: LockName) -> Self {
        let latest = Arc::new(Mutex::new(None));
        let place = latest.clone();
        let task = tokio::spawn(async move {
            loop {
                // A store that can't be looked into, or not now, leaves the display with less to tell.
                let status = locks.inspect(&name).await.ok();
                *place.lock().unwrap_or_else(PoisonError::into_inner) = status;
                SystemClock.sleep_until(SystemClock.now() + LOOK).await;
            }
        });
        Self { latest, task }
    }

    fn latest(&self) -> Option<LockStatus> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
