//! The command while the lock is held: signals passed on, deadlines passed to the warden, and the stop.

use std::{
    collections::HashSet, io, os::unix::process::ExitStatusExt, pin::Pin, process::ExitStatus, time::Duration,
};

use polylock::{Clock, Error, Guard, LostReason, Moment, SystemClock};
use rustix::process::{Pid, Signal};

use super::{
    processes::Remaining,
    status_log::StatusLog,
    timeline::{Lease, Stop, Timeline, Why},
    warden::{Report, Warden, unkillable},
};
use crate::{
    args::OnLost,
    output::{Output, What, rounded},
    signals::{self, Signals},
};

/// The first look at the processes of the command. The next ones come after twice the time each, until renewals do.
const FIRST_LOOK: Duration = Duration::from_millis(100);
/// How often a stopped command's processes are looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The same if they can't be killed.
const LOOK_AT_UNKILLABLE: Duration = Duration::from_millis(500);
/// How long killed processes may take to end before a signal to polylock ends the wait for them.
const PATIENCE: Duration = Duration::from_secs(1);

/// A command under its lock.
pub(super) struct Supervision<'a> {
    pub(super) guard: &'a Guard,
    pub(super) warden: &'a mut Warden,
    pub(super) timeline: Timeline,
    /// The signal that requests the command to stop.
    pub(super) signal: Signal,
    /// The signals that the terminal sends to the command directly.
    pub(super) from_terminal: &'static [Signal],
    pub(super) output: &'a Output,
    pub(super) log: &'a mut StatusLog,
    pub(super) reported: Reported,
}

/// Reports that are made once.
#[derive(Debug, Default)]
pub(super) struct Reported {
    unkillable: HashSet<Pid>,
    survivor: bool,
    stop: bool,
}

/// How a command ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    /// Why it was stopped, or would have been.
    pub(super) why: Option<Why>,
    /// The text for a process that was to be stopped and is still alive.
    pub(super) alive: Option<String>,
}

impl Supervision<'_> {
    /// Returns when the command and, if it was stopped, all its processes have ended.
    ///
    /// # Errors
    /// If there is no warden any more.
    pub(super) async fn until_the_end(&mut self, signals: &mut Signals) -> io::Result<Ended> {
        let clock = SystemClock;
        let mut lost = Some(Box::pin(self.guard.lost()));
        let mut renewed = Some(Box::pin(self.guard.renewed()));
        let mut lease = self.timeline.first(clock.now(), self.guard.deadline());
        let mut loss = None;
        let mut stop: Option<Stop> = None;
        // When to kill again: a process may have started another one just before it was killed.
        let mut kill_again: Option<Moment> = None;
        let mut look = FIRST_LOOK;
        let mut look_at = clock.now() + look;

        let status = loop {
            let kill_at = self.kill_at(stop.as_ref(), lease);
            self.warden.kill_at(kill_at).await?;
            let next = match &stop {
                None => self.timeline.look_at(lease).min(look_at),
                Some(_) => kill_again.unwrap_or(kill_at),
            };
            tokio::select! {
                biased;
                // Polled first: after a pause of this process, the loss counts before everything else.
                reason = once(&mut lost) => {
                    lost = None;
                    if let Some(new) = self.timeline.lost(clock.now(), reason.clone()) {
                        let kill_at = stop.as_ref().map_or(new.kill_at, |stop| stop.kill_at.min(new.kill_at));
                        if stop.is_none() && self.timeline.on_lost == OnLost::Term {
                            self.warden.tree().signal_all(self.signal);
                        }
                        stop = Some(Stop { kill_at, ..new });
                    }
                    self.report_loss(&reason, true);
                    loss = Some(Why::Lost(reason));
                }
                report = self.warden.next() => if let Some(status) = self.handle(report?) {
                    break status;
                },
                moved = once(&mut renewed) => {
                    // Again before the deadline is read, so that none is missed; never after the last.
                    renewed = moved.map(|_| Box::pin(self.guard.renewed()));
                    if self.guard.is_held() {
                        lease = self.timeline.renewed(self.guard.deadline());
                        self.log.held(What::Renewed, self.guard);
                        self.warden.look().await?;
                    }
                }
                signal = signals.next() => self.forward(signal),
                () = clock.sleep_until(next) => match &stop {
                    Some(_) => kill_again = Some(clock.now() + again_after(&self.kill())),
                    None => {
                        stop = self.timeline.due(clock.now(), lease);
                        if let Some(stop) = &stop {
                            self.begin_stop(stop);
                        } else if clock.now() >= look_at {
                            self.warden.look().await?;
                            look *= 2;
                            // From then on with each renewal.
                            look_at = if look < self.guard.remaining() / 2 { clock.now() + look } else { Moment::NEVER };
                        }
                    }
                },
            }
        };

        if loss.is_none() && stop.is_none() {
            (loss, stop) = self.missed_loss(status);
        }
        let alive = match &stop {
            Some(stop) => self.finish_stop(self.kill_at(Some(stop), lease), lease, signals).await,
            None => None,
        };
        Ok(Ended { status, why: loss.or(stop.map(|stop| stop.why)), alive })
    }

    /// Passes a signal to polylock on to the command.
    fn forward(&self, signal: Signal) {
        if !self.from_terminal.contains(&signal) {
            self.warden.tree().forward(signal);
        }
    }

    /// When the processes of the command are killed.
    fn kill_at(&self, stop: Option<&Stop>, lease: Lease) -> Moment {
        stop.map_or(Moment::NEVER, |stop| stop.kill_at).min(self.timeline.kill_at(lease.deadline))
    }

    /// Handles an event of the warden. Returns the status of the command if it has ended.
    fn handle(&mut self, report: Report) -> Option<ExitStatus> {
        match report {
            Report::Ended(status) => return Some(status),
            Report::Took(took) => {
                if let Some(needed) = self.timeline.measured(took) {
                    self.output.warn(format!(
                        "on this machine it may take {} to stop the command, and no more than {} of the TTL are left for that: \
                         the next holder of lock {} may start before it has stopped; use a longer --ttl",
                        rounded(needed),
                        rounded(self.timeline.most_for_a_kill()),
                        self.guard.name()
                    ));
                }
            }
            Report::Stopped(signal) => self.report_stopped(signal),
            Report::Refused(process, user) => self.report_refused(process, user),
            Report::Replaced => {
                self.output.warn("the warden of the command was killed; another one was started");
            }
        }
        None
    }

    fn begin_stop(&self, stop: &Stop) {
        let what = match stop.why {
            Why::MaxHold => format!("lock {} was held for as long as --max-hold allows", self.guard.name()),
            Why::RunsOut | Why::Lost(_) => {
                format!("lock {} can't be renewed and may get lost", self.guard.name())
            }
        };
        if stop.why.is_loss() && self.timeline.on_lost == OnLost::Kill {
            self.output.warn(format!("{what}; killing the command"));
            return;
        }
        self.warden.tree().signal_all(self.signal);
        let (signal, left) = (signals::name(self.signal), stop.kill_at.since(SystemClock.now()));
        self.output
            .warn(format!("{what}; asking the command to stop ({signal}), killing it in {}", rounded(left)));
    }

    fn report_loss(&mut self, reason: &LostReason, runs: bool) {
        self.log.lost(reason);
        let then = match self.timeline.on_lost {
            _ if !runs => "the command has ended",
            OnLost::Term => "asking the command to stop",
            OnLost::Kill => "killing the command",
            OnLost::Continue => "the command goes on without it",
        };
        self.output.warn(format!("lock {} lost: {reason}; {then}", self.guard.name()));
    }

    /// Reports that a terminal has stopped a command in the background that wants to use it.
    fn report_stopped(&mut self, signal: i32) {
        let by_terminal = [Signal::TTIN, Signal::TTOU].iter().any(|terminal| terminal.as_raw() == signal);
        if by_terminal && !std::mem::replace(&mut self.reported.stop, true) {
            self.output.warn(format!(
                "the command was stopped because it wants to use the terminal, and lock {} is still held; --foreground leaves \
                 it in the terminal's foreground",
                self.guard.name()
            ));
        }
    }

    fn report_refused(&mut self, process: Pid, user: Option<u32>) {
        if self.reported.unkillable.insert(process) && self.timeline.on_lost != OnLost::Continue {
            let problem = unkillable(process, user);
            self.output.warn(format!(
                "{problem}: if lock {} is lost, it goes on beside the next holder; run polylock as that user",
                self.guard.name()
            ));
            self.log.because(What::Unkillable, problem);
        }
    }

    /// Kills all processes of the command and returns those that are left.
    fn kill(&mut self) -> Remaining {
        self.warden.check();
        let left = self.warden.tree().kill();
        for process in &left.refused {
            self.report_refused(process.id(), process.user());
        }
        if let Some(process) = left.refused.first()
            && !std::mem::replace(&mut self.reported.survivor, true)
        {
            let then = if self.guard.is_held() {
                "the lock is kept until it has ended"
            } else {
                "the next holder of the lock may run beside it"
            };
            let process = unkillable(process.id(), process.user());
            self.output.warn(format!("the command is still alive: {process}; {then}"));
        }
        left
    }

    /// Kills everything and waits until it has ended.
    pub(super) async fn kill_all(&mut self) {
        loop {
            let left = self.kill();
            if left.dying.is_empty() {
                return;
            }
            SystemClock.sleep_until(SystemClock.now() + LOOK_AGAIN).await;
        }
    }

    /// Waits until all processes of the command have ended, and kills them at `kill_at`: the release that follows lets others in.
    ///
    /// A process that can't be killed, or does not end, is waited for while the lock is held; of a lost lock until the end of its
    /// lease, and not beyond a signal that requests polylock to end. Then its text is returned.
    async fn finish_stop(&mut self, kill_at: Moment, lease: Lease, signals: &mut Signals) -> Option<String> {
        let clock = SystemClock;
        while clock.now() < kill_at {
            if self.warden.tree().is_gone() {
                return None;
            }
            tokio::select! {
                biased;
                signal = signals.next() => self.forward(signal),
                () = clock.sleep_until(kill_at.min(clock.now() + LOOK_AGAIN)) => {}
            }
        }
        loop {
            let left = self.kill();
            if left.is_empty() {
                return None;
            }
            let now = clock.now();
            let is_over = now >= lease.deadline && !self.guard.is_held();
            let asked = async {
                match now >= kill_at + PATIENCE {
                    true => drop(signals.next_end().await),
                    false => std::future::pending().await,
                }
            };
            let is_asked = tokio::select! {
                biased;
                () = asked => true,
                () = clock.sleep_until(if is_over { now } else { now + again_after(&left) }) => false,
            };
            if is_over || is_asked {
                let refused = left.refused.first().map(|process| unkillable(process.id(), process.user()));
                return Some(
                    refused.unwrap_or_else(|| "a process that was killed has not ended yet".to_owned()),
                );
            }
        }
    }

    /// Returns the loss of a lock that was lost before the end of the command was read, for instance while this process was stopped,
    /// and the stop of the processes that the command has left.
    fn missed_loss(&mut self, status: ExitStatus) -> (Option<Why>, Option<Stop>) {
        let now = SystemClock.now();
        if let Err(Error::Lost { reason, .. }) = self.guard.ensure_held() {
            self.report_loss(&reason, false);
            let stop = (self.timeline.on_lost != OnLost::Continue)
                .then(|| Stop { why: Why::Lost(reason.clone()), kill_at: now });
            return (Some(Why::Lost(reason)), stop);
        }
        // The warden has killed it just before the lease was renewed.
        let by_warden = status.signal() == Some(Signal::KILL.as_raw()) && self.warden.has_killed();
        (None, by_warden.then_some(Stop { why: Why::RunsOut, kill_at: now }))
    }
}

/// When to kill again what was left.
fn again_after(left: &Remaining) -> Duration {
    if left.dying.is_empty() { LOOK_AT_UNKILLABLE } else { LOOK_AGAIN }
}

/// Waits for `future` if it is still to come.
async fn once<F: Future>(future: &mut Option<Pin<Box<F>>>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
