//! The records of jobs in both stores.
//!
//! A record counts by its version, which begins with the fencing token: the greater one of the two is the later one, because tokens grow over
//! the steps. A job that runs is recorded in both stores before its work begins. A record that only one store has, of a process of another
//! step, is copied to the other one when it is read: a job that is called at least once by a process of step 2 is known in both stores, also if it
//! was not due.
//!
//! 1. P, of step 1, has run the job in this period: the old store has the record. Q, of step 2, reads both, copies it, and skips the job.
//! 2. R, of step 3, reads the new store alone, and skips the job, too.
//! 3. In the next period R runs the job. The new store refuses a record with a smaller token than that of the copy, so its tokens are raised
//!    before the copy is written.
//! 4. Q is killed between the two writes of a record: the one that is missing is copied by the next read.

use std::sync::Arc;

use async_trait::async_trait;

use super::tokens::Tokens;
use crate::{
    KeepRecord, LockName, Mode, Record, Request, Result, Store, StoredRecord,
    once::{LastRun, keep_after},
};

#[derive(Debug)]
pub(super) struct RecordBoth {
    old: Arc<dyn KeepRecord>,
    new: Arc<dyn KeepRecord>,
    tokens: Tokens,
}

impl RecordBoth {
    /// Returns the interface if both stores have it.
    pub(super) fn of(old: &Store, new: &Store, tokens: Tokens) -> Option<Arc<dyn KeepRecord>> {
        Some(Arc::new(Self { old: old.records.clone()?, new: new.records.clone()?, tokens }))
    }

    /// Copies `record` to the store that lacks it.
    async fn copy(&self, name: &LockName, record: &Record, to_new: bool) -> Result<()> {
        // The caller refuses a record in an unknown format.
        let Some(run) = LastRun::from_record(record) else { return Ok(()) };
        let (raise, records) = match to_new {
            true => (&self.tokens.new, &self.new),
            false => (&self.tokens.old, &self.old),
        };
        let keep = keep_after(&run);
        raise.raise(&Request::new(name.clone(), Mode::Exclusive, keep), record.version.token).await?;
        records.write_record(name, record, keep).await
    }
}

#[async_trait]
impl KeepRecord for RecordBoth {
    async fn read_record(&self, name: &LockName) -> Result<StoredRecord> {
        let (old, new) = (self.old.read_record(name).await?, self.new.read_record(name).await?);
        let version = |stored: &StoredRecord| stored.record.as_ref().map(|record| record.version);
        let is_in_old = version(&old) >= version(&new);
        let (later, earlier) = if is_in_old { (&old, &new) } else { (&new, &old) };
        if let Some(record) = later.record.as_ref().filter(|_| version(later) != version(earlier)) {
            self.copy(name, record, is_in_old).await?;
        }
        Ok(StoredRecord { record: later.record.clone(), now: old.now })
    }

    async fn write_record(&self, name: &LockName, record: &Record, keep: std::time::Duration) -> Result<()> {
        self.old.write_record(name, record, keep).await?;
        self.new.write_record(name, record, keep).await
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{Stores, stores, token},
        *,
    };
    use crate::{Locks, OnceOutcome};

    /// Calls the daily job, and returns true if it was run.
    async fn was_due(store: &Store) -> bool {
        let job = Locks::new(store.clone()).once("job");
        matches!(job.run(async |_| Ok::<_, &str>(())).await.unwrap(), OnceOutcome::Succeeded(()))
    }

    /// Raises the tokens of a store, so that those of the other one are smaller.
    async fn draw_tokens(store: &Store) {
        for _ in 0..9 {
            token(store).await;
        }
    }

    #[tokio::test]
    async fn a_job_runs_once_per_period_in_a_fleet_that_moves() {
        let Stores { old, new, both } = stores();
        draw_tokens(&old).await;
        assert!(was_due(&old).await);
        // The first call through both copies the record, although the job is not due.
        assert!(!was_due(&both).await);
        assert!(!was_due(&new).await);
        // The tokens of the new store continue after that of the record.
        let last = Locks::new(new.clone()).once("job").last_run().await.unwrap().unwrap();
        assert!(token(&new).await > last.token);
    }

    #[tokio::test]
    async fn a_job_that_runs_in_both_stores_is_recorded_in_both() {
        let Stores { old, new, both } = stores();
        draw_tokens(&new).await;
        assert!(was_due(&both).await);
        assert!(!was_due(&old).await && !was_due(&new).await && !was_due(&both).await);
    }

    #[tokio::test]
    async fn a_fleet_that_moves_back_knows_the_jobs_of_the_new_store() {
        let Stores { old, new, both } = stores();
        draw_tokens(&new).await;
        assert!(was_due(&new).await);
        assert!(!was_due(&both).await);
        assert!(!was_due(&old).await);
    }
}
