//! Classifies the driver's errors.

use polylock_core::Fault;
use sqlx::{
    Error, MySql, MySqlConnection,
    mysql::{MySqlConnectOptions, MySqlDatabaseError, MySqlRow},
};

use super::NAME;
use crate::engine::server::driver::{ClassifyErrors, ErrorClass, impl_driver};

/// Returns the number of an error that the server has reported: <https://mariadb.com/kb/en/mariadb-error-codes/>,
/// <https://dev.mysql.com/doc/mysql-errors/8.0/en/server-error-reference.html>.
pub(super) fn number(error: &Error) -> Option<u16> {
    let error = error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?;
    Some(error.number())
}

/// A routine of this name exists.
pub(super) const ROUTINE_EXISTS: u16 = 1304;
/// A table does not exist.
pub(super) const NO_TABLE: u16 = 1146;

/// Returns true if a column or an index already exists.
pub(super) const fn was_added(number: u16) -> bool {
    matches!(number, 1060 | 1061)
}

/// Returns true if the user lacks a right.
pub(super) const fn is_refusal(number: u16) -> bool {
    // The right is on the database, the account, a table, a column, something else, a routine or its change.
    matches!(number, 1044 | 1045 | 1142 | 1143 | 1227 | 1370 | 1410)
}

/// Returns true if the server accepts no writes, as before its promotion. 1290 also reports other options of the server.
fn is_read_only(error: &Error) -> bool {
    match number(error) {
        Some(1792 | 1836) => true,
        Some(1290) => error.to_string().contains("read-only"),
        _ => false,
    }
}

fn class_of(number: u16) -> ErrorClass {
    match number {
        // A row changed by another transaction, a lock wait timeout, a deadlock, a table that was changed. The handlers of
        // the routines roll back after each of them.
        1020 | 1205 | 1213 | 1412 => ErrorClass::Contention,
        // Connections or queries that an operator, a time limit or a shutdown has ended: no handler runs after them, and a
        // transaction may still be open (1568 reports an earlier one).
        1053 | 1077..=1079 | 1152 | 1158..=1161 | 1184 | 1317 | 1568 | 1927 | 4031 => ErrorClass::Broken,
        _ => ErrorClass::Other,
    }
}

/// The page of this store has the same table.
fn fault_of(number: u16) -> Fault {
    match number {
        number if class_of(number) != ErrorClass::Other => Fault::Temporary,
        number if rejects(number) || is_refusal(number) => Fault::Denied,
        3159 => Fault::Denied,
        1792 | 1836 => Fault::Temporary,
        // Too many connections, queries or locks, too little memory, a time limit, a cluster that is being reconfigured.
        1037..=1042 | 1047 | 1203 | 1206 | 1226 | 1969 | 3024 | 3572 => Fault::Temporary,
        _ => Fault::Permanent,
    }
}

/// Returns true for rejected users and passwords, accounts that are locked or have an expired password, hosts without access.
fn rejects(number: u16) -> bool {
    matches!(number, 1045 | 1129 | 1130 | 1698 | 1820 | 1862 | 3118 | 4151)
}

impl_driver!(MySql: MySqlConnectOptions, MySqlConnection, MySqlRow, |options| options.get_socket().is_some());

impl ClassifyErrors for MySql {
    const BACKEND: &'static str = NAME;

    fn error_class(error: &Error) -> ErrorClass {
        match number(error) {
            Some(number) => class_of(number),
            None => match error {
                Error::Io(_) | Error::Protocol(_) | Error::WorkerCrashed => ErrorClass::Broken,
                _ => ErrorClass::Other,
            },
        }
    }

    fn fault(error: &Error) -> Fault {
        match number(error) {
            // A failover is in progress; a user who may never write is refused when the store is opened.
            Some(_) if is_read_only(error) => Fault::Temporary,
            Some(number) => fault_of(number),
            None if Self::error_class(error) == ErrorClass::Broken => Fault::Temporary,
            None => match error {
                Error::PoolTimedOut => Fault::Temporary,
                _ => Fault::Permanent,
            },
        }
    }

    fn rejects_credentials(error: &Error) -> bool {
        number(error).is_some_and(rejects)
    }

    fn is_missing_database(error: &Error) -> bool {
        number(error) == Some(1049)
    }

    fn message(error: &Error) -> Option<String> {
        error.as_database_error().map(ToString::to_string)
    }

    fn advice(error: &Error) -> Option<String> {
        let advice = match (number(error), error) {
            (Some(1045 | 1698), _) => {
                "check the user and the password, and whether the server requires an encrypted connection (ssl-mode)"
            }
            (Some(1130), _) => {
                "the server accepts no connection from this machine: grant this user access from its host"
            }
            (Some(1129), _) => "the server has blocked this machine after too many failures: FLUSH HOSTS",
            (Some(1820 | 1862 | 3118 | 4151), _) => "the password has expired or the account is locked",
            (Some(3159), _) => "the server accepts only encrypted connections: set ssl-mode",
            (Some(1049), _) => "the database does not exist: create it, or correct the URL",
            (Some(1044), _) => "this user has no right to the database",
            (Some(1142 | 1143 | 1227 | 1370), _) => {
                "this user lacks a right: polylock needs SELECT, INSERT, UPDATE, DELETE and EXECUTE on its tables and \
                 routines"
            }
            (Some(_), _) if is_read_only(error) => {
                "the server is read-only at this time: it is a replica, or is being promoted; connect to the primary"
            }
            (Some(1146 | 1305 | 1644), _) => {
                "tables, rows or routines of polylock are missing: restart the program, which creates them, or choose \
                 another polylock.namespace"
            }
            (Some(1040 | 1203 | 1226), _) => {
                "the server has no connection left for this user: raise the limit or lower polylock.connections"
            }
            (Some(1665), _) => "binlog_format is STATEMENT: set it to ROW or MIXED",
            (Some(1064 | 1235 | 1286), _) => {
                "the server does not know a statement of polylock: MySQL 8.0 or MariaDB 10.5 or later, with InnoDB, is needed"
            }
            (Some(1104), _) => {
                "max_join_size refuses statements of polylock: set the server's sql_big_selects to ON"
            }
            (Some(1021 | 1114), _) => "the server's disk is full",
            (Some(1969 | 3024), _) => "the server was too busy to reply in time",
            (None, Error::Tls(_)) => "the encrypted connection failed: check ssl-mode and the certificates",
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
        let mut known = BTreeSet::new();
        for (code, fault, rejected) in checks::errors(include_str!("docs.md")) {
            // The number alone does not tell the reason, which a test with a server has.
            let Ok(number) = code.parse() else { continue };
            assert_eq!((fault_of(number), rejects(number)), (fault, rejected), "{number}");
            known.insert(number);
        }
        assert!(known.len() > 40, "{known:?}");
        let missing: Vec<u16> = (0..u16::MAX)
            .filter(|number| fault_of(*number) != Fault::Permanent && !known.contains(number))
            .collect();
        assert_eq!(missing, [0_u16; 0]);
    }
}
