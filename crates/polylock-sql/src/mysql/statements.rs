//! The SQL of the store, from the files in `statements/`, with the tables' names and the clock filled in.
//!
//! All of it holds under any `sql_mode` and character set of the session, on MySQL and MariaDB alike.

use super::{Config, config::database, pessimistic};
use crate::{
    engine::{
        literal::{LOCKS_NAMED, LOCKS_UNDER, Literals, Template, filled},
        version::{Added, Version, with_added},
    },
    pessimistic::Strategy,
};

/// The database's clock in whole microseconds: of the statement it stands in, in Universal Time, so that no time zone and no
/// daylight saving comes in.
const NOW: &str = "timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6))";

/// Behind every place in the queue.
const MAX: &str = "9223372036854775807";

/// A routine keeps the mode in which it was made: nothing is cut off silently, no other dialect, no other engine. And a change of a
/// table waits no longer than this for those who use it, before it lets others pass and is tried again.
const MODE: &str =
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', lock_wait_timeout = 1;";

/// A set of tables, with the routines on them.
pub(super) struct Tables {
    pub(super) version: Version<'static>,
    /// The file that makes the tables of the first version.
    pub(super) schema: &'static str,
    /// What makes the routines, by name. The number at the end of a name is the version of what the routine does: a program of
    /// another version has routines of its own beside these.
    pub(super) routines: &'static [(&'static str, &'static str)],
    /// The table with a row for each shard, and how many there are.
    pub(super) shards: (&'static str, i64),
    /// The other strategy, and a table of it.
    pub(super) other: (&'static str, &'static str),
}

/// Those of leases.
const LEASE: Tables = Tables {
    // The steps are in `statements/upgrade/`.
    version: Version { row: "schema", first: 2, steps: &[], oldest: 2, next: None },
    schema: concat!(include_str!("statements/meta.sql"), include_str!("statements/schema.sql")),
    routines: &[
        ("claim_2", include_str!("statements/routines/claim.sql")),
        ("keep_alive_2", include_str!("statements/routines/keep_alive.sql")),
        ("release_2", include_str!("statements/routines/release.sql")),
        ("break_2", include_str!("statements/routines/break.sql")),
        ("sweep_2", include_str!("statements/routines/sweep.sql")),
    ],
    shards: ("gates", 1024),
    other: ("pessimistic", "rows"),
};

/// Those of `config`.
pub(super) const fn tables(config: &Config) -> &'static Tables {
    match config.common.strategy {
        Strategy::Lease => &LEASE,
        Strategy::Pessimistic => &pessimistic::TABLES,
    }
}

/// The version of them.
pub(super) fn known(config: &Config) -> Version<'_> {
    tables(config).version.with(config.common.next.as_deref())
}

impl Literals for sqlx::MySql {
    fn bytes(text: &mut String, digits: &str) {
        text.extend(["x'", digits, "'"]);
    }

    /// The bytes of it, as the tables keep it.
    fn text(text: &mut String, digits: &str) {
        Self::bytes(text, digits);
    }

    /// Both keys under which the `second` may be found, see `present.sql`.
    fn pair(text: &mut String, first: &str, second: &str) {
        text.extend(["(x'", first, "', x''), (x'", first, "', x'", second, "')"]);
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
    pub(super) present: Template,
    pub(super) locks_named: Template,
    pub(super) locks_under: Template,
    pub(super) sweep: Template,
}

/// What makes the tables and the routines of `config`, which must have been checked, or leads to them from any earlier version from
/// which there are steps. Wherever it was done already, wholly or in part, it may be done again.
struct Parts {
    /// Several statements each.
    tables: Vec<String>,
    /// One each.
    routines: Vec<String>,
    installed: String,
}

impl Parts {
    fn of(config: &Config) -> Self {
        let (tables, version) = (tables(config), known(config));
        let numbers = version.numbers();
        let numbers = numbers.each_ref().map(|(key, number)| (*key, number.as_str()));
        let fill = |file: &str| fill(file, config, &numbers);
        let steps = version.steps().map(|(_, step)| fill(&with_added(step, add)));
        Self {
            tables: std::iter::once(fill(tables.schema)).chain(steps).collect(),
            routines: tables.routines.iter().map(|(_, file)| fill(file)).collect(),
            installed: fill(include_str!("statements/installed.sql")),
        }
    }
}

fn add(added: &Added<'_>) -> String {
    let statement = added.statement.replace('\'', "''");
    let (look, column) = if added.is_key { ("statistics", "index_name") } else { ("columns", "column_name") };
    let more = [
        ("{look}", look),
        ("{column}", column),
        ("{table}", added.table),
        ("{name}", added.name),
        ("{statement}", &statement),
    ];
    filled(include_str!("statements/add.sql"), &more)
}

/// What makes the tables and the routines, for `mysql` and `mariadb`, the programs.
pub(super) fn script(config: &Config) -> String {
    let Parts { tables, routines, installed } = Parts::of(config);
    let mut text = format!("USE `{}`;\n{MODE}\n", database(&config.source.options).replace('`', "``"));
    for table in tables {
        text.extend([&table, "\n"]);
    }
    if !routines.is_empty() {
        // What a routine is made of has semicolons, too.
        text.push_str("DELIMITER //\n");
        for routine in routines {
            text.extend([&routine, "\n//\n"]);
        }
        text.push_str("DELIMITER ;\n");
    }
    text.extend([&installed, "\n"]);
    text
}

/// The same, to be sent one after the other.
pub(super) fn creation(config: &Config) -> Vec<Template> {
    let Parts { tables, routines, installed } = Parts::of(config);
    let all = [vec![MODE.to_owned()], tables, routines, vec![installed]].concat();
    all.into_iter().map(Template::plain).collect()
}

/// The same, each statement by itself.
pub(super) fn one_by_one(config: &Config) -> Vec<String> {
    let Parts { tables, routines, installed } = Parts::of(config);
    let mut statements = vec![MODE.trim_end_matches(';').to_owned()];
    statements.extend(tables.iter().flat_map(|table| split(table)));
    statements.extend(routines.iter().map(|routine| routine.trim().to_owned()));
    statements.extend(split(&installed));
    statements
}

/// The statements of `script`, which has no semicolon within one.
fn split(script: &str) -> Vec<String> {
    let statements = script.split(';').map(str::trim);
    statements.filter(|statement| !statement.is_empty()).map(ToOwned::to_owned).collect()
}

/// How the server is set.
pub(super) fn checkup() -> Template {
    Template::new(&filled(include_str!("statements/checkup.sql"), &[]))
}

/// The columns that there are.
pub(super) fn columns(config: &Config) -> Template {
    Template::new(&fill(include_str!("statements/columns.sql"), config, &[]))
}

/// What there is of the tables and the routines.
pub(super) fn version(config: &Config) -> Template {
    let Tables { version, routines, .. } = tables(config);
    let mut names: Vec<String> = routines.iter().map(|(name, _)| format!("'{{p}}_{name}'")).collect();
    // A list has one member at least.
    names.push("''".to_owned());
    let names = names.join(", ");
    let more = [("{routines}", names.as_str()), ("{row}", version.row)];
    Template::new(&fill(include_str!("statements/version.sql"), config, &more))
}

/// How many shards there are.
pub(super) fn shards(config: &Config) -> Template {
    let (shards, _) = tables(config).shards;
    Template::new(&fill(include_str!("statements/shards.sql"), config, &[("{shards}", shards)]))
}

/// Whether there is a table of the other strategy.
pub(super) fn others(config: &Config) -> Template {
    let (_, table) = tables(config).other;
    Template::new(&fill(include_str!("statements/others.sql"), config, &[("{table}", table)]))
}

/// What sets the oldest version whose programs may use the tables.
pub(super) fn raise(config: &Config, oldest: i64) -> String {
    fill(&format!("UPDATE {{p}}_meta SET value = {oldest} WHERE name = 'oldest'"), config, &[])
}

/// Capitals in a prefix do not count: in names of tables it is the server's file system that would decide, and in names of
/// routines they never do.
pub(super) fn fill(file: &str, config: &Config, more: &[(&str, &str)]) -> String {
    let prefix = config.common.table.to_ascii_lowercase();
    let own = [("{now}", NOW), ("{max}", MAX), ("{p}", prefix.as_str())];
    config.common.edited(filled(file, &[more, &own].concat()))
}

impl Statements {
    /// The statements on the tables of `config`, which must have been checked.
    pub(super) fn new(config: &Config) -> Self {
        let with = |file: &str, more: &[(&str, &str)]| Template::new(&fill(file, config, more));
        let locks = include_str!("statements/locks.sql");
        Self {
            claim: with(include_str!("statements/claim.sql"), &[]),
            keep_alive: with(include_str!("statements/keep_alive.sql"), &[]),
            notice: with(include_str!("statements/notice.sql"), &[]),
            release: with(include_str!("statements/release.sql"), &[]),
            break_lock: with(include_str!("statements/break.sql"), &[]),
            present: with(include_str!("statements/present.sql"), &[]),
            locks_named: with(locks, &LOCKS_NAMED),
            locks_under: with(locks, &LOCKS_UNDER),
            sweep: with(include_str!("statements/sweep.sql"), &[]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::literal::Arg;

    #[test]
    fn arguments_are_digits_and_a_request_is_looked_for_in_both_places() {
        let statements = Statements::new(&Config::new("mysql://db/app").unwrap().table("Jobs"));
        let pairs = [(b"n'".to_vec(), vec![7]), (vec![], vec![8])];
        let text = statements.present.with::<sqlx::MySql>(&[Arg::Pairs(&pairs)]);
        assert_eq!(
            text.as_str().matches("((x'6e27', x''), (x'6e27', x'07'), (x'', x''), (x'', x'08'))").count(),
            2
        );
        let arguments = [Arg::Bytes(b"n"), Arg::Bytes(b""), Arg::Text("'")];
        assert_eq!(
            statements.release.with::<sqlx::MySql>(&arguments).as_str(),
            "CALL jobs_release_2(x'6e', x'', x'27');"
        );
    }

    #[test]
    fn all_routines_are_made_under_their_names() {
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
