//! The records of jobs.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;

use crate::{
    Clock, KeepRecord, LockName, Moment, Record, Result, StoredRecord, requests::ExpiringTable, sync::lock,
};

#[derive(Debug)]
pub(super) struct Records {
    clock: Arc<dyn Clock>,
    /// The same moment by the clock and by the calendar.
    start: (Moment, Duration),
    records: Mutex<ExpiringTable<LockName, Record>>,
}

impl Records {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "the store is this process, so its clock is that of the store"
        )]
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { start: (clock.now(), since_1970), clock, records: Mutex::default() }
    }
}

#[async_trait]
impl KeepRecord for Records {
    async fn read_record(&self, name: &LockName) -> Result<StoredRecord> {
        let now = self.clock.now();
        let records = lock(&self.records);
        let is_live = records.until(name).is_some_and(|until| until > now);
        let record = records.get(name).filter(|_| is_live).cloned();
        let (start, since_1970) = self.start;
        Ok(StoredRecord { record, now: since_1970 + now.since(start) })
    }

    async fn write_record(&self, name: &LockName, record: &Record, keep: Duration) -> Result<()> {
        let now = self.clock.now();
        let mut records = lock(&self.records);
        if records.get(name).is_none_or(|present| present.version < record.version) {
            *records.update(name.clone(), now, now + keep, || record.clone()) = record.clone();
        }
        Ok(())
    }
}
