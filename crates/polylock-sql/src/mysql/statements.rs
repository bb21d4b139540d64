//! The SQL of the store, from the files in `statements/`, with the table names and the clock filled in.
//!
//! The statements have the same meaning under any `sql_mode` and character set of the session, on MySQL and MariaDB.

use polylock_core::Mode;

use super::{Config, config::database, pessimistic};
use crate::{
    engine::{
        literal::{LOCKS_BY_NAME, LOCKS_BY_PREFIX, Literals, Template, fill_template},
        version::{Addition, Version, with_additions},
    },
    pessimistic::Strategy,
};

/// The database's clock in whole microseconds: the time of the statement that contains it, in UTC, so that it does not depend on
/// time zones and daylight saving time.
const NOW: &str = "timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6))";

/// Greater than every queue position.
const MAX: &str = "9223372036854775807";

/// The settings of the session that creates the routines. A routine keeps the `sql_mode` under which it was created: no silent
/// truncation, no other dialect, no other engine. A change of a table waits this long for transactions that use it, then lets
/// other transactions pass and is retried.
const MODE: &str =
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', lock_wait_timeout = 1;";

/// A set of tables and the routines that use them.
pub(super) struct Tables {
    pub(super) version: Version<'static>,
    /// The statements that create the tables of the first version.
    pub(super) schema: &'static str,
    /// The names of the routines and the statements that create them. The number at the end of a name is the version of the
    /// routine's behaviour: programs of other versions have routines of their own in the same database.
    pub(super) routines: &'static [(&'static str, &'static str)],
    /// The table with a row for each shard, and the number of shards.
    pub(super) shards: (&'static str, i64),
    /// The other strategy, and the name of one of its tables.
    pub(super) other: (&'static str, &'static str),
}

/// The tables of the lease strategy.
const LEASE: Tables = Tables {
    // The steps are in `statements/upgrade/`.
    version: Version { row: "schema", first: 2, steps: &[], oldest: 2, next: None },
    schema: concat!(include_str!("statements/meta.sql"), include_str!("statements/schema.sql")),
    routines: &[
        ("claim_3", include_str!("statements/routines/claim.sql")),
        ("keep_alive_3", include_str!("statements/routines/keep_alive.sql")),
        ("release_3", include_str!("statements/routines/release.sql")),
        ("watch_3", include_str!("statements/routines/watch.sql")),
        ("break_2", include_str!("statements/routines/break.sql")),
        ("sweep_2", include_str!("statements/routines/sweep.sql")),
    ],
    shards: ("gates", 1024),
    other: ("pessimistic", "rows"),
};

/// Returns the tables of the strategy of `config`.
pub(super) const fn tables(config: &Config) -> &'static Tables {
    match config.common.strategy {
        Strategy::Lease => &LEASE,
        Strategy::Pessimistic => &pessimistic::TABLES,
    }
}

/// Returns the table version that this program knows.
pub(super) fn known(config: &Config) -> Version<'_> {
    tables(config).version.with(config.common.next.as_deref())
}

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
    pub(super) break_lock: Template,
    pub(super) watch: Template,
    pub(super) locks_by_name: Template,
    pub(super) locks_by_prefix: Template,
    pub(super) sweep: Template,
}

/// The statements that create the tables and routines of `config`, which must have been checked, or upgrade them from any earlier
/// version that has upgrade steps. They may be run again, even if an earlier run was interrupted.
struct Parts {
    /// The scripts for the tables, with several statements each.
    tables: Vec<String>,
    /// The statements for the routines, one for each.
    routines: Vec<String>,
    installed: String,
}

impl Parts {
    fn of(config: &Config) -> Self {
        let (tables, version) = (tables(config), known(config));
        let numbers = version.replacements();
        let numbers = numbers.each_ref().map(|(key, number)| (*key, number.as_str()));
        let fill = |file: &str| fill(file, config, &numbers);
        let steps = version.steps().map(|(_, step)| fill(&with_additions(step, add)));
        Self {
            tables: std::iter::once(fill(tables.schema)).chain(steps).collect(),
            routines: tables.routines.iter().map(|(_, file)| fill(file)).collect(),
            installed: fill(include_str!("statements/installed.sql")),
        }
    }
}

fn add(added: &Addition<'_>) -> String {
    let statement = added.statement.replace('\'', "''");
    let (look, column) = if added.is_key { ("statistics", "index_name") } else { ("columns", "column_name") };
    let more = [
        ("{look}", look),
        ("{column}", column),
        ("{table}", added.table),
        ("{name}", added.name),
        ("{statement}", &statement),
    ];
    fill_template(include_str!("statements/add.sql"), &more)
}

/// Returns the script that creates the tables and routines, for the programs `mysql` and `mariadb`.
pub(super) fn script(config: &Config) -> String {
    let Parts { tables, routines, installed } = Parts::of(config);
    let mut text = format!("USE `{}`;\n{MODE}\n", database(&config.source.options).replace('`', "``"));
    for table in tables {
        text.extend([&table, "\n"]);
    }
    if !routines.is_empty() {
        // The body of a routine contains semicolons.
        text.push_str("DELIMITER //\n");
        for routine in routines {
            text.extend([&routine, "\n//\n"]);
        }
        text.push_str("DELIMITER ;\n");
    }
    text.extend([&installed, "\n"]);
    text
}

/// Returns the messages that create the tables and routines, in their order.
pub(super) fn creation(config: &Config) -> Vec<Template> {
    let Parts { tables, routines, installed } = Parts::of(config);
    let all = [vec![MODE.to_owned()], tables, routines, vec![installed]].concat();
    all.into_iter().map(Template::plain).collect()
}

/// Returns the statements that create the tables and routines, one by one.
pub(super) fn one_by_one(config: &Config) -> Vec<String> {
    let Parts { tables, routines, installed } = Parts::of(config);
    let mut statements = vec![MODE.trim_end_matches(';').to_owned()];
    statements.extend(tables.iter().flat_map(|table| split(table)));
    statements.extend(routines.iter().map(|routine| routine.trim().to_owned()));
    statements.extend(split(&installed));
    statements
}

/// Returns the statements of `script`. No statement may contain a semicolon.
fn split(script: &str) -> Vec<String> {
    let statements = script.split(';').map(str::trim);
    statements.filter(|statement| !statement.is_empty()).map(ToOwned::to_owned).collect()
}

/// Reads the server's settings.
pub(super) fn checkup() -> Template {
    Template::new(&fill_template(include_str!("statements/checkup.sql"), &[]))
}

/// Lists the existing columns.
pub(super) fn columns(config: &Config) -> Template {
    Template::new(&fill(include_str!("statements/columns.sql"), config, &[]))
}

/// Reads the existing versions and routines.
pub(super) fn version(config: &Config) -> Template {
    let Tables { version, routines, .. } = tables(config);
    let mut names: Vec<String> = routines.iter().map(|(name, _)| format!("'{{p}}_{name}'")).collect();
    // A list needs at least one member.
    names.push("''".to_owned());
    let names = names.join(", ");
    let more = [("{routines}", names.as_str()), ("{row}", version.row)];
    Template::new(&fill(include_str!("statements/version.sql"), config, &more))
}

/// Counts the shards.
pub(super) fn shards(config: &Config) -> Template {
    let (shards, _) = tables(config).shards;
    Template::new(&fill(include_str!("statements/shards.sql"), config, &[("{shards}", shards)]))
}

/// Checks if a table of the other strategy exists.
pub(super) fn others(config: &Config) -> Template {
    let (_, table) = tables(config).other;
    Template::new(&fill(include_str!("statements/others.sql"), config, &[("{table}", table)]))
}

/// Returns the statement that sets the oldest version with access to the tables.
pub(super) fn raise(config: &Config, oldest: i64) -> String {
    fill(&format!("UPDATE {{p}}_meta SET value = {oldest} WHERE name = 'oldest'"), config, &[])
}

/// Fills in `file`. The prefix is case-insensitive: for names of tables the server's file system would decide otherwise, and
/// names of routines are always case-insensitive.
pub(super) fn fill(file: &str, config: &Config, more: &[(&str, &str)]) -> String {
    let prefix = config.common.table.to_ascii_lowercase();
    let by_mode = Mode::ALL.map(|mode| format!(" WHEN {} THEN {}", mode.bit(), mode.conflicts())).concat();
    let conflicts = |of: &str| format!("CASE {of}{by_mode} ELSE 0 END");
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

impl Statements {
    /// Returns the statements on the tables of `config`, which must have been checked.
    pub(super) fn new(config: &Config) -> Self {
        let with = |file: &str, more: &[(&str, &str)]| Template::new(&fill(file, config, more));
        let locks = include_str!("statements/locks.sql");
        Self {
            claim: with(include_str!("statements/claim.sql"), &[]),
            keep_alive: with(include_str!("statements/keep_alive.sql"), &[]),
            notice: with(include_str!("statements/notice.sql"), &[]),
            release: with(include_str!("statements/release.sql"), &[]),
            break_lock: with(include_str!("statements/break.sql"), &[]),
            watch: with(include_str!("statements/watch.sql"), &[]),
            locks_by_name: with(locks, &LOCKS_BY_NAME),
            locks_by_prefix: with(locks, &LOCKS_BY_PREFIX),
            sweep: with(include_str!("statements/sweep.sql"), &[]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::literal::Arg;

    #[test]
    fn arguments_are_encoded_as_digits() {
        let statements = Statements::new(&Config::new("mysql://db/app").unwrap().table("Jobs"));
        let arguments = [Arg::Bytes(b"n"), Arg::Bytes(b""), Arg::Text("'")];
        assert_eq!(
            statements.release.with::<sqlx::MySql>(&arguments).as_str(),
            "CALL jobs_release_3(x'6e', x'', x'27');"
        );
    }

    #[test]
    fn all_routines_are_created_under_their_names() {
        for (name, file) in LEASE.routines {
            assert!(
                file.contains(&format!(
                    "CREATE PROCEDURE /*!80029 IF NOT EXISTS */ /*M! IF NOT EXISTS */ {{p}}_{name}("
                )),
                "{name}"
            );
        }
    }
}
