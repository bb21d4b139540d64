//! The record of a job in the store.

use std::{sync::Arc, time::Duration};

use super::{LastRun, last_run::keep_after};
use crate::{
    Error, Fault, KeepRecord, LockName, LostReason, Moment, Operation, Record, RecordVersion, Result,
    Unavailable,
    engine::{Hold, StoreHandle},
    io,
};

/// A job, and the interface to its record.
#[derive(Debug, Clone)]
pub(super) struct Job {
    handle: Arc<StoreHandle>,
    name: LockName,
    records: Arc<dyn KeepRecord>,
}

impl Job {
    pub(super) fn new(handle: Arc<StoreHandle>, name: &str) -> Result<Self> {
        let name = LockName::new(name)?;
        let Some(records) = handle.context.store.records.clone() else {
            return Err(Error::Unsupported {
                backend: handle.context.backend(),
                capability: "records of jobs",
            });
        };
        Ok(Self { handle, name, records })
    }

    pub(super) const fn name(&self) -> &LockName {
        &self.name
    }

    /// Reads the last run, and the time of the store, by `by` at the latest.
    pub(super) async fn read(&self, by: Moment) -> Result<(Option<LastRun>, Duration)> {
        let (record, now) = self.read_record(by).await?;
        let last = record.map(|record| LastRun::from_record(&record).ok_or_else(|| self.unreadable()));
        Ok((last.transpose()?, now))
    }

    async fn read_record(&self, by: Moment) -> Result<(Option<Record>, Duration)> {
        let (records, name) = (self.records.clone(), self.name.clone());
        let stored = self.call(by, async move { records.read_record(&name).await }).await?;
        Ok((stored.record, stored.now))
    }

    /// Records `run`, while `hold` lasts if this process has it.
    ///
    /// # Errors
    /// [`Error::Lost`] if a later holder of the lock has written the record, or the hold has ended.
    pub(super) async fn write(&self, hold: Option<&Hold>, run: &LastRun, revision: u32) -> Result<()> {
        let version = RecordVersion { token: run.token, revision };
        let record = Arc::new(Record { version, text: run.to_text() });
        let keep = keep_after(run);
        retry(hold, || {
            let (records, name, record) = (self.records.clone(), self.name.clone(), record.clone());
            self.call(Moment::NEVER, async move { records.write_record(&name, &record, keep).await })
        })
        .await?;
        let (stored, _) = retry(hold, || self.read_record(Moment::NEVER)).await?;
        if stored.is_some_and(|stored| stored.version == version) {
            return Ok(());
        }
        Err(self.superseded())
    }

    /// Reads the last run while `hold` lasts, if this process has it.
    pub(super) async fn read_while_held(&self, hold: Option<&Hold>) -> Result<(Option<LastRun>, Duration)> {
        retry(hold, || self.read(Moment::NEVER)).await
    }

    /// Returns the error for a run after which another one has begun.
    pub(super) fn superseded(&self) -> Error {
        Error::Lost { name: self.name.clone(), reason: LostReason::Gone }
    }

    /// Runs an operation on the store, until `by` at the latest.
    async fn call<T: Send + 'static>(
        &self,
        by: Moment,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let context = self.handle.context.clone();
        let work = async move { context.bounded(Operation::Record, by, work).await };
        let running = self.handle.foreground.begin(Operation::Record, work)?;
        running.await.map_err(|cause| io::failed(self.handle.context.backend(), Operation::Record, cause))?
    }

    fn unreadable(&self) -> Error {
        let advice = format!(
            "the record of job {} has another format: update this program if a later version of polylock has written it",
            self.name
        );
        Unavailable::new(self.handle.context.backend(), Operation::Record, Fault::Permanent, advice).into()
    }
}

/// Repeats `attempt` after temporary errors as long as `hold` lasts; without it, the caller repeats.
async fn retry<T, F: Future<Output = Result<T>>>(hold: Option<&Hold>, attempt: impl Fn() -> F) -> Result<T> {
    match hold {
        Some(hold) => hold.retry_while_held(Operation::Record, attempt).await,
        None => attempt().await,
    }
}
