//! The supervision of the command while the lock is held: forwards signals, sends deadlines to the warden, and stops the command.

use std::{
    collections::HashSet, io, os::unix::process::ExitStatusExt, pin::Pin, process::ExitStatus, time::Duration,
};

use polylock::{Clock, Error, LockName, LostReason, Moment, MultiGuard, SystemClock};
use rustix::process::{Pid, Signal};

use super::{
    processes::{Remaining, unkillable},
    status_log::StatusLog,
    timeline::{Lease, Stop, StopCause, Timeline},
    warden::{Report, Warden},
};
use crate::{
    args::OnLost,
    output::{EventKind, Output, rounded},
    signals::{self, Signals},
};

/// The time of the first search for the processes of the command. Each next search comes after twice the time, until renewals trigger
/// them.
const FIRST_SEARCH: Duration = Duration::from_millis(100);
/// The interval between searches for the processes of a stopped command.
const SEARCH_INTERVAL: Duration = Duration::from_millis(20);
/// The same interval if the processes can't be killed.
const UNKILLABLE_INTERVAL: Duration = Duration::from_millis(500);
/// The time for which a signal to polylock does not end the wait for killed processes.
const MIN_KILL_WAIT: Duration = Duration::from_secs(1);

/// A command under its locks.
pub(super) struct Supervision<'a> {
    pub(super) guard: &'a MultiGuard,
    pub(super) warden: &'a mut Warden,
    pub(super) timeline: Timeline,
    /// The signal that requests the command to stop.
    pub(super) signal: Signal,
    /// The signals that the terminal sends to the command directly.
    pub(super) from_terminal: &'static [Signal],
    pub(super) output: &'a Output,
    pub(super) log: &'a mut StatusLog,
    pub(super) reported: Reported,
    /// The signals that have requested polylock to end while the command ran, each once.
    pub(super) received: Vec<Signal>,
}

/// Reports that are made only once.
#[derive(Debug, Default)]
pub(super) struct Reported {
    unkillable: HashSet<Pid>,
    survivor: bool,
    stop: bool,
}

/// The end of a command.
#[derive(Debug)]
pub(super) struct EndedCommand {
    pub(super) status: ExitStatus,
    /// The reason why it was stopped, or would have been stopped.
    pub(super) cause: Option<StopCause>,
    /// The text about a process that was to be stopped and is still alive.
    pub(super) survivor: Option<String>,
    /// The signals that have requested polylock to end meanwhile.
    pub(super) signals: Vec<Signal>,
}

impl Supervision<'_> {
    /// Returns when the command and, if it was stopped, all its processes have ended.
    ///
    /// # Errors
    /// If there is no warden any more.
    pub(super) async fn run(&mut self, signals: &mut Signals) -> io::Result<EndedCommand> {
        let clock = SystemClock;
        let mut lost = Some(Box::pin(self.guard.lost()));
        let mut renewed = Some(Box::pin(self.guard.renewed()));
        let mut lease = self.timeline.first_lease(clock.now(), self.guard.deadline());
        let mut loss = None;
        let mut stop: Option<Stop> = None;
        // The time of the next kill: a process may have started another one just before it was killed.
        let mut next_kill: Option<Moment> = None;
        let mut search_delay = FIRST_SEARCH;
        let mut search_at = clock.now() + search_delay;

        let status = loop {
            let kill_at = self.kill_at(stop.as_ref(), lease);
            self.warden.kill_at(kill_at).await?;
            let next = match &stop {
                None => self.timeline.next_check(lease).min(search_at),
                Some(_) => next_kill.unwrap_or(kill_at),
            };
            tokio::select! {
                biased;
                // Polled first: after a pause of this process, the loss takes precedence.
                (name, reason) = once(&mut lost) => {
                    lost = None;
                    if let Some(new) = self.timeline.stop_after_loss(clock.now(), reason.clone()) {
                        let kill_at = stop.as_ref().map_or(new.kill_at, |stop| stop.kill_at.min(new.kill_at));
                        if stop.is_none() && self.timeline.on_lost == OnLost::Term {
                            self.warden.tree().signal_all(self.signal);
                        }
                        stop = Some(Stop { kill_at, ..new });
                    }
                    self.report_loss(&name, &reason, true);
                    loss = Some(StopCause::Lost(reason));
                }
                report = self.warden.next() => if let Some(status) = self.handle(report?) {
                    break status;
                },
                renewal = once(&mut renewed) => {
                    // Registered again before the deadline is read, so that no renewal is missed; not after the last one.
                    renewed = renewal.map(|_| Box::pin(self.guard.renewed()));
                    if self.guard.is_held() {
                        lease = self.timeline.renewed_lease(self.guard.deadline());
                        self.log.write_hold(EventKind::Renewed, self.guard);
                        self.warden.search().await?;
                    }
                }
                signal = signals.next() => self.forward(signal),
                () = clock.sleep_until(next) => match &stop {
                    Some(_) => next_kill = Some(clock.now() + kill_interval(&self.kill())),
                    None => {
                        stop = self.timeline.due(clock.now(), lease);
                        if let Some(stop) = &stop {
                            self.begin_stop(stop);
                        } else if clock.now() >= search_at {
                            self.warden.search().await?;
                            search_delay *= 2;
                            // From then on each renewal triggers a search.
                            search_at = if search_delay < self.guard.remaining() / 2 {
                                clock.now() + search_delay
                            } else {
                                Moment::NEVER
                            };
                        }
                    }
                },
            }
        };

        if loss.is_none() && stop.is_none() {
            (loss, stop) = self.missed_loss(status);
        }
        let survivor = match &stop {
            Some(stop) => self.finish_stop(self.kill_at(Some(stop), lease), lease, signals).await,
            None => None,
        };
        let signals = std::mem::take(&mut self.received);
        Ok(EndedCommand { status, cause: loss.or(stop.map(|stop| stop.cause)), survivor, signals })
    }

    /// Forwards a signal to the command.
    fn forward(&mut self, signal: Signal) {
        if signals::is_termination(signal) && !self.received.contains(&signal) {
            self.received.push(signal);
        }
        if !self.from_terminal.contains(&signal) {
            self.warden.tree().forward(signal);
        }
    }

    /// Returns the time at which the processes of the command are killed.
    fn kill_at(&self, stop: Option<&Stop>, lease: Lease) -> Moment {
        stop.map_or(Moment::NEVER, |stop| stop.kill_at).min(self.timeline.kill_at(lease.deadline))
    }

    /// Handles an event of the warden. Returns the status of the command if it has ended.
    fn handle(&mut self, report: Report) -> Option<ExitStatus> {
        match report {
            Report::Ended(status) => return Some(status),
            Report::SearchTook(duration) => {
                if let Some(needed) = self.timeline.record_search(duration) {
                    self.output.alert(format!(
                        "stopping the command may take {} on this machine, but only {} of the TTL are reserved for it: the next \
                         holder of lock {} may start before the command has stopped; use a longer --ttl",
                        rounded(needed),
                        rounded(self.timeline.max_kill_time()),
                        self.log.names
                    ));
                }
            }
            Report::Stopped(signal) => self.report_stopped(signal),
            Report::Refused(process, user) => self.report_refused(process, user),
            Report::Replaced => {
                self.output.alert("the warden of the command was killed; another one was started");
            }
        }
        None
    }

    fn begin_stop(&self, stop: &Stop) {
        let what = match stop.cause {
            StopCause::MaxHold => format!("lock {} was held for the time of --max-hold", self.log.names),
            StopCause::NotRenewed | StopCause::Lost(_) => {
                format!("lock {} can't be renewed and may be lost", self.log.names)
            }
        };
        if stop.cause.is_loss() && self.timeline.on_lost == OnLost::Kill {
            self.output.alert(format!("{what}; killing the command"));
            return;
        }
        self.warden.tree().signal_all(self.signal);
        let (signal, remaining) = (signals::name(self.signal), stop.kill_at.since(SystemClock.now()));
        self.output
            .alert(format!("{what}; sending {signal} to the command, and SIGKILL in {}", rounded(remaining)));
    }

    fn report_loss(&mut self, name: &LockName, reason: &LostReason, runs: bool) {
        self.log.lost(name, reason);
        let then = match self.timeline.on_lost {
            _ if !runs => "the command has ended",
            OnLost::Term => "stopping the command",
            OnLost::Kill => "killing the command",
            OnLost::Continue => "the command continues without it",
        };
        self.output.alert(format!("lock {name} lost: {reason}; {then}"));
    }

    /// Reports that a terminal has stopped a background command that tried to use it.
    fn report_stopped(&mut self, signal: i32) {
        let by_terminal = [Signal::TTIN, Signal::TTOU].iter().any(|terminal| terminal.as_raw() == signal);
        if by_terminal && !std::mem::replace(&mut self.reported.stop, true) {
            self.output.alert(format!(
                "the terminal stopped the command because it tried to use the terminal in the background; lock {} is still \
                 held; use --foreground",
                self.log.names
            ));
        }
    }

    fn report_refused(&mut self, process: Pid, user: Option<u32>) {
        if self.reported.unkillable.insert(process) && self.timeline.on_lost != OnLost::Continue {
            let problem = unkillable(process, user);
            self.output.alert(format!(
                "{problem}: if lock {} is lost, it continues beside the next holder; run polylock as that user",
                self.log.names
            ));
            self.log.write_with_reason(EventKind::Unkillable, problem);
        }
    }

    /// Kills all processes of the command and returns those that are left.
    fn kill(&mut self) -> Remaining {
        self.warden.check_end_of_command();
        let remaining = self.warden.tree().kill();
        for process in &remaining.refused {
            self.report_refused(process.id(), process.user());
        }
        if let Some(process) = remaining.refused.first()
            && !std::mem::replace(&mut self.reported.survivor, true)
        {
            let then = if self.guard.is_held() {
                "the lock is kept until it has ended"
            } else {
                "the next holder of the lock may run beside it"
            };
            let process = unkillable(process.id(), process.user());
            self.output.alert(format!("the command is still alive: {process}; {then}: kill it as that user"));
        }
        remaining
    }

    /// Kills all processes and waits until they have ended.
    pub(super) async fn kill_all(&mut self) {
        loop {
            let remaining = self.kill();
            if remaining.dying.is_empty() {
                return;
            }
            SystemClock.sleep_until(SystemClock.now() + SEARCH_INTERVAL).await;
        }
    }

    /// Waits until all processes of the command have ended, and kills them at `kill_at`: the release that follows admits other holders.
    ///
    /// While the lock is held, this waits without limit for a process that can't be killed or does not end. If the lock is lost, it waits
    /// until the end of the lease, or until a signal requests polylock to end. Then it returns a text about the process.
    async fn finish_stop(&mut self, kill_at: Moment, lease: Lease, signals: &mut Signals) -> Option<String> {
        let clock = SystemClock;
        while clock.now() < kill_at {
            if self.warden.tree().has_ended() {
                return None;
            }
            tokio::select! {
                biased;
                signal = signals.next() => self.forward(signal),
                () = clock.sleep_until(kill_at.min(clock.now() + SEARCH_INTERVAL)) => {}
            }
        }
        loop {
            let remaining = self.kill();
            if remaining.is_empty() {
                return None;
            }
            let now = clock.now();
            let is_over = now >= lease.deadline && !self.guard.is_held();
            let termination = async {
                match now >= kill_at + MIN_KILL_WAIT {
                    true => drop(signals.next_termination().await),
                    false => std::future::pending().await,
                }
            };
            let is_interrupted = tokio::select! {
                biased;
                () = termination => true,
                () = clock.sleep_until(if is_over { now } else { now + kill_interval(&remaining) }) => false,
            };
            if is_over || is_interrupted {
                let refused =
                    remaining.refused.first().map(|process| unkillable(process.id(), process.user()));
                return Some(
                    refused.unwrap_or_else(|| "a process that was killed has not ended yet".to_owned()),
                );
            }
        }
    }

    /// Returns the loss of a lock that was lost before the end of the command was read, for instance while this process was stopped, and
    /// the stop of the processes that the command has left.
    fn missed_loss(&mut self, status: ExitStatus) -> (Option<StopCause>, Option<Stop>) {
        let now = SystemClock.now();
        if let Err(Error::Lost { name, reason }) = self.guard.ensure_held() {
            self.report_loss(&name, &reason, false);
            let stop = (self.timeline.on_lost != OnLost::Continue)
                .then(|| Stop { cause: StopCause::Lost(reason.clone()), kill_at: now });
            return (Some(StopCause::Lost(reason)), stop);
        }
        // The warden has killed the command just before the lease was renewed.
        let by_warden = status.signal() == Some(Signal::KILL.as_raw()) && self.warden.has_killed();
        (None, by_warden.then_some(Stop { cause: StopCause::NotRenewed, kill_at: now }))
    }
}

/// Returns the time until the next kill of the remaining processes.
fn kill_interval(remaining: &Remaining) -> Duration {
    if remaining.dying.is_empty() { UNKILLABLE_INTERVAL } else { SEARCH_INTERVAL }
}

/// Waits for `future`, or for ever if it has already completed.
async fn once<F: Future>(future: &mut Option<Pin<Box<F>>>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
