//! The SQL of the store, from the files in `statements/`, with the table names and the clock filled in.
//!
//! The statements have the same meaning under any `sql_mode` and character set of the session, on MySQL and MariaDB.

use polylock_core::Mode;

use super::config::Config;
use crate::engine::{
    server::{
        literal::{Literals, Template, fill_template},
        locks::LockLists,
        records::RecordStatements,
        tables::Tables,
    },
    version::Version,
};

/// The database's clock in whole microseconds: the time of the statement that contains it, in UTC, so that it does not depend on
/// time zones and daylight saving time.
const NOW: &str = "timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6))";

/// Greater than every queue position.
const MAX: &str = "9223372036854775807";

/// The steps from the first version of the tables of either strategy.
pub(super) const STEPS: &[&str] = &[include_str!("statements/upgrade/3.sql")];

/// The tables of the lease strategy.
pub(super) const TABLES: Tables = Tables {
    version: Version { row: "schema", first: 2, steps: STEPS, oldest: 2, next: None },
    schema: concat!(include_str!("statements/meta.sql"), include_str!("statements/schema.sql")),
    routines: &[
        ("claim_4", include_str!("statements/routines/claim.sql")),
        ("keep_alive_4", include_str!("statements/routines/keep_alive.sql")),
        ("release_6", include_str!("statements/routines/release.sql")),
        ("park_5", include_str!("statements/routines/park.sql")),
        ("watch_4", include_str!("statements/routines/watch.sql")),
        ("break_3", include_str!("statements/routines/break.sql")),
        ("convert_4", include_str!("statements/routines/convert.sql")),
        ("sweep_2", include_str!("statements/routines/sweep.sql")),
    ],
};

impl Literals for sqlx::MySql {
    fn bytes(text: &mut String, digits: &str) {
        text.extend(["x'", digits, "'"]);
    }

    /// Writes the bytes of the text, because the tables store bytes.
    fn text(text: &mut String, digits: &str) {
        Self::bytes(text, digits);
    }

    #[cfg(any(feature = "postgres", test))]
    fn pair(text: &mut String, first: &str, second: &str) {
        text.extend(["(x'", first, "', x'", second, "')"]);
    }
}

/// Every statement, for one prefix of table names.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) claim: Template,
    pub(super) keep_alive: Template,
    pub(super) notice: Template,
    pub(super) release: Template,
    pub(super) park: Template,
    pub(super) break_lock: Template,
    pub(super) convert: Template,
    pub(super) watch: Template,
    pub(super) lists: LockLists,
    pub(super) sweep: Template,
    pub(super) raise: [Template; 1],
    pub(super) records: RecordStatements,
}

/// Fills in `file`. The prefix is case-insensitive: for names of tables the server's file system would decide otherwise, and
/// names of routines are always case-insensitive.
pub(super) fn fill(file: &str, config: &Config, more: &[(&str, &str)]) -> String {
    let prefix = config.common.table.to_ascii_lowercase();
    // A hold that waits for a conversion has the bits of two modes; the greater one decides.
    let conflicts = |of: &str| {
        let by_mode = Mode::ALL.map(|mode| format!("WHEN {of} >= {} THEN {}", mode.bit(), mode.conflicts()));
        let strongest_first: Vec<String> = by_mode.into_iter().rev().collect();
        format!("CASE {} ELSE 0 END", strongest_first.join(" "))
    };
    let (in_row, in_variable) = (conflicts("mode"), conflicts("v_mode"));
    let (exclusive, all) = (Mode::Exclusive.bit().to_string(), Mode::Exclusive.conflicts().to_string());
    let own = [
        ("{now}", NOW),
        ("{max}", MAX),
        ("{p}", prefix.as_str()),
        ("{conflicts mode}", in_row.as_str()),
        ("{conflicts v_mode}", in_variable.as_str()),
        ("{exclusive}", exclusive.as_str()),
        ("{all}", all.as_str()),
    ];
    config.common.apply_edits(fill_template(file, &[more, &own].concat()))
}

/// Returns the statement that raises the tokens, which are drawn from `gates`, of which `mask` is the greatest shard.
pub(super) fn raise(config: &Config, gates: &str, mask: &str) -> [Template; 1] {
    let file = include_str!("statements/raise.sql");
    [Template::new(&fill(file, config, &[("{gates}", gates), ("{mask}", mask)]))]
}

/// Returns the statements on the records of jobs.
pub(super) fn records(config: &Config) -> RecordStatements {
    let with = |file: &str| Template::new(&fill(file, config, &[]));
    RecordStatements {
        read: with(include_str!("statements/read_record.sql")),
        write: with(include_str!("statements/write_record.sql")),
    }
}

impl Statements {
    /// Returns the statements on the tables of `config`, which must have been checked.
    pub(super) fn new(config: &Config) -> Self {
        let with = |file: &str, more: &[(&str, &str)]| Template::new(&fill(file, config, more));
        Self {
            claim: with(include_str!("statements/claim.sql"), &[]),
            keep_alive: with(include_str!("statements/keep_alive.sql"), &[]),
            notice: with(include_str!("statements/notice.sql"), &[]),
            release: with(include_str!("statements/release.sql"), &[]),
            park: with(include_str!("statements/park.sql"), &[]),
            break_lock: with(include_str!("statements/break.sql"), &[]),
            convert: with(include_str!("statements/convert.sql"), &[]),
            watch: with(include_str!("statements/watch.sql"), &[]),
            lists: LockLists::new(|which| with(include_str!("statements/locks.sql"), which)),
            sweep: with(include_str!("statements/sweep.sql"), &[]),
            raise: raise(config, "gates", "1023"),
            records: records(config),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::server::literal::Arg;

    #[test]
    fn arguments_are_encoded_as_digits() {
        let statements = Statements::new(&Config::new("mysql://db/app").unwrap().namespace("Jobs"));
        let arguments = [Arg::Bytes(b"n"), Arg::Bytes(b""), Arg::Text("'"), Arg::Int(0), Arg::Int(7)];
        assert_eq!(
            statements.release.with::<sqlx::MySql>(&arguments).as_str(),
            "CALL jobs_release_6(x'6e', x'', x'27', 0, 7);"
        );
    }

    #[test]
    fn all_routines_are_created_under_their_names() {
        for (name, file) in TABLES.routines {
            assert!(
                file.contains(&format!(
                    "CREATE PROCEDURE /*!80029 IF NOT EXISTS */ /*M! IF NOT EXISTS */ {{p}}_{name}("
                )),
                "{name}"
            );
        }
    }
}
