//! The job of `polylock once`: its schedule, and the record of its outcome.

use std::{
    io::{IsTerminal, stderr},
    os::unix::process::ExitStatusExt,
    time::Duration,
};

use polylock::{LastRun, Locks, Once, RunOutcome, RunReport, TimeZone};
use rustix::process::Signal;

use super::{finish::Verdict, lock_names::LockNames, supervise::EndedCommand, timeline::StopCause};
use crate::{
    exit::{Failure, USAGE},
    output::Output,
    signals::{self, Signals},
    wall_clock,
};

/// The schedule of a job.
#[derive(Debug, Clone)]
pub(super) struct Schedule {
    pub(super) every: Duration,
    pub(super) at: Duration,
    pub(super) time_zone: Option<TimeZone>,
    pub(super) retries: u32,
}

impl Schedule {
    pub(super) fn apply_to(&self, job: Once) -> Once {
        let job = job.every(self.every).at(self.at).retries(self.retries);
        self.time_zone.iter().fold(job, Once::time_zone)
    }

    /// Checks the flags of the period.
    pub(super) fn check(&self, locks: &Locks) -> Result<(), Failure> {
        let checked = self.apply_to(locks.once("any")).check();
        checked.map_err(|error| {
            Failure::new(USAGE, format!("--{}: {}", error.key.replace('_', "-"), error.problem))
        })
    }
}

/// Records the outcome of the command, until a signal comes. The record of a lost attempt stays without an end.
pub(super) async fn report(
    report: RunReport,
    ended: Result<&EndedCommand, &Failure>,
    output: &Output,
    signals: &mut Signals,
) {
    let failure = match ended {
        Err(failure) => Some(failure.message.clone()),
        Ok(ended) if ended.cause.as_ref().is_some_and(StopCause::is_loss) => return,
        Ok(ended) => match (ended.status.code(), ended.status.signal()) {
            (Some(0), _) => None,
            (Some(code), _) => Some(format!("exit code {code}")),
            (None, signal) => {
                let signal = signal.and_then(Signal::from_named_raw);
                Some(signal.map_or_else(|| "ended by a signal".to_owned(), signals::name))
            }
        },
    };
    let name = report.name().clone();
    let record = async {
        match failure {
            None => report.succeeded().await,
            Some(reason) => report.failed(&reason).await,
        }
    };
    // The terminal sends Ctrl-C both to the command and to polylock.
    signals.take_received().await;
    let problem = tokio::select! {
        biased;
        recorded = record => match recorded {
            Ok(()) => return,
            Err(error) => error.to_string(),
        },
        signal = signals.next_termination() => signals::name(signal),
    };
    output.note(format!(
        "the outcome of job {name} is not recorded, so this attempt counts as failed: {problem}"
    ));
}

/// Returns the verdict of a job that is not due.
pub(super) fn skipped(last: &LastRun, names: &LockNames, output: &Output) -> Verdict {
    let text = format!("job {names} is not due: {}", describe(last));
    // A job on many machines is skipped on most of them, and cron sends a mail for each output.
    if stderr().is_terminal() {
        output.note(&text);
    } else {
        output.detail(&text);
    }
    Verdict::skipped(text)
}

fn describe(last: &LastRun) -> String {
    let outcome = match &last.outcome {
        RunOutcome::Succeeded { .. } => "succeeded".to_owned(),
        RunOutcome::Failed { reason, .. } => format!("failed ({reason})"),
        _ => "has no recorded end".to_owned(),
    };
    format!(
        "the run of {} at {} {outcome}; the next period begins at {}",
        last.owner,
        wall_clock::at(last.started_at),
        wall_clock::at(last.next_due)
    )
}
