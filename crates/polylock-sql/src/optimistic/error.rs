//! Why a write was not made, by what the caller can do about it.

use polylock_core::{FencingToken, InvalidName};

/// A result with this module's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a write was not made, by what the caller can do about it.
///
/// `Display` tells this error's own part; the database's own words are in [`source`](std::error::Error::source).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A later holder of the lock has been there. Nothing was written.
    #[error(
        "fencing token {token} is stale for {resource}: token {current} has been there, so the lock was lost; give \
         up this work, and acquire the lock again if it must be done"
    )]
    Stale {
        /// The lock's name, or the table.
        resource: String,
        /// The token that was refused.
        token: FencingToken,
        /// The greater one that has been there.
        current: FencingToken,
    },
    /// The row is not at the version it was read at. Nothing was written.
    #[error(
        "a row of {table} is at version {current} and no more at {expected}: read it again and decide anew"
    )]
    Conflict {
        /// The table.
        table: String,
        /// The version it was read at.
        expected: i64,
        /// The version it is at now.
        current: i64,
    },
    /// There is no row with this key. Nothing was written.
    #[error(
        "no row of {table} has this key: insert it first; where rows come and go, let a table of fences guard them"
    )]
    Missing {
        /// The table.
        table: String,
    },
    /// The key names several rows, so nobody can tell which of them was meant. Outside a transaction they may have been
    /// written; within one, roll it back.
    #[error("the key names {rows} rows of {table}: give every column of its primary key")]
    NotUnique {
        /// The table.
        table: String,
        /// How many rows.
        rows: u64,
    },
    /// The table of fences has not been made.
    #[error(
        "there is no table {table}: call Fences::create once, or put this into your migrations: {schema}"
    )]
    NoFences {
        /// Its name.
        table: String,
        /// The statement that makes it.
        schema: String,
        /// The database's own words.
        source: sqlx::Error,
    },
    /// Not the name of a lock.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),
    /// Not the name of a table or column, or not one that may stand here.
    #[error(transparent)]
    InvalidIdentifier(#[from] InvalidIdentifier),
    /// The database refused it or could not be asked. What was sent last may have been done, or not.
    #[error("the database did not carry it out")]
    Database(#[from] sqlx::Error),
}

impl Error {
    /// Whether to read again and try again: another transaction was in the way, or changed the row first.
    ///
    /// A stale token is never that: its holder has lost the lock.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Conflict { .. } => true,
            Self::Database(error) => is_contention(error),
            _ => false,
        }
    }

    /// Whether a later holder of the lock has been there.
    #[must_use]
    pub const fn is_stale(&self) -> bool {
        matches!(self, Self::Stale { .. })
    }
}

/// Whether the database gave up because of another transaction.
fn is_contention(error: &sqlx::Error) -> bool {
    let Some(error) = error.as_database_error() else { return false };
    #[cfg(feature = "mysql")]
    if let Some(error) = error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
        // A wait for a row that took too long, a deadlock, and a row that has changed since the snapshot: MariaDB with
        // `innodb_snapshot_isolation`, its default from 11.6 on.
        return matches!(error.number(), 1205 | 1213 | 1020);
    }
    match error.code().as_deref() {
        // PostgreSQL: serialization failure, deadlock, lock timeout. Five characters, so none of SQLite's.
        Some("40001" | "40P01" | "55P03") => true,
        // SQLite: the low byte says that another connection is in the way.
        Some(code) => cfg!(feature = "sqlite") && code.len() < 5 && is_busy(code),
        None => false,
    }
}

/// `SQLITE_BUSY` or `SQLITE_LOCKED`, in any of their extended forms.
fn is_busy(code: &str) -> bool {
    code.parse::<u32>().is_ok_and(|code| matches!(code & 0xff, 5 | 6))
}

/// Why a text can't be put into a statement as the name of a table or column.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidIdentifier {
    /// Not a plain name.
    #[error(
        "{name:?} can't be the name of a {what}: give it a letter or _ and then up to 62 letters, digits or _, as it \
         is written in the database"
    )]
    NotPlain {
        /// Table or column.
        what: &'static str,
        /// The text.
        name: String,
    },
    /// No column says which row is meant.
    #[error("an update of {table} needs a key, or it would change every row")]
    NoKey {
        /// The table.
        table: String,
    },
    /// One column is set twice, or is the column of the token or version, which is set anyway.
    #[error("column {column} would be set twice: leave one out")]
    Twice {
        /// The column.
        column: String,
    },
}
