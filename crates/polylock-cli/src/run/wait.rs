//! Waits for the store and for the lock, with a display, until a signal comes.

use std::{convert::Infallible, time::Duration};

use polylock::{Clock, LockName, LockStatus, Locks, Moment, OwnerId, Progress, SystemClock};
use rustix::process::Signal;

use super::status_log::StatusLog;
use crate::{
    output::{Output, WaitDisplay, WaitState},
    signals::Signals,
};

/// The duration from which a wait is reported.
pub(super) const REPORT_DELAY: Duration = Duration::from_millis(500);
/// The duration from which a store that has not replied yet is reported.
const SILENCE_DELAY: Duration = Duration::from_secs(1);
/// The time between two frames of the spinner.
const FRAME_INTERVAL: Duration = Duration::from_millis(100);
/// The interval between queries for the holder and the queue, while the result is displayed.
const QUERY_INTERVAL: Duration = Duration::from_secs(3);

/// The reason why a wait ended without a result.
pub(super) enum WaitError {
    Failed(polylock::Error),
    /// A signal; the request is leaving the queue.
    Interrupted(Signal),
}

/// The context of a display of the wait.
pub(super) struct WaitContext<'a> {
    pub(super) output: &'a Output,
    /// The store, without secrets.
    pub(super) store: &'a str,
    pub(super) progress: &'a Progress,
    /// The limit of the wait.
    pub(super) limit: Option<Duration>,
    pub(super) started_at: Moment,
}

/// Waits for the store to be opened by `connection`.
pub(super) async fn connect(
    connection: impl Future<Output = polylock::Result<Locks>>,
    context: &WaitContext<'_>,
    log: &StatusLog,
    signals: &mut Signals,
) -> Result<Locks, WaitError> {
    tokio::select! {
        biased;
        signal = signals.next_termination() => Err(WaitError::Interrupted(signal)),
        result = connection => result.map_err(WaitError::Failed),
        never = context.display(log.names.main().clone()) => match never {},
    }
}

/// Waits for the locks.
pub(super) async fn acquire<T>(
    acquisition: impl Future<Output = polylock::Result<T>>,
    context: &WaitContext<'_>,
    log: &mut StatusLog,
    signals: &mut Signals,
) -> Result<T, WaitError> {
    // Boxed, so that returning from this function drops it, which removes the request from the queue.
    let mut acquisition = Box::pin(acquisition);
    tokio::select! {
        biased;
        signal = signals.next_termination() => Err(WaitError::Interrupted(signal)),
        result = &mut acquisition => result.map_err(WaitError::Failed),
        never = context.display_queue(log) => match never {},
    }
}

/// Waits for `time`, unless a signal comes first.
pub(super) async fn pause(time: Duration, signals: &mut Signals) -> Result<(), WaitError> {
    tokio::select! {
        biased;
        signal = signals.next_termination() => Err(WaitError::Interrupted(signal)),
        () = SystemClock.sleep_until(SystemClock.now() + time) => Ok(()),
    }
}

impl WaitContext<'_> {
    /// Displays a store that is being opened and does not reply, or its outage, until it is dropped.
    async fn display(&self, name: LockName) -> Infallible {
        let clock = SystemClock;
        clock.sleep_until(clock.now() + REPORT_DELAY).await;
        let mut waiting = None;
        loop {
            let outage = self.progress.outage();
            if outage.is_some() || clock.now().since(self.started_at) >= SILENCE_DELAY {
                let waiting = waiting.get_or_insert_with(|| WaitDisplay::begin(*self.output, self.store));
                let state = self.state(&name, None).of_silent_store();
                waiting.show(&outage.iter().fold(state, |state, outage| state.during(outage)));
            }
            clock.sleep_until(clock.now() + FRAME_INTERVAL).await;
        }
    }

    /// Displays and logs the queue, until it is dropped.
    async fn display_queue(&self, log: &mut StatusLog) -> Infallible {
        let clock = SystemClock;
        let (main, owner) = (log.names.main().clone(), log.owner.clone());
        clock.sleep_until(clock.now() + REPORT_DELAY).await;

        let mut waiting = WaitDisplay::begin(*self.output, self.store);
        let is_repeated = waiting.is_repeated() || log.has_destination();
        if !is_repeated && !waiting.is_shown() {
            // The queries would load the store without being displayed.
            return std::future::pending().await;
        }
        self.progress.read_queue(is_repeated.then_some(QUERY_INTERVAL));
        // The first line should show the holder of the lock.
        let limit = clock.now() + REPORT_DELAY;
        while self.progress.queue().is_none() && clock.now() < limit {
            clock.sleep_until(clock.now() + FRAME_INTERVAL / 4).await;
        }
        let mut logged_position = None;
        loop {
            let status = self.progress.queue();
            log_position(log, status.as_ref(), &owner, &mut logged_position);
            let outage = self.progress.outage();
            // A slot and the turnstile of a semaphore are shown as the semaphore.
            let awaited =
                status.as_ref().map(|status| &status.name).filter(|name| name.semaphore().is_none());
            let name = awaited.unwrap_or(&main);
            let state = self.state(name, status.as_ref().map(|status| (status, &owner)));
            waiting.show(&outage.iter().fold(state, |state, outage| state.during(outage)));
            clock.sleep_until(clock.now() + FRAME_INTERVAL).await;
        }
    }

    fn state<'s>(&self, name: &'s LockName, status: Option<(&'s LockStatus, &'s OwnerId)>) -> WaitState<'s> {
        WaitState::new(name, status, SystemClock.now().since(self.started_at), self.limit)
    }
}

fn log_position(
    log: &mut StatusLog,
    status: Option<&LockStatus>,
    owner: &OwnerId,
    logged: &mut Option<(LockName, usize)>,
) {
    let now = status.and_then(|status| Some((status.name.clone(), status.queue_position(owner)?)));
    if let Some((name, position)) = now.as_ref().filter(|_| now != *logged) {
        log.queued(name, *position);
        *logged = now;
    }
}
