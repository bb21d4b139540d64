//! The records of jobs.

use std::time::Duration;

use async_trait::async_trait;
use polylock_core::{FencingToken, KeepRecord, LockName, Record, RecordVersion, Result, StoredRecord};
use sqlx::Error;

use super::{
    backend::LeaseBackend,
    columns::{Columns, require},
    dialect::Dialect,
};

#[async_trait]
impl<D: Dialect> KeepRecord for LeaseBackend<D> {
    async fn read_record(&self, name: &LockName) -> Result<StoredRecord> {
        self.inner.dialect.read_record(name).await
    }

    async fn write_record(&self, name: &LockName, record: &Record, keep: Duration) -> Result<()> {
        self.inner.dialect.write_record(name, record, keep).await
    }
}

/// Reads the row of `read_record.sql`.
pub(crate) fn stored_record(rows: &[impl Columns]) -> Result<StoredRecord, Error> {
    let row = rows.first().ok_or(Error::RowNotFound)?;
    let unsigned = |column: usize| {
        let value = row.int(column)?;
        require(column, value.and_then(|value| u64::try_from(value).ok()))
    };
    let record = match row.int(1)? {
        None => None,
        Some(token) => {
            let token = require(1, FencingToken::new(token))?;
            let revision = require(2, u32::try_from(unsigned(2)?).ok())?;
            Some(Record {
                version: RecordVersion { token, revision },
                text: row.text(3)?.unwrap_or_default(),
            })
        }
    };
    Ok(StoredRecord { record, now: Duration::from_micros(unsigned(0)?) })
}
