//! The errors that a database server has logged.

use std::{fs, path::PathBuf};

use crate::servers::Server;

/// The log of a server, as far as it is about certain tables.
#[derive(Debug)]
pub(super) struct Log {
    file: PathBuf,
    table: String,
}

/// Errors that tests provoke on purpose, or that are not the store's: parts of their lines.
const ALLOWED: &[&str] = &[
    // The pessimistic strategy ends a wait by cancelling the statement that waits for a row.
    "canceling statement due to user request",
    // Of many programs that create tables at once, some wait for their turn for longer than a second, and try again.
    "canceling statement due to lock timeout",
];

impl Log {
    /// What `server` logs of tables whose names begin with `table`; `None` for a server that was attached to.
    pub(super) fn of(server: &Server, table: &str) -> Option<Self> {
        Some(Self { file: server.log_file()?.to_owned(), table: table.to_owned() })
    }

    /// The errors, each with the statement that it is about, if the server logs that.
    pub(super) fn errors(&self) -> Vec<String> {
        let log = fs::read(&self.file).unwrap_or_else(|error| panic!("{}: {error}", self.file.display()));
        errors(&String::from_utf8_lossy(&log), &self.table)
    }
}

/// The entries of `log` that are errors and either name `table` or no statement. PostgreSQL logs the statement behind its error,
/// MariaDB logs errors of the server itself alone.
fn errors(log: &str, table: &str) -> Vec<String> {
    let mut errors: Vec<String> = Vec::new();
    let mut within = false;
    for line in log.lines() {
        let is_error = line.contains(" ERROR: ") || line.contains(" PANIC: ") || line.contains("[ERROR]");
        let goes_on = within
            && (line.starts_with('\t')
                || ["STATEMENT: ", "DETAIL: ", "HINT: ", "CONTEXT: "].iter().any(|more| line.contains(more)));
        if is_error {
            errors.push(line.to_owned());
        } else if goes_on && let Some(error) = errors.last_mut() {
            error.extend(["\n", line]);
        }
        within = is_error || goes_on;
    }
    let ours = |error: &String| error.contains(table) || !error.contains("STATEMENT: ");
    errors.retain(|error| ours(error) && !ALLOWED.iter().any(|allowed| error.contains(allowed)));
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_found_with_their_statements_and_those_of_other_tables_are_not() {
        let log = "2026-01-01 LOG:  ready\n\
                   2026-01-01 ERROR:  operator does not exist: bytea = text at character 342\n\
                   2026-01-01 HINT:  No operator matches.\n\
                   2026-01-01 STATEMENT:  SET x;\n\tSELECT 1 FROM public.t1_2_holds\n\
                   2026-01-01 LOG:  t1_2\n\
                   2026-01-01 ERROR:  other\n\
                   2026-01-01 STATEMENT:  SELECT 1 FROM t3_4_holds\n\
                   2026-01-01 [ERROR] mariadbd: broken\n\
                   2026-01-01 [Note] fine\n";
        let found = errors(log, "t1_2");
        assert_eq!(found.len(), 2, "{found:#?}");
        assert!(found[0].contains("bytea") && found[0].ends_with("t1_2_holds"), "{found:#?}");
        assert!(found[1].contains("broken"), "{found:#?}");
    }
}
