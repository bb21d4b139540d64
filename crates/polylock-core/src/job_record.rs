//! The contract of the records that outlive holds: the last run of a job.

use std::{fmt, time::Duration};

use async_trait::async_trait;

use crate::{FencingToken, LockName, Result};

/// The version of a record. A record is replaced only by one of a greater version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordVersion {
    /// The token of the hold under which the record was written.
    pub token: FencingToken,
    /// The number of the write under that hold, from 1.
    pub revision: u32,
}

/// The record of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The version.
    pub version: RecordVersion,
    /// The contents, which the store does not interpret: at most [`MAX_BYTES`](Self::MAX_BYTES) bytes of UTF-8 without NUL.
    pub text: String,
}

impl Record {
    /// The greatest length of a text, in bytes.
    pub const MAX_BYTES: usize = 1024;
}

/// The reply to a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRecord {
    /// The record; `None` if there is none, or its time is over.
    pub record: Option<Record>,
    /// The time of the store, since 1970 in UTC. It decides which period it is.
    pub now: Duration,
}

/// The optional operations of a store that keeps a small record for a name, beyond the holds of that lock: see [`Once`](crate::Once).
///
/// A record is as durable as a grant of this store.
#[async_trait]
pub trait KeepRecord: fmt::Debug + Send + Sync + 'static {
    /// Returns the record of `name`, and the time of the store.
    ///
    /// A read that begins after the reply to a write returns that record, or a later one.
    ///
    /// # Errors
    /// If the store is unavailable.
    async fn read_record(&self, name: &LockName) -> Result<StoredRecord>;

    /// Writes the record of `name` in one atomic step, unless the store has one whose version is the same or greater. It is kept for `keep`
    /// from now on by the clock of the store.
    ///
    /// So a lost reply is harmless, and a copy that arrives late does not replace a later record. The caller reads the record to find out
    /// if it was written.
    ///
    /// # Errors
    /// An error means *unknown*. Core repeats the call.
    async fn write_record(&self, name: &LockName, record: &Record, keep: Duration) -> Result<()>;
}
