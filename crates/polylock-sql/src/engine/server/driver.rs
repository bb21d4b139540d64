//! A driver: its connections and its errors.

use std::{
    fmt::{self, Debug},
    io::ErrorKind,
};

use polylock_core::Fault;
use sqlx::SqlStr;

use super::literal::Literals;
use crate::engine::columns::Columns;

/// A driver that opens connections from options.
pub(crate) trait Driver: ClassifyErrors + Literals + Debug + Send + Sync + 'static {
    type Options: Clone + Send + Sync + 'static;
    type Connection: Send + 'static;
    type Row: Columns + Send + Sync;

    /// Returns true if the endpoint is a socket in this machine's file system.
    fn is_local(options: &Self::Options) -> bool;

    /// Opens a connection.
    fn connect(options: &Self::Options)
    -> impl Future<Output = Result<Self::Connection, sqlx::Error>> + Send;

    /// Sends `sql` unprepared, and returns the rows of the reply.
    fn fetch(
        connection: &mut Self::Connection,
        sql: SqlStr,
    ) -> impl Future<Output = Result<Vec<Self::Row>, sqlx::Error>> + Send;
}

/// Implements [`Driver`] for a database of sqlx, with its options, connection and row.
macro_rules! impl_driver {
    ($database:ty: $options:ty, $connection:ty, $row:ty, |$local:ident| $is_local:expr) => {
        impl $crate::engine::server::driver::Driver for $database {
            type Options = $options;
            type Connection = $connection;
            type Row = $row;

            fn is_local($local: &$options) -> bool {
                $is_local
            }

            async fn connect(options: &$options) -> Result<$connection, sqlx::Error> {
                use sqlx::ConnectOptions;
                options.clone().disable_statement_logging().connect().await
            }

            async fn fetch(
                connection: &mut $connection,
                sql: sqlx::SqlStr,
            ) -> Result<Vec<$row>, sqlx::Error> {
                sqlx::raw_sql(sql).fetch_all(connection).await
            }
        }
    };
}

pub(crate) use impl_driver;

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
    /// Returns true if the server rejects the user or the password.
    fn rejects_credentials(error: &sqlx::Error) -> bool;
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
