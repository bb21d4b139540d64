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

/// The page of this store has the same table.
fn fault_of(code: &str) -> Fault {
    match code {
        code if rejects(code) => Fault::Denied,
        "42501" => Fault::Denied,
        // A user who may never write is refused when the store is opened.
        "25006" => Fault::Temporary,
        "53100" => Fault::Permanent,
        _ => match code.get(..2) {
            Some("08" | "40" | "53" | "55" | "57" | "58") => Fault::Temporary,
            _ => Fault::Permanent,
        },
    }
}

fn rejects(code: &str) -> bool {
    matches!(code, "28000" | "28P01")
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
            Some(code) => fault_of(code),
            None => match error {
                Error::Io(_) | Error::Protocol(_) | Error::WorkerCrashed | Error::PoolTimedOut => {
                    Fault::Temporary
                }
                _ => Fault::Permanent,
            },
        }
    }

    fn rejects_credentials(error: &Error) -> bool {
        code(error).is_some_and(rejects)
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use polylock_core::failure::checks;

    use super::*;

    #[test]
    fn the_page_has_the_fault_of_each_error() {
        let table = checks::errors(include_str!("docs.md"));
        for (code, fault, rejected) in &table {
            let code = code.replace('…', "000");
            assert_eq!((fault_of(&code), rejects(&code)), (*fault, *rejected), "{code}");
        }
        let known: BTreeSet<&str> = table.iter().map(|(code, ..)| *code).collect();
        let digits = || ('0'..='9').chain('A'..='Z');
        for (a, b) in digits().flat_map(|a| digits().map(move |b| (a, b))) {
            let is_known = known.contains(format!("{a}{b}…").as_str());
            assert_eq!(fault_of(&format!("{a}{b}000")) == Fault::Temporary, is_known, "{a}{b}");
        }
    }
}
