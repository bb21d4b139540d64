//! The last run of a job, as its record in the store states it.

use std::time::Duration;

use super::period::Period;
use crate::{FencingToken, OwnerId, Record, owner::sanitized};

/// The first word of a record: the format.
const FORMAT: &str = "1";

/// The last run of a job, from [`Once::last_run`](crate::Once::last_run). All times are those of the store, since 1970 in UTC.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastRun {
    /// The token of the run.
    pub token: FencingToken,
    /// The owner, which contains the host by default.
    pub owner: OwnerId,
    /// The label; empty if there is none.
    pub label: String,
    /// The number of the attempt in its period, from 1.
    pub attempt: u32,
    /// The begin of the run.
    pub started_at: Duration,
    /// The outcome.
    pub outcome: RunOutcome,
    /// The begin of the period of the run.
    pub period_begin: Duration,
    /// The begin of the next period, in which the job is due again, by the period of the call that has run it.
    pub next_due: Duration,
}

/// The outcome of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunOutcome {
    /// It has not reported its end: it is running, or its process has died.
    Unfinished,
    /// It has succeeded at this time.
    Succeeded {
        /// The end, by the time of the store.
        at: Duration,
    },
    /// It has failed at this time.
    Failed {
        /// The end, by the time of the store.
        at: Duration,
        /// The reason, such as an exit code: a text without control characters.
        reason: String,
    },
}

impl RunOutcome {
    /// Returns the outcome as one word: `unfinished`, `succeeded` or `failed`.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Unfinished => "unfinished",
            Self::Succeeded { .. } => "succeeded",
            Self::Failed { .. } => "failed",
        }
    }
}

impl LastRun {
    /// Returns the text of the record: fields with tabs between them, which no field contains.
    pub(super) fn to_text(&self) -> String {
        let millis = |time: Duration| time.as_millis().to_string();
        let (at, reason) = match &self.outcome {
            RunOutcome::Unfinished => (Duration::ZERO, ""),
            RunOutcome::Succeeded { at } => (*at, ""),
            RunOutcome::Failed { at, reason } => (*at, reason.as_str()),
        };
        let fields = [
            FORMAT,
            self.outcome.as_str(),
            &millis(self.period_begin),
            &millis(self.next_due),
            &self.attempt.to_string(),
            &millis(self.started_at),
            &millis(at),
            self.owner.as_str(),
            &self.label,
            reason,
        ];
        fields.join("\t")
    }

    /// Returns the run of a record; `None` if a later version of polylock, or another program, has written it.
    pub(crate) fn from_record(record: &Record) -> Option<Self> {
        let mut fields = record.text.split('\t');
        let mut next = || fields.next();
        let millis = |text: Option<&str>| text?.parse().ok().map(Duration::from_millis);
        (next()? == FORMAT).then_some(())?;
        let outcome = next()?;
        let (period_begin, next_due) = (millis(next())?, millis(next())?);
        let attempt = next()?.parse().ok()?;
        let (started_at, at) = (millis(next())?, millis(next())?);
        let (owner, label) = (OwnerId::sanitized(next()?), sanitized(next()?));
        let reason = sanitized(next()?);
        let outcome = match outcome {
            "unfinished" => RunOutcome::Unfinished,
            "succeeded" => RunOutcome::Succeeded { at },
            "failed" => RunOutcome::Failed { at, reason },
            _ => return None,
        };
        let token = record.version.token;
        Some(Self { token, owner, label, attempt, started_at, outcome, period_begin, next_due })
    }
}

/// Returns the time for which the record of `run` is kept.
pub(crate) fn keep_after(run: &LastRun) -> Duration {
    /// Beyond two periods.
    const LONGER: Duration = Duration::from_secs(24 * 3600);
    run.next_due.saturating_sub(run.period_begin) * 2 + LONGER
}

/// The decision about a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision<'a> {
    /// This attempt of the present period may run.
    Run {
        /// Its number, from 1.
        attempt: u32,
    },
    /// The job is done, or no attempt of the period is left, after this run.
    Skip(&'a LastRun),
}

/// Returns the decision in the period `present`, after `last`.
pub(super) fn decide(last: Option<&LastRun>, present: Period, retries: u32) -> Decision<'_> {
    const FIRST: Decision<'static> = Decision::Run { attempt: 1 };
    let Some(last) = last else { return FIRST };
    if last.period_begin < present.begin {
        return FIRST;
    }
    if last.period_begin > present.begin {
        // The clock of the store was set back. If that was by more than a period, it was wrong before.
        return if last.period_begin <= present.end { Decision::Skip(last) } else { FIRST };
    }
    match last.outcome {
        RunOutcome::Unfinished | RunOutcome::Failed { .. } if last.attempt <= retries => {
            Decision::Run { attempt: last.attempt + 1 }
        }
        _ => Decision::Skip(last),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RecordVersion;

    fn run(outcome: RunOutcome, begin: u64, attempt: u32) -> LastRun {
        LastRun {
            token: FencingToken::new(7).unwrap(),
            owner: OwnerId::new("host-a:12").unwrap(),
            label: "the nightly one".to_owned(),
            attempt,
            started_at: Duration::from_millis(1_500_000_000_001),
            outcome,
            period_begin: Duration::from_secs(begin),
            next_due: Duration::from_secs(begin + 10),
        }
    }

    fn outcomes() -> [RunOutcome; 3] {
        let at = Duration::from_millis(1_500_000_009_999);
        [
            RunOutcome::Unfinished,
            RunOutcome::Succeeded { at },
            RunOutcome::Failed { at, reason: "exit code 3".to_owned() },
        ]
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for outcome in outcomes() {
            let run = run(outcome, 1_500_000_000, 2);
            let version = RecordVersion { token: run.token, revision: 1 };
            let record = Record { version, text: run.to_text() };
            assert_eq!(LastRun::from_record(&record).as_ref(), Some(&run));
            let later = Record { version, text: record.text.replacen('1', "2", 1) };
            assert_eq!(LastRun::from_record(&later), None);
        }
    }

    #[test]
    fn a_job_runs_until_it_has_succeeded_or_no_attempt_is_left() {
        let present = Period { begin: Duration::from_secs(100), end: Duration::from_secs(110) };
        let first = Decision::Run { attempt: 1 };
        assert_eq!(decide(None, present, 0), first);
        let [unfinished, succeeded, failed] = outcomes();
        for outcome in [&unfinished, &succeeded, &failed] {
            let at = |begin: u64, attempt: u32| run(outcome.clone(), begin, attempt);
            assert_eq!(decide(Some(&at(90, 1)), present, 0), first, "{outcome:?}");
            for (begin, retries) in [(100, 0), (110, 5)] {
                let last = at(begin, 1);
                assert_eq!(decide(Some(&last), present, retries), Decision::Skip(&last), "{outcome:?}");
            }
            assert_eq!(decide(Some(&at(120, 1)), present, 0), first, "the clock was wrong");
        }
        for outcome in [unfinished, failed] {
            let after = |attempt: u32| run(outcome.clone(), 100, attempt);
            assert_eq!(decide(Some(&after(1)), present, 2), Decision::Run { attempt: 2 });
            assert_eq!(decide(Some(&after(2)), present, 2), Decision::Run { attempt: 3 });
            assert_eq!(decide(Some(&after(3)), present, 2), Decision::Skip(&after(3)));
        }
        let done = run(succeeded, 100, 1);
        assert_eq!(decide(Some(&done), present, 2), Decision::Skip(&done));
    }
}
