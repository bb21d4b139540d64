//! The command while the lock is held: signals passed on, renewals passed to the warden, and the end of it all.

use std::{io, pin::Pin, process::ExitStatus, time::Duration};

use polylock::{Clock, Error, Guard, Moment, SystemClock};
use rustix::process::Signal;
use tokio::process::Child;

use super::{
    journal::Journal,
    target::{Strays, Target},
    timeline::{Stop, Timeline, Why},
    warden::Warden,
};
use crate::{
    args::OnLost,
    output::{Output, What, milliseconds},
    signals::{self, Signals},
};

/// A command under its lock.
pub(super) struct Supervision<'a> {
    pub(super) guard: &'a Guard,
    pub(super) child: &'a mut Child,
    pub(super) target: Target,
    pub(super) warden: &'a mut Warden,
    pub(super) timeline: Timeline,
    /// What asks the command to stop.
    pub(super) signal: Signal,
    /// What the terminal sends to the command by itself.
    pub(super) from_terminal: &'static [Signal],
    pub(super) output: &'a Output,
    pub(super) journal: &'a mut Journal,
}

/// How a command ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    /// Why it was stopped, or would have been.
    pub(super) why: Option<Why>,
}

impl Supervision<'_> {
    /// Stays with the command until its end.
    pub(super) async fn until_the_end(&mut self, signals: &mut Signals) -> io::Result<Ended> {
        let clock = SystemClock;
        let mut lost = Some(Box::pin(self.guard.lost()));
        let mut renewed = Some(Box::pin(self.guard.renewed()));
        let mut lease = self.timeline.first(clock.now(), self.guard.deadline());
        let mut loss = None;
        let mut stop: Option<Stop> = None;
        let mut killed = false;
        let mut strays = Strays::default();

        let status = loop {
            let kill_at = stop
                .as_ref()
                .map_or(Moment::NEVER, |stop| stop.kill_at)
                .min(self.timeline.kill_at(lease.deadline));
            self.warden.kill_at(kill_at).await?;
            let next = match &stop {
                None => self.timeline.look_at(lease),
                Some(_) if killed => Moment::NEVER,
                Some(_) => kill_at,
            };
            tokio::select! {
                biased;
                // First: after a pause the clock has the first word.
                reason = once(&mut lost) => {
                    lost = None;
                    self.tell_loss(&reason.to_string(), true);
                    loss = Some(Why::Lost(reason.clone()));
                    if let Some(new) = self.timeline.lost(clock.now(), reason) {
                        let kill_at = stop.as_ref().map_or(new.kill_at, |stop| stop.kill_at.min(new.kill_at));
                        if stop.is_none() && self.timeline.on_lost == OnLost::Term {
                            strays = self.target.ask(self.signal);
                        }
                        stop = Some(Stop { kill_at, ..new });
                    }
                }
                status = self.child.wait() => break status?,
                moved = once(&mut renewed) => {
                    // Again before the deadline is read, so that none is missed; never after the last.
                    renewed = moved.map(|_| Box::pin(self.guard.renewed()));
                    if self.guard.is_held() {
                        lease = self.timeline.renewed(self.guard.deadline());
                        self.journal.held(What::Renewed, self.guard);
                    }
                }
                signal = signals.next() => {
                    if !self.from_terminal.contains(&signal) {
                        self.target.signal(signal);
                    }
                }
                () = clock.sleep_until(next) => match &stop {
                    Some(_) => {
                        self.target.kill();
                        killed = true;
                    }
                    None => {
                        stop = self.timeline.due(clock.now(), lease);
                        if let Some(stop) = &stop {
                            strays = self.begin_stop(stop);
                        }
                    }
                },
            }
        };

        if let Some(stop) = &stop {
            self.finish_stop(stop.kill_at.min(self.timeline.kill_at(lease.deadline)), &strays).await;
        }
        let why = loss.or(stop.map(|stop| stop.why)).or_else(|| self.missed_loss(status));
        Ok(Ended { status, why })
    }

    fn begin_stop(&self, stop: &Stop) -> Strays {
        let in_time = polylock::duration::format(Duration::from_millis(milliseconds(
            stop.kill_at.since(SystemClock.now()),
        )));
        let what = match stop.why {
            Why::MaxHold => format!("lock {} was held for as long as --max-hold allows", self.guard.name()),
            Why::RunsOut | Why::Lost(_) => {
                format!("lock {} can't be renewed and may get lost", self.guard.name())
            }
        };
        if stop.why.is_loss() && self.timeline.on_lost == OnLost::Kill {
            self.output.warn(format!("{what}; killing the command"));
            return Strays::default();
        }
        let signal = signals::name(self.signal);
        self.output.warn(format!("{what}; asking the command to stop ({signal}), killing it in {in_time}"));
        self.target.ask(self.signal)
    }

    fn tell_loss(&mut self, reason: &str, runs: bool) {
        let mut event = self.journal.event(What::Lost);
        event.reason = Some(reason.to_owned());
        self.journal.write(&event);
        let then = match self.timeline.on_lost {
            _ if !runs => "the command has ended",
            OnLost::Term => "asking the command to stop",
            OnLost::Kill => "killing the command",
            OnLost::Continue => "the command goes on without it",
        };
        self.output.warn(format!("lock {} lost: {reason}; {then}", self.guard.name()));
    }

    /// The command has ended, but perhaps not all that it started: that has its grace, too.
    async fn finish_stop(&self, kill_at: Moment, strays: &Strays) {
        const LOOK_AGAIN: Duration = Duration::from_millis(20);
        let rest = self.target.without_command();
        while SystemClock.now() < kill_at && !(rest.is_gone() && strays.are_gone()) {
            SystemClock.sleep_until(kill_at.min(SystemClock.now() + LOOK_AGAIN)).await;
        }
        rest.kill();
        strays.kill();
    }

    /// A loss that the end of the command came before, while this process was stopped for instance.
    fn missed_loss(&mut self, status: ExitStatus) -> Option<Why> {
        use std::os::unix::process::ExitStatusExt;

        if let Err(Error::Lost { reason, .. }) = self.guard.ensure_held() {
            self.tell_loss(&reason.to_string(), false);
            if self.timeline.on_lost != OnLost::Continue {
                self.target.without_command().kill();
            }
            return Some(Why::Lost(reason));
        }
        // The warden was quicker than the renewal that came after all.
        let by_warden =
            status.signal() == Some(Signal::KILL.as_raw()) && SystemClock.now() >= self.warden.deadline();
        by_warden.then_some(Why::RunsOut)
    }
}

/// Waits for it if it is still to come.
async fn once<F: Future>(future: &mut Option<Pin<Box<F>>>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
