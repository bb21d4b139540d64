//! The SQL of the store, from the files in `statements/`, with the tables' names and the clock filled in.
//!
//! All of it holds under any `sql_mode` and character set of the session, on MySQL and MariaDB alike.

use crate::engine::literal::{LOCKS_NAMED, LOCKS_UNDER, Literals, Template, filled};

/// The database's clock in whole microseconds: of the statement it stands in, in Universal Time, so that no time zone and no
/// daylight saving comes in.
const NOW: &str = "timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6))";

/// Behind every place in the queue.
const MAX: &str = "9223372036854775807";

/// A routine keeps the mode in which it was made: nothing is cut off silently, no other dialect, no other engine.
const MODE: &str = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION';";

/// What makes the routines, by name. The number at the end of a name is the version of what it does: a program of another
/// version has routines of its own beside these.
const ROUTINES: [(&str, &str); 5] = [
    ("claim_2", include_str!("statements/routines/claim.sql")),
    ("keep_alive_2", include_str!("statements/routines/keep_alive.sql")),
    ("release_2", include_str!("statements/routines/release.sql")),
    ("break_2", include_str!("statements/routines/break.sql")),
    ("sweep_2", include_str!("statements/routines/sweep.sql")),
];

/// How many routines there are.
pub(super) const ROUTINE_COUNT: i64 = 5;
/// How many gates there are.
pub(super) const GATE_COUNT: i64 = 1024;

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

/// What makes the tables and the routines, for `mysql` and `mariadb`, the programs; `prefix` must have been checked.
pub(super) fn script(database: &str, prefix: &str) -> String {
    let mut text = heading(database);
    text.push_str(&fill(SCHEMA, prefix, &[]));
    // What a routine is made of has semicolons, too.
    text.push_str("\nDELIMITER //\n");
    for (_, file) in ROUTINES {
        text.push_str(&fill(file, prefix, &[]));
        text.push_str("\n//\n");
    }
    text.push_str("DELIMITER ;\n");
    text.push_str(&fill(include_str!("statements/installed.sql"), prefix, &[]));
    text.push('\n');
    text
}

/// What a script begins with.
pub(super) fn heading(database: &str) -> String {
    format!("USE `{}`;\n{MODE}\n", database.replace('`', "``"))
}

/// What makes the tables and the routines, to be sent one after the other.
pub(super) fn creation(prefix: &str) -> Vec<Template> {
    let mut create = vec![MODE.to_owned(), fill(SCHEMA, prefix, &[])];
    create.extend(ROUTINES.map(|(_, file)| fill(file, prefix, &[])));
    create.push(fill(include_str!("statements/installed.sql"), prefix, &[]));
    create.into_iter().map(Template::plain).collect()
}

/// The same, each statement by itself.
pub(super) fn one_by_one(prefix: &str) -> Vec<String> {
    let mut statements = vec![MODE.trim_end_matches(';').to_owned()];
    statements.extend(split(&fill(SCHEMA, prefix, &[])));
    statements.extend(ROUTINES.map(|(_, file)| fill(file, prefix, &[]).trim().to_owned()));
    statements.extend(split(&fill(include_str!("statements/installed.sql"), prefix, &[])));
    statements
}

/// The statements of `script`, which has no semicolon within one.
pub(super) fn split(script: &str) -> Vec<String> {
    let statements = script.split(';').map(str::trim);
    statements.filter(|statement| !statement.is_empty()).map(ToOwned::to_owned).collect()
}

/// How the server is set.
pub(super) fn checkup() -> Template {
    Template::new(&fill(include_str!("statements/checkup.sql"), "", &[]))
}

/// The file that makes the tables.
pub(super) const SCHEMA: &str = include_str!("statements/schema.sql");

/// The columns that there are.
pub(super) fn columns(prefix: &str) -> Template {
    Template::new(&fill(include_str!("statements/columns.sql"), prefix, &[]))
}

/// What there is of the tables and the routines.
pub(super) fn version(prefix: &str) -> Template {
    let names = ROUTINES.map(|(name, _)| format!("'{{p}}_{name}'")).join(", ");
    Template::new(&fill(include_str!("statements/version.sql"), prefix, &[("{routines}", &names)]))
}

/// Whether there is a table whose name ends with this.
pub(super) fn others(prefix: &str, table: &str) -> Template {
    Template::new(&fill(include_str!("statements/others.sql"), prefix, &[("{table}", table)]))
}

/// Capitals in a prefix do not count: in names of tables it is the server's file system that would decide, and in names of
/// routines they never do.
pub(super) fn fill(file: &str, prefix: &str, more: &[(&str, &str)]) -> String {
    let prefix = prefix.to_ascii_lowercase();
    let own = [("{now}", NOW), ("{max}", MAX), ("{p}", prefix.as_str())];
    filled(file, &[more, &own].concat())
}

impl Statements {
    /// The statements on tables whose names begin with `prefix`, which must have been checked.
    pub(super) fn new(prefix: &str) -> Self {
        let with = |file: &str, more: &[(&str, &str)]| Template::new(&fill(file, prefix, more));
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
        let statements = Statements::new("Jobs");
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
    fn all_routines_are_counted() {
        assert_eq!(usize::try_from(ROUTINE_COUNT), Ok(ROUTINES.len()));
        for (name, file) in ROUTINES {
            assert!(
                file.contains(&format!(
                    "CREATE PROCEDURE /*!80029 IF NOT EXISTS */ /*M! IF NOT EXISTS */ {{p}}_{name}("
                )),
                "{name}"
            );
        }
    }
}
