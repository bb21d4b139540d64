//! Classification of the driver's errors.

use std::{io, path::Path};

use polylock_core::{Error, Fault, Operation, failure::At};

use super::NAME;

// Primary result codes, the low byte of what SQLite reports: <https://www.sqlite.org/rescode.html>.
const PERM: u32 = 3;
const BUSY: u32 = 5;
const LOCKED: u32 = 6;
const NOMEM: u32 = 7;
const READONLY: u32 = 8;
const INTERRUPT: u32 = 9;
const IOERR: u32 = 10;
const CORRUPT: u32 = 11;
const FULL: u32 = 13;
const CANTOPEN: u32 = 14;
const PROTOCOL: u32 = 15;
const SCHEMA: u32 = 17;
const AUTH: u32 = 23;
const NOTADB: u32 = 26;

/// Returns SQLite's primary result code, if the error is SQLite's.
fn code(error: &sqlx::Error) -> Option<u32> {
    let extended: u32 = error.as_database_error()?.code()?.parse().ok()?;
    Some(extended & 0xff)
}

/// Returns true for `SQLITE_IOERR_SHMSIZE`: the log's index could not be extended, the error for a full disk once the file exists.
fn is_full(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(sqlx::error::DatabaseError::code).as_deref() == Some("4874")
}

/// Returns true if another connection is in the way, so that the same statement may succeed a moment later.
pub(super) fn is_busy(error: &sqlx::Error) -> bool {
    matches!(code(error), Some(BUSY | LOCKED | PROTOCOL))
}

/// Returns the remedy for `error`.
fn fault(error: &sqlx::Error) -> Fault {
    match code(error) {
        Some(_) if is_full(error) => Fault::Permanent,
        Some(code) => fault_of(code),
        None => match error {
            sqlx::Error::Io(_) | sqlx::Error::WorkerCrashed => Fault::Temporary,
            _ => Fault::Permanent,
        },
    }
}

/// The page of this store has the same table.
fn fault_of(code: u32) -> Fault {
    match code {
        // A disk error or a table that is being changed may be gone with the next attempt, on a new connection; a full disk or a damaged
        // file is not.
        BUSY | LOCKED | PROTOCOL | NOMEM | INTERRUPT | IOERR | CANTOPEN | SCHEMA => Fault::Temporary,
        PERM | READONLY | AUTH => Fault::Denied,
        _ => Fault::Permanent,
    }
}

/// Returns advice where the code alone is not clear enough.
fn advice(error: &sqlx::Error) -> Option<&'static str> {
    match code(error)? {
        _ if is_full(error) => Some("the disk is full"),
        BUSY | LOCKED => Some("another process keeps it locked"),
        READONLY => Some("this user has no right to write to it"),
        CORRUPT => Some("it is damaged: stop every program that uses it, and move it away"),
        FULL => Some("the disk is full"),
        CANTOPEN => {
            Some("it can't be opened: check the path, and the permissions of the file and its directory")
        }
        NOTADB => Some("it is not a SQLite database: choose another path"),
        _ => None,
    }
}

/// Returns the error of `operation` on `file` for the driver's `error`.
pub(super) fn from_driver(operation: Operation, file: &Path, error: sqlx::Error) -> Error {
    let (mut fault, mut advice) = (fault(&error), advice(&error).map(str::to_owned));
    if operation == Operation::Connect && code(&error) == Some(CANTOPEN) {
        fault = Fault::Permanent;
        if let Some((found, words)) = lacks_descriptors().or_else(|| check_access(file)) {
            (fault, advice) = (found, Some(words));
        }
    }
    at(operation, &endpoint(file)).failed(fault, advice, error)
}

/// Returns an error of `operation` on `file` that has no cause in the driver.
pub(super) fn advise(operation: Operation, file: &Path, fault: Fault, advice: impl Into<String>) -> Error {
    at(operation, &endpoint(file)).advise(fault, advice)
}

fn at(operation: Operation, endpoint: &str) -> At<'_> {
    At { backend: NAME, operation, endpoint }
}

fn endpoint(file: &Path) -> String {
    format!("file {file:?}")
}

/// Returns the error for a `file` or directory that can't be created or reached.
pub(super) fn from_system(file: &Path, error: &io::Error) -> Error {
    let fault = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Fault::Denied,
        _ => Fault::Permanent,
    };
    advise(Operation::Connect, file, fault, error.to_string())
}

/// Returns the reason for which this process opens no file at all.
fn lacks_descriptors() -> Option<(Fault, String)> {
    let error = std::fs::File::open("/dev/null").err()?;
    let advice = match error.raw_os_error()? {
        // EMFILE and ENFILE on Unix.
        24 => "this process may open no more files: raise its limit (ulimit -n)",
        23 => "this machine may open no more files: raise its limit (fs.file-max)",
        _ => return None,
    };
    Some((Fault::Temporary, advice.to_owned()))
}

/// The remedy, as the page of this store describes it.
const SHARED: &str = "users share locks in a directory of their group (`install -d -m 2770 -g GROUP DIRECTORY`), where new files are for \
                      the group";

/// Returns the reason why a file can't be opened, which SQLite does not report. Checks it without opening it, because closing any
/// descriptor of the file would drop the locks that other connections of this process have on it.
fn check_access(file: &Path) -> Option<(Fault, String)> {
    match std::fs::metadata(file) {
        Ok(found) if found.is_dir() => Some((Fault::Permanent, "it is a directory".to_owned())),
        Ok(_) => ["", "-wal", "-shm"].into_iter().find_map(|suffix| {
            let mut path = file.as_os_str().to_owned();
            path.push(suffix);
            let words = format!("this user has no right to read and write {path:?}; {SHARED}");
            is_forbidden(Path::new(&path)).then_some((Fault::Denied, words))
        }),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Some((Fault::Denied, error.to_string()))
        }
        Err(_) => None,
    }
}

/// Returns true if `file` exists and this user may not both read and write it.
#[cfg(unix)]
fn is_forbidden(file: &Path) -> bool {
    use rustix::fs::{Access, access};
    access(file, Access::READ_OK | Access::WRITE_OK) == Err(rustix::io::Errno::ACCESS)
}

#[cfg(not(unix))]
fn is_forbidden(_: &Path) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use sqlx::{ConnectOptions, Executor, sqlite::SqliteConnectOptions};

    /// Returns the error of `script` on a small new file.
    async fn failure(options: SqliteConnectOptions, script: &'static str) -> sqlx::Error {
        let directory = tempfile::TempDir::new().unwrap();
        let options = options.filename(directory.path().join("x.db"));
        let mut writer = options.clone().read_only(false).create_if_missing(true).connect().await.unwrap();
        writer.execute("CREATE TABLE t (x UNIQUE); INSERT INTO t VALUES (1)").await.unwrap();
        options.connect().await.unwrap().execute(script).await.unwrap_err()
    }

    const FILLS: &str = "PRAGMA max_page_count = 1; INSERT INTO t VALUES (zeroblob(100000))";

    #[tokio::test]
    async fn real_failures_are_classified_by_their_remedy() {
        let plain = SqliteConnectOptions::new();
        for (options, script, expected) in [
            (plain.clone().read_only(true), "DELETE FROM t", (READONLY, Fault::Denied)),
            (plain.clone(), FILLS, (FULL, Fault::Permanent)),
            (plain.clone(), "ATTACH '/dev/null/x' AS other", (CANTOPEN, Fault::Temporary)),
            (plain.clone(), "SELECT * FROM nowhere", (1, Fault::Permanent)),
            (plain, "INSERT INTO t VALUES (1)", (19, Fault::Permanent)),
        ] {
            let error = failure(options, script).await;
            assert_eq!((code(&error).unwrap(), fault(&error)), expected, "{script}: {error}");
            assert!(!is_busy(&error));
        }
    }

    #[test]
    fn the_page_has_the_fault_of_each_error() {
        let names = [
            ("PERM", PERM),
            ("BUSY", BUSY),
            ("LOCKED", LOCKED),
            ("NOMEM", NOMEM),
            ("READONLY", READONLY),
            ("INTERRUPT", INTERRUPT),
            ("IOERR", IOERR),
            ("CORRUPT", CORRUPT),
            ("FULL", FULL),
            ("CANTOPEN", CANTOPEN),
            ("PROTOCOL", PROTOCOL),
            ("SCHEMA", SCHEMA),
            ("AUTH", AUTH),
            ("NOTADB", NOTADB),
        ];
        let table = polylock_core::failure::checks::errors(include_str!("docs.md"));
        for (name, code) in names {
            let (_, fault, _) = table
                .iter()
                .find(|(found, ..)| *found == name)
                .unwrap_or_else(|| panic!("{name} is missing"));
            assert_eq!(fault_of(code), *fault, "{name}");
        }
        let others = (0..256).filter(|code| !names.iter().any(|(_, known)| known == code));
        assert!(others.into_iter().all(|code| fault_of(code) == Fault::Permanent));
    }

    #[tokio::test]
    async fn a_failure_names_the_file_and_keeps_the_cause_as_source() {
        let error = failure(SqliteConnectOptions::new(), FILLS).await;
        let Error::Unavailable(error) = from_driver(Operation::Claim, Path::new("/var/locks.db"), error)
        else {
            panic!("should be unavailable")
        };
        assert_eq!(error.source.to_string(), "file \"/var/locks.db\": the disk is full");
        assert!(error.source.source().unwrap().to_string().contains("full"));
    }
}
