//! The records of jobs on a server.

use std::time::Duration;

use polylock_core::{LockName, Operation, Record, Result, StoredRecord};

use super::{
    driver::Driver,
    literal::{Arg, Template},
    pool::Server,
};
use crate::engine::{dialect::bytes, records::stored_record, rows::micros};

/// The statements on the records of jobs: `read_record.sql` and `write_record.sql`.
#[derive(Debug)]
pub(crate) struct RecordStatements {
    pub(crate) read: Template,
    pub(crate) write: Template,
}

impl<DB: Driver> Server<DB> {
    pub(crate) async fn read_record(
        &self,
        statements: &RecordStatements,
        name: &LockName,
    ) -> Result<StoredRecord> {
        let arguments = [Arg::Bytes(bytes(name))];
        self.query(Operation::Record, &statements.read, &arguments, stored_record).await
    }

    pub(crate) async fn write_record(
        &self,
        statements: &RecordStatements,
        name: &LockName,
        record: &Record,
        keep: Duration,
    ) -> Result<()> {
        let arguments = [
            Arg::Bytes(bytes(name)),
            Arg::Int(record.version.token.as_i64()),
            Arg::Int(record.version.revision.into()),
            Arg::Text(&record.text),
            Arg::Int(micros(keep)),
        ];
        self.send(Operation::Record, &statements.write, &arguments).await.map(drop)
    }
}
