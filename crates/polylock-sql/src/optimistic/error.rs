//! The reasons for which a write was refused or failed.

use polylock_core::{FencingToken, InvalidName, metrics};

use super::supported::Supported;

/// A result with this module's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason for which a write was refused or failed, by the caller's possible reactions.
///
/// `Display` shows only this error's own message; the database's message is its [`source`](std::error::Error::source).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A later holder of the lock has written before. Nothing was written.
    #[error(
        "fencing token {token} is stale for {resource}: token {current} was recorded before, so the lock was lost: stop \
         this work, and acquire the lock again to redo it"
    )]
    Stale {
        /// The lock's name, or the table.
        resource: String,
        /// The token that was refused.
        token: FencingToken,
        /// The greater token that was recorded before.
        current: FencingToken,
    },
    /// The row no longer has the version that was read. Nothing was written.
    #[error("a row of {table} is at version {current}, not {expected}: read it again and retry")]
    Conflict {
        /// The table.
        table: String,
        /// The version that was read.
        expected: i64,
        /// The current version.
        current: i64,
    },
    /// There is no row with this key. Nothing was written.
    #[error(
        "no row of {table} has this key: insert it first, or use Fences for rows that are inserted and deleted"
    )]
    Missing {
        /// The table.
        table: String,
    },
    /// The key matches several rows, so the intended row is unknown. Outside a transaction they may have been written; within
    /// one, roll it back.
    #[error("the key matches {rows} rows of {table}: set every column of its primary key")]
    NotUnique {
        /// The table.
        table: String,
        /// The number of rows.
        rows: u64,
    },
    /// The table of fences does not exist.
    #[error(
        "the table {table} does not exist: call Fences::create once, or add this to your migrations: {schema}"
    )]
    NoFences {
        /// The table's name.
        table: String,
        /// The statement that creates it.
        schema: String,
        /// The database's error.
        source: sqlx::Error,
    },
    /// The name is not valid for a lock.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),
    /// The name is not valid for a table or column, or not allowed here.
    #[error(transparent)]
    InvalidIdentifier(#[from] InvalidIdentifier),
    /// The database refused the statement, or could not be reached. The last statement may have been carried out.
    #[error("the database did not execute the statement")]
    Database(#[from] sqlx::Error),
}

impl Error {
    /// Creates the error of a refused token, and counts it.
    pub(super) fn stale<DB: Supported>(resource: String, token: FencingToken, current: FencingToken) -> Self {
        metrics::fencing_rejected(DB::BACKEND);
        Self::Stale { resource, token, current }
    }

    /// Returns true if the caller should read again and retry: another transaction was in the way, or changed the row first.
    ///
    /// A stale token is never retryable: its holder has lost the lock.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Conflict { .. } => true,
            Self::Database(error) => is_contention(error),
            _ => false,
        }
    }

    /// Returns true if a later holder of the lock has written before.
    #[must_use]
    pub const fn is_stale(&self) -> bool {
        matches!(self, Self::Stale { .. })
    }
}

/// Returns true if the database failed because of another transaction.
fn is_contention(error: &sqlx::Error) -> bool {
    let Some(error) = error.as_database_error() else { return false };
    #[cfg(feature = "mysql")]
    if let Some(error) = error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
        // A lock wait timeout, a deadlock, and a row that has changed since the snapshot: MariaDB with
        // `innodb_snapshot_isolation`, its default from 11.6 on.
        return matches!(error.number(), 1205 | 1213 | 1020);
    }
    match error.code().as_deref() {
        // PostgreSQL: serialization failure, deadlock, lock timeout. SQLite's codes are shorter than five characters.
        Some("40001" | "40P01" | "55P03") => true,
        // SQLite: the low byte states that another connection is in the way.
        Some(code) => cfg!(feature = "sqlite") && code.len() < 5 && is_busy(code),
        None => false,
    }
}

/// Returns true for `SQLITE_BUSY` and `SQLITE_LOCKED`, in any of their extended forms.
fn is_busy(code: &str) -> bool {
    code.parse::<u32>().is_ok_and(|code| matches!(code & 0xff, 5 | 6))
}

/// The reason for which a text can't be used in a statement as the name of a table or column.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidIdentifier {
    /// The name contains other characters than letters, digits and `_`, or has a wrong length.
    #[error(
        "{name:?} is not a valid name of a {what}: write a letter or _ and then up to 62 letters, digits or _, as in \
         the database"
    )]
    NotPlain {
        /// Table or column.
        what: &'static str,
        /// The text.
        name: String,
    },
    /// The name of the trigger of a table would be too long.
    #[error(
        "the trigger of {table} would have the name {trigger}, which is longer than 63 bytes: set a shorter \
         polylock.namespace in the store's URL"
    )]
    LongTrigger {
        /// The table.
        table: String,
        /// The name of its trigger.
        trigger: String,
    },
    /// The update has no key column.
    #[error("an update of {table} needs a key, or it would change every row")]
    NoKey {
        /// The table.
        table: String,
    },
    /// A column is set twice, or is the column of the token or version, which the update sets itself.
    #[error("column {column} would be set twice: omit one of the two")]
    Twice {
        /// The column.
        column: String,
    },
}
