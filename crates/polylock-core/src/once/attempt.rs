//! An attempt of a job that has begun.

use std::{fmt, sync::Arc, time::Duration};

use super::{LastRun, RunOutcome, job::Job};
use crate::{Guard, LockName, Result, engine::Hold, owner};

/// The revisions of the record, at the begin of an attempt and at its end.
pub(super) const FIRST: u32 = 1;
const SECOND: u32 = 2;

/// An attempt that this process may run now, under the lock.
#[derive(Debug)]
#[must_use = "an attempt that is dropped counts as failed"]
pub struct Attempt {
    /// The lock of the job. Release it after the outcome was recorded.
    pub guard: Guard,
    /// The record of the attempt.
    pub report: RunReport,
}

/// The record of an attempt that has begun, to which its outcome is added.
#[must_use = "an attempt whose outcome is not recorded counts as failed"]
pub struct RunReport {
    job: Job,
    run: LastRun,
    /// `None` if another process has the guard.
    hold: Option<Arc<Hold>>,
}

impl fmt::Debug for RunReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunReport").field("run", &self.run).finish_non_exhaustive()
    }
}

impl RunReport {
    pub(super) const fn new(job: Job, run: LastRun, hold: Option<Arc<Hold>>) -> Self {
        Self { job, run, hold }
    }

    /// Returns the name of the job.
    #[must_use]
    pub const fn name(&self) -> &LockName {
        self.job.name()
    }

    /// Returns the attempt, as it was recorded at its begin.
    #[must_use]
    pub const fn run(&self) -> &LastRun {
        &self.run
    }

    /// Records that the attempt has succeeded. Call it before the lock is released.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if the lock was lost or released before; [`Error::Unavailable`](crate::Error::Unavailable) if the
    /// record can't be written. The attempt then counts as failed, unless the record was written nevertheless.
    ///
    /// # Cancel safety
    /// After a drop, the outcome may or may not be recorded.
    pub async fn succeeded(self) -> Result<()> {
        self.finish(|at| RunOutcome::Succeeded { at }).await
    }

    /// Records that the attempt has failed, and the reason. Call it before the lock is released.
    ///
    /// # Errors
    /// The same as [`succeeded`](Self::succeeded).
    ///
    /// # Cancel safety
    /// The same as that of [`succeeded`](Self::succeeded).
    pub async fn failed(self, reason: &str) -> Result<()> {
        self.finish(|at| RunOutcome::Failed { at, reason: owner::sanitized(reason) }).await
    }

    async fn finish(self, outcome: impl FnOnce(Duration) -> RunOutcome) -> Result<()> {
        let Self { job, run, hold } = self;
        let (_, now) = job.read_while_held(hold.as_deref()).await?;
        job.write(hold.as_deref(), &LastRun { outcome: outcome(now), ..run }, SECOND).await
    }
}
