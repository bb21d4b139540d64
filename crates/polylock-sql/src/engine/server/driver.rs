//! A driver: its connections and its errors.

use std::{fmt, io::ErrorKind};

use polylock_core::Fault;
use sqlx::{ConnectOptions, Connection, Database};

use super::literal::Literals;

/// A driver that opens connections from options.
pub(crate) trait Driver:
    Database<Connection: Connection<Options = Self::Options>> + ClassifyErrors + Literals
{
    type Options: ConnectOptions<Connection = Self::Connection>;

    /// Returns true if the endpoint is a socket in this machine's file system.
    fn is_local(options: &Self::Options) -> bool;
}

/// Returns `error` as an error of encryption if it is one: the driver reports a rejected certificate and a missing certificate file as
/// connection errors, for which a retry would make sense.
pub(super) fn classify_encryption_error(error: sqlx::Error, is_local: bool) -> sqlx::Error {
    match error {
        sqlx::Error::Io(cause) if cause.kind() == ErrorKind::InvalidData => sqlx::Error::Tls(cause.into()),
        sqlx::Error::Io(cause) if cause.kind() == ErrorKind::NotFound && !is_local => {
            sqlx::Error::Tls(cause.into())
        }
        error => error,
    }
}

/// The class of a driver's error: its meaning for the connection and the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorClass {
    /// Another transaction was in the way; nothing was done, and a retry may succeed.
    Contention,
    /// The connection is broken; another one may work.
    Broken,
    /// The server refused the statement, or the error is of another kind.
    Other,
}

/// Classification of a driver's errors.
pub(crate) trait ClassifyErrors {
    const BACKEND: &'static str;
    fn error_class(error: &sqlx::Error) -> ErrorClass;
    fn fault(error: &sqlx::Error) -> Fault;
    fn advice(error: &sqlx::Error) -> Option<String>;
    /// Returns true if the server has no database of that name.
    fn is_missing_database(error: &sqlx::Error) -> bool;
    /// Returns the server's message, without details for the server's developers.
    fn message(error: &sqlx::Error) -> Option<String>;
}

/// A driver's error with a readable message: the driver's own message names source lines of the server, and repeats the cause of an I/O
/// error, which is the error's source already.
#[derive(Debug)]
pub(super) struct DriverError {
    message: String,
    /// Shown by `Debug` only.
    #[expect(dead_code, reason = "for `Debug`")]
    error: sqlx::Error,
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for DriverError {}

impl DriverError {
    pub(super) fn new<DB: ClassifyErrors>(error: sqlx::Error) -> Self {
        Self { message: message::<DB>(&error), error }
    }
}

pub(super) fn message<DB: ClassifyErrors>(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Io(error) => error.to_string(),
        error => DB::message(error).unwrap_or_else(|| error.to_string()),
    }
}
