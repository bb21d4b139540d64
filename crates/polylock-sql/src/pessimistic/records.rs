//! The records of jobs.

use std::time::Duration;

use async_trait::async_trait;
use polylock_core::{KeepRecord, LockName, Record, Result, StoredRecord};

use super::backend::PessimisticBackend;

#[async_trait]
impl KeepRecord for PessimisticBackend {
    async fn read_record(&self, name: &LockName) -> Result<StoredRecord> {
        self.server.read_record(name).await
    }

    async fn write_record(&self, name: &LockName, record: &Record, keep: Duration) -> Result<()> {
        self.server.write_record(name, record, keep).await
    }
}
