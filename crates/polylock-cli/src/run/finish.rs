//! The end of a run: the release, and the verdict.

use std::{os::unix::process::ExitStatusExt, time::Duration};

use polylock::{Clock, Error, Guard, Locks, Moment, SystemClock};
use rustix::process::Signal;

use super::{status_log::StatusLog, supervise::Ended, timeline::Why, wait::SILENT};
use crate::{
    args::Run,
    exit::{MAX_HOLD, SIGNAL},
    output::{Output, What, rounded},
    signals::{self, Signals},
};

/// How long a release, or leaving the queue, may take before polylock goes without its confirmation.
pub(super) const FAREWELL: Duration = Duration::from_secs(4);
/// How long the search for the holder may take that is reported.
const LOOK: Duration = Duration::from_secs(1);

/// How a run ended, for the last line of the status file.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) word: &'static str,
    pub(super) code: u8,
    pub(super) reason: Option<String>,
}

impl Verdict {
    fn new(word: &'static str, code: u8) -> Self {
        Self { word, code, reason: None }
    }

    fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// A signal ended the wait.
    pub(super) fn interrupted(signal: Signal) -> Self {
        Self::new("interrupted", signals::exit_code(signal.as_raw())).because(signals::name(signal))
    }
}

/// After the command: releases the lock, or leaves it to expire, and judges.
pub(super) async fn finish(
    run: &Run,
    output: &Output,
    log: &mut StatusLog,
    guard: Guard,
    ended: Ended,
    min_left: Duration,
    signals: &mut Signals,
) -> Verdict {
    let Ended { status, why, alive } = ended;
    let lost = |reason: String| {
        if let Some(code) = status.code() {
            output.detail(format!("the command exited with {code}"));
        }
        let reason = alive.iter().fold(reason, |reason, alive| format!("{reason}; {alive}"));
        Verdict::new("lost", run.lost_exit_code).because(reason)
    };
    if let Some(why) = why.as_ref().filter(|why| why.is_loss()) {
        let verdict = lost(match why {
            Why::Lost(reason) => reason.to_string(),
            Why::RunsOut | Why::MaxHold => "no renewal was acknowledged in time".to_owned(),
        });
        // A lock that was broken goes to the next holder now, one that ran out may still be ours.
        tokio::time::timeout(FAREWELL, guard.release()).await.ok();
        return verdict;
    }
    let name = guard.name().clone();
    let released = if min_left.is_zero() {
        release(guard, output, log, signals).await
    } else {
        release_after(min_left, guard, output, log, signals).await
    };
    if let Err(Error::Lost { reason, .. }) = released {
        // Another may have held it while the command still ran.
        log.lost(&reason);
        output.warn(format!("lock {name} lost: {reason}; the command has ended"));
        return lost(reason.to_string());
    }
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, Some(signal)) => signals::exit_code(signal),
        (None, None) => SIGNAL,
    };
    match why {
        Some(_) => {
            let reason = "held for as long as --max-hold allows".to_owned();
            let reason = alive.iter().fold(reason, |reason, alive| format!("{reason}; {alive}"));
            Verdict::new("max_hold", MAX_HOLD).because(reason)
        }
        None => Verdict::new("command", code),
    }
}

/// Releases the lock, and waits for the confirmation until a signal comes.
async fn release(
    guard: Guard,
    output: &Output,
    log: &mut StatusLog,
    signals: &mut Signals,
) -> Result<(), Error> {
    let name = guard.name().clone();
    // The terminal sends Ctrl-C to the command and to polylock.
    signals.forget().await;
    let outcome = tokio::select! {
        biased;
        outcome = tokio::time::timeout(FAREWELL, guard.release()) => outcome.ok(),
        _ = signals.next_end() => None,
    };
    match outcome {
        Some(Ok(())) => log.write(What::Released),
        Some(Err(error @ Error::Lost { .. })) => return Err(error),
        Some(Err(_)) | None => {
            output.note(format!(
                "the release of lock {name} was not confirmed; it ends with its lease at the latest"
            ));
        }
    }
    Ok(())
}

/// Has the lock released when `--min-hold` is over, and waits only if the store needs this process for that.
async fn release_after(
    delay: Duration,
    guard: Guard,
    output: &Output,
    log: &mut StatusLog,
    signals: &mut Signals,
) -> Result<(), Error> {
    let (name, end) = (guard.name().clone(), SystemClock.now() + delay);
    let left = || end.since(SystemClock.now());
    signals.forget().await;
    let mut parting = std::pin::pin!(guard.release_after(delay));
    let mut announce_at = SystemClock.now() + SILENT;
    loop {
        tokio::select! {
            biased;
            outcome = &mut parting => {
                match outcome {
                    Ok(()) if left().is_zero() => log.write(What::Released),
                    Ok(()) => log.expires(left()),
                    Err(error @ Error::Lost { .. }) => return Err(error),
                    Err(_) => output.note(format!("lock {name} may be free before the time of --min-hold: the store did not answer")),
                }
                return Ok(());
            }
            signal = signals.next_end() => {
                let (signal, left) = (signals::name(signal), rounded(left()));
                output.note(format!("{signal}: lock {name} is released {left} before the time of --min-hold"));
                return Ok(());
            }
            () = SystemClock.sleep_until(announce_at) => {
                output.note(format!("the command has ended; lock {name} is kept for another {} (--min-hold)", rounded(left())));
                announce_at = Moment::NEVER;
            }
        }
    }
}

/// Reports who has the lock.
pub(super) async fn not_acquired(
    run: &Run,
    locks: &Locks,
    output: &Output,
    log: &StatusLog,
    error: &Error,
) -> Verdict {
    let status = tokio::time::timeout(LOOK, locks.inspect(&log.name)).await;
    let status = status.ok().and_then(Result::ok);
    let holder =
        status.and_then(|status| status.holders.into_iter().next()).map_or_else(String::new, |holder| {
            let label = if holder.label.is_empty() { String::new() } else { format!(" ({})", holder.label) };
            format!("; {}{label} has it", holder.owner)
        });
    let text = format!("{error}{holder}");
    if run.skip_ok {
        output.detail(&text);
        return Verdict::new("skipped", 0).because(text);
    }
    output.note(&text);
    Verdict::new("busy", run.conflict_exit_code).because(text)
}
