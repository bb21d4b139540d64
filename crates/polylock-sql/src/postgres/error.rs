//! Classifies the driver's errors.

use polylock_core::Fault;
use sqlx::{
    Error, PgConnection, Postgres,
    postgres::{PgConnectOptions, PgDatabaseError, PgRow},
};

use super::NAME;
use crate::engine::server::driver::{ClassifyErrors, ErrorClass, impl_driver};

/// Returns the SQLSTATE of an error that the server has reported:
/// <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
pub(super) fn code(error: &Error) -> Option<&str> {
    let error = error.as_database_error()?.try_downcast_ref::<PgDatabaseError>()?;
    Some(error.code())
}

// A host that is a directory is a socket, too.
impl_driver!(
    Postgres: PgConnectOptions, PgConnection, PgRow,
    |options| options.get_socket().is_some() || options.get_host().starts_with('/')
);

impl ClassifyErrors for Postgres {
    const BACKEND: &'static str = NAME;

    fn error_class(error: &Error) -> ErrorClass {
        match code(error) {
            // Serialization failure, deadlock, lock not available.
            Some("40001" | "40P01" | "55P03") => ErrorClass::Contention,
            // Connections that an operator, a crash or a restart has closed.
            Some(code) if code.starts_with("08") || code.starts_with("57P0") => ErrorClass::Broken,
            Some(_) => ErrorClass::Other,
            None => match error {
                Error::Io(_) | Error::Protocol(_) | Error::WorkerCrashed => ErrorClass::Broken,
                _ => ErrorClass::Other,
            },
        }
    }

    fn fault(error: &Error) -> Fault {
        match code(error) {
            Some("42501" | "28000" | "28P01") => Fault::Denied,
            // The server is a replica, or about to be promoted; a user who may never write is refused when the store is opened.
            Some("25006") => Fault::Temporary,
            Some("53100") => Fault::Permanent,
            Some(code) => match &code[..2.min(code.len())] {
                // Contention, broken connections, insufficient resources, operator intervention, a system error.
                "40" | "08" | "53" | "55" | "57" | "58" => Fault::Temporary,
                _ => Fault::Permanent,
            },
            None => match error {
                Error::Io(_) | Error::Protocol(_) | Error::WorkerCrashed | Error::PoolTimedOut => {
                    Fault::Temporary
                }
                _ => Fault::Permanent,
            },
        }
    }

    fn rejects_credentials(error: &Error) -> bool {
        matches!(code(error), Some("28000" | "28P01"))
    }

    fn is_missing_database(error: &Error) -> bool {
        code(error) == Some("3D000")
    }

    fn message(error: &Error) -> Option<String> {
        let error = error.as_database_error()?.try_downcast_ref::<PgDatabaseError>()?;
        let detail = error.detail().map_or_else(String::new, |detail| format!(" ({detail})"));
        Some(format!("{}{detail} [SQLSTATE {}]", error.message(), error.code()))
    }

    fn advice(error: &Error) -> Option<String> {
        let advice = match (code(error), error) {
            (Some("28000" | "28P01"), _) => "check the user and the password",
            (Some("3D000"), _) => "the database does not exist: create it, or correct the URL",
            (Some("25006"), _) => {
                "the database is read-only at this time: the server is a replica, or is being promoted; connect to the primary"
            }
            (Some("42501"), _) => {
                "this user lacks a right on the tables or functions of polylock: `polylock schema --help` lists them"
            }
            (Some("42P01" | "42883"), _) => {
                "the tables or functions are missing: restart the program, which creates them, or choose another \
                 polylock.schema or polylock.namespace"
            }
            (Some("53300"), _) => {
                "the server has no connection left: raise max_connections or lower polylock.connections"
            }
            (Some("53100"), _) => "the server's disk is full",
            (Some("57014"), _) => "the server was too busy to reply in time",
            (None, Error::PoolTimedOut) => {
                "no free connection in time: the server can't be reached, or all connections are in use"
            }
            (None, Error::Tls(_)) => "the encrypted connection failed: check sslmode and the certificates",
            (None, Error::Io(_)) => "the server can't be reached: check host, port and that it runs",
            _ => return None,
        };
        Some(advice.to_owned())
    }
}
