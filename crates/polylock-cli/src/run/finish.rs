//! The end of a run: the release, and the verdict.

use std::{os::unix::process::ExitStatusExt, time::Duration};

use polylock::{Clock, Error, LockName, Locks, LostReason, Moment, MultiGuard, SystemClock};
use rustix::process::Signal;

use super::{status_log::StatusLog, supervise::EndedCommand, timeline::StopCause, wait::REPORT_DELAY};
use crate::{
    args::Run,
    exit::{MAX_HOLD, SIGNAL},
    output::{EventKind, Output, rounded},
    signals::{self, Signals},
};

/// The time limit of a release, or of leaving the queue, after which polylock ends without its confirmation.
pub(super) const RELEASE_TIMEOUT: Duration = Duration::from_secs(4);
/// The time limit of the query for the holder that is reported.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The verdict of a run, for the last line of the status file.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) name: &'static str,
    pub(super) code: u8,
    pub(super) reason: Option<String>,
    /// True if polylock ends with this run, also in an election: a signal has requested that, or a process of the command is still alive.
    pub(super) is_final: bool,
}

impl Verdict {
    fn new(name: &'static str, code: u8) -> Self {
        Self { name, code, reason: None, is_final: false }
    }

    fn with_reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Returns the verdict of a run without a command, because none is needed.
    pub(super) fn skipped(reason: impl Into<String>) -> Self {
        Self::new("skipped", 0).with_reason(reason)
    }

    /// Returns the verdict of a wait that a signal ended.
    pub(super) fn interrupted(signal: Signal) -> Self {
        Self::new("interrupted", signals::exit_code(signal.as_raw())).with_reason(signals::name(signal))
    }
}

/// Releases the locks after the end of the command, or leaves them to expire, and returns the verdict.
pub(super) async fn finish(
    run: &Run,
    output: &Output,
    log: &mut StatusLog,
    guard: MultiGuard,
    ended: EndedCommand,
    min_left: Duration,
    signals: &mut Signals,
) -> Verdict {
    let EndedCommand { status, cause, survivor, signals: mut received } = ended;
    // The terminal sends Ctrl-C both to the command and to polylock: that does not end the wait for the release.
    received.extend(signals.take_received().await);
    // A command may treat a hang-up as a request to read its settings again.
    let is_ended_by = |signal: &Signal| *signal != Signal::HUP || status.signal() == Some(signal.as_raw());
    let is_final = survivor.is_some() || received.iter().any(is_ended_by);
    let lost = |reason: String| {
        if let Some(code) = status.code() {
            output.detail(format!("the command exited with {code}"));
        }
        let reason = survivor.iter().fold(reason, |reason, survivor| format!("{reason}; {survivor}"));
        Verdict { is_final, ..Verdict::new("lost", run.lost_exit_code).with_reason(reason) }
    };
    if let Some(cause) = cause.as_ref().filter(|cause| cause.is_loss()) {
        let verdict = lost(match cause {
            StopCause::Lost(reason) => reason.to_string(),
            StopCause::NotRenewed | StopCause::MaxHold => "no renewal was acknowledged in time".to_owned(),
        });
        // A broken lock goes to the next holder now; an expired hold may still exist in the store.
        tokio::time::timeout(RELEASE_TIMEOUT, guard.release()).await.ok();
        return verdict;
    }
    let released = if min_left.is_zero() {
        release(guard, output, log, signals).await
    } else {
        release_after(min_left, guard, output, log, signals).await
    };
    let is_final = match released {
        Ok(interrupted) => is_final || interrupted.is_some(),
        // Another process may have held the lock while the command was still running.
        Err(Lost { name, reason }) => {
            log.lost(&name, &reason);
            output.alert(format!("lock {name} lost: {reason}; the command has ended"));
            return lost(reason.to_string());
        }
    };
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, Some(signal)) => signals::exit_code(signal),
        (None, None) => SIGNAL,
    };
    match cause {
        Some(_) => {
            let reason = "the command was stopped at the end of --max-hold".to_owned();
            let reason = survivor.iter().fold(reason, |reason, survivor| format!("{reason}; {survivor}"));
            Verdict::new("max_hold", MAX_HOLD).with_reason(reason)
        }
        None => Verdict { is_final, ..Verdict::new("command", code) },
    }
}

/// A lock that was lost before its release.
struct Lost {
    name: LockName,
    reason: LostReason,
}

/// Releases the lock, and waits for the confirmation until a signal comes, which it returns.
async fn release(
    guard: MultiGuard,
    output: &Output,
    log: &mut StatusLog,
    signals: &mut Signals,
) -> Result<Option<Signal>, Lost> {
    let name = log.names.to_string();
    let (outcome, interrupted) = tokio::select! {
        biased;
        outcome = tokio::time::timeout(RELEASE_TIMEOUT, guard.release()) => (outcome.ok(), None),
        signal = signals.next_termination() => (None, Some(signal)),
    };
    match outcome {
        Some(Ok(())) => log.write(EventKind::Released),
        Some(Err(Error::Lost { name, reason })) => return Err(Lost { name, reason }),
        Some(Err(_)) | None => {
            output.note(format!(
                "the release of lock {name} was not confirmed; the lock is free at the end of its lease at the latest"
            ));
        }
    }
    Ok(interrupted)
}

/// Lets the lock expire at the end of `--min-hold`, and waits only if the store needs this process for that. Returns the signal that ends this.
async fn release_after(
    delay: Duration,
    guard: MultiGuard,
    output: &Output,
    log: &mut StatusLog,
    signals: &mut Signals,
) -> Result<Option<Signal>, Lost> {
    let (name, end) = (log.names.to_string(), SystemClock.now() + delay);
    let left = || end.since(SystemClock.now());
    let mut release = std::pin::pin!(guard.release_after(delay));
    let mut report_at = SystemClock.now() + REPORT_DELAY;
    loop {
        tokio::select! {
            biased;
            outcome = &mut release => {
                match outcome {
                    Ok(()) if left().is_zero() => log.write(EventKind::Released),
                    Ok(()) => log.expires(left()),
                    Err(Error::Lost { name, reason }) => return Err(Lost { name, reason }),
                    Err(_) => output.note(format!("lock {name} may be free before the end of --min-hold: the store did not respond")),
                }
                return Ok(None);
            }
            signal = signals.next_termination() => {
                let (text, left) = (signals::name(signal), rounded(left()));
                output.note(format!("{text}: lock {name} is released {left} before the end of --min-hold"));
                return Ok(Some(signal));
            }
            () = SystemClock.sleep_until(report_at) => {
                output.note(format!("the command has ended; lock {name} is kept for another {} (--min-hold)", rounded(left())));
                report_at = Moment::NEVER;
            }
        }
    }
}

/// Reports the holder of the lock.
pub(super) async fn not_acquired(
    run: &Run,
    locks: &Locks,
    output: &Output,
    log: &StatusLog,
    error: &Error,
) -> Verdict {
    let name = if let Error::NotAcquired { name, .. } = error { name } else { log.names.main() };
    let status = tokio::time::timeout(INSPECT_TIMEOUT, locks.inspect(name)).await;
    let status = status.ok().and_then(Result::ok);
    let holder =
        status.and_then(|status| status.holders.into_iter().next()).map_or_else(String::new, |holder| {
            let label = if holder.label.is_empty() { String::new() } else { format!(" ({})", holder.label) };
            format!("; the holder is {}{label}", holder.owner)
        });
    let text = format!("{error}{holder}");
    if run.skip_ok {
        output.detail(&text);
        return Verdict::skipped(text);
    }
    output.note(&text);
    Verdict::new("busy", run.waiting.conflict_exit_code).with_reason(text)
}
