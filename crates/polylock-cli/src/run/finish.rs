//! The end of a run: the release, and the verdict.

use std::{os::unix::process::ExitStatusExt, time::Duration};

use polylock::{Clock, Error, Guard, Locks, Moment, SystemClock};
use rustix::process::Signal;

use super::{status_log::StatusLog, supervise::Ended, timeline::Why};
use crate::{
    args::Run,
    exit::SIGNAL,
    output::{Output, What},
    signals,
};

/// How long a release, or leaving the queue, may take before polylock goes without its confirmation.
pub(super) const FAREWELL: Duration = Duration::from_secs(5);

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
        match tokio::time::timeout(FAREWELL, guard.release()).await {
            Ok(Ok(())) => {
                log.write(What::Released);
                Ok(())
            }
            Ok(Err(error @ Error::Lost { .. })) => Err(error),
            Ok(Err(_)) | Err(_) => {
                output.note(format!(
                    "the release of lock {name} was not confirmed; it ends with its lease at the latest"
                ));
                Ok(())
            }
        }
    } else {
        keep_until(&guard, SystemClock.now() + min_left).await;
        log.held(What::Expired, &guard);
        guard.leave_to_expire()
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
            Verdict::new("max_hold", code).because(reason)
        }
        None => Verdict::new("command", code),
    }
}

/// Waits, if the lease will have run out by `end`, for the renewal that makes it a whole one: the first one of a lock that
/// was handed over is short.
async fn keep_until(guard: &Guard, end: Moment) {
    loop {
        let renewed = guard.renewed();
        let left = guard.remaining();
        // The store's own count ends a margin after the deadline, and began a round trip after this one's.
        if end.since(SystemClock.now()) <= left + left / 32 {
            return;
        }
        if renewed.await.is_none() {
            return;
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
    let status = locks.inspect(&log.name).await.ok();
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
