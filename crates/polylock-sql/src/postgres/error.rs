//! What a driver's error means.

use polylock_core::Fault;
use sqlx::{
    Error, Postgres,
    postgres::{PgConnectOptions, PgDatabaseError},
};

use super::NAME;
use crate::engine::pool::{Diagnose, Dial, Trouble};

/// The SQLSTATE, if it is the server that complains: <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
pub(super) fn code(error: &Error) -> Option<&str> {
    let error = error.as_database_error()?.try_downcast_ref::<PgDatabaseError>()?;
    Some(error.code())
}

impl Dial for Postgres {
    type Options = PgConnectOptions;

    fn is_local(options: &PgConnectOptions) -> bool {
        // Also as a host that is a directory.
        options.get_socket().is_some() || options.get_host().starts_with('/')
    }
}

impl Diagnose for Postgres {
    const BACKEND: &'static str = NAME;

    fn trouble(error: &Error) -> Trouble {
        match code(error) {
            // Serialization failure, deadlock, lock not available.
            Some("40001" | "40P01" | "55P03") => Trouble::Contention,
            // Connections that an operator, a crash or a restart has ended.
            Some(code) if code.starts_with("08") || code.starts_with("57P0") => Trouble::Broken,
            Some(_) => Trouble::Other,
            None => match error {
                Error::Io(_) | Error::Protocol(_) | Error::WorkerCrashed => Trouble::Broken,
                _ => Trouble::Other,
            },
        }
    }

    fn fault(error: &Error) -> Fault {
        match code(error) {
            Some("42501" | "25006" | "28000" | "28P01") => Fault::Denied,
            Some("53100") => Fault::Permanent,
            Some(code) => match &code[..2.min(code.len())] {
                // Contention, broken connections, too little of something, an operator at work, a sick system.
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

    fn lacks_database(error: &Error) -> bool {
        code(error) == Some("3D000")
    }

    fn words(error: &Error) -> Option<String> {
        let error = error.as_database_error()?.try_downcast_ref::<PgDatabaseError>()?;
        let detail = error.detail().map_or_else(String::new, |detail| format!(" ({detail})"));
        Some(format!("{}{detail} [SQLSTATE {}]", error.message(), error.code()))
    }

    fn advice(error: &Error) -> Option<String> {
        let advice = match (code(error), error) {
            (Some("28000" | "28P01"), _) => "check the user and the password",
            (Some("3D000"), _) => "there is no such database: create it, or correct the URL",
            (Some("25006"), _) => {
                "the database is read-only for this user or at this time: connect to the primary"
            }
            (Some("42501"), _) => {
                "this user lacks a right on the tables or functions of polylock: `polylock schema --help` lists them"
            }
            (Some("42P01" | "42883"), _) => {
                "the tables or functions are gone: restart the program, which makes them, or choose another \
                 polylock.schema or polylock.table"
            }
            (Some("53300"), _) => {
                "the server has no connection left: raise max_connections or lower polylock.connections"
            }
            (Some("53100"), _) => "the server's disk is full",
            (Some("57014"), _) => "the server was too busy to answer in time",
            (None, Error::PoolTimedOut) => {
                "no connection in time: the server can't be reached, or all are in use"
            }
            (None, Error::Tls(_)) => "the encrypted connection failed: check sslmode and the certificates",
            (None, Error::Io(_)) => "the server can't be reached: check host, port and that it runs",
            _ => return None,
        };
        Some(advice.to_owned())
    }
}
