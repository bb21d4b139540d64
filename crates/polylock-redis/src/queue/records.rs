//! The records of jobs.

use std::time::Duration;

use async_trait::async_trait;
use polylock_core::{
    FencingToken, KeepRecord, LockName, Operation, Record, RecordVersion, Result, StoredRecord,
};
use redis::ScriptInvocation;

use super::backend::{RedisBackend, from_micros};
use crate::connection::Peer;

impl RedisBackend {
    /// Calls the script, after `prepare` has added its arguments.
    async fn call_record(
        &self,
        name: &LockName,
        prepare: impl Fn(&mut ScriptInvocation<'_>) + Sync,
    ) -> Result<StoredRecord> {
        let invoke = |_: &Peer| {
            let scripts = &self.context.scripts;
            let mut call = scripts.record.prepare_invoke();
            call.key(scripts.keys.of("r", name));
            prepare(&mut call);
            call
        };
        let reply =
            self.call(name, Operation::Record, self.context.operation_timeout, &invoke).await.outcome?;
        let (clock_us, token, revision, text): (i64, i64, i64, String) =
            self.servers.read(Operation::Record, reply)?;
        // Revisions begin with 1.
        let revision = u32::try_from(revision).ok().filter(|revision| *revision > 0);
        let version = FencingToken::new(token).zip(revision);
        let record =
            version.map(|(token, revision)| Record { version: RecordVersion { token, revision }, text });
        Ok(StoredRecord { record, now: from_micros(clock_us) })
    }
}

#[async_trait]
impl KeepRecord for RedisBackend {
    async fn read_record(&self, name: &LockName) -> Result<StoredRecord> {
        self.call_record(name, |_| {}).await
    }

    async fn write_record(&self, name: &LockName, record: &Record, keep: Duration) -> Result<()> {
        let keep_ms = u64::try_from(keep.as_millis()).unwrap_or(u64::MAX);
        let write = |call: &mut ScriptInvocation<'_>| {
            call.arg(record.version.token.get()).arg(record.version.revision).arg(&record.text).arg(keep_ms);
        };
        self.call_record(name, write).await.map(drop)
    }
}
