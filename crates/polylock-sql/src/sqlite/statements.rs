//! The SQL of the store, from the files in `statements/`, with the table names and the clock filled in.

use std::sync::Arc;

use polylock_core::Mode;
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use crate::engine::{
    table::{self, Column},
    version::{Addition, NextVersion, Version, with_additions},
};

/// The database's clock in whole microseconds. SQLite reads it with a resolution of a millisecond, rounded down, once per statement and
/// after the statement has its lock. The 0.5 corrects the rounding error of the division that made it a fraction of a second.
pub(super) const NOW: &str = "(CAST(unixepoch('subsec') * 1000 + 0.5 AS INTEGER) * 1000)";

/// The resolution of the clock: the true time may be this much later than [`NOW`]. It is added to the end of every lease and subtracted
/// from every remaining lease, so that no lease is shorter than the store reported.
const STEP: &str = "1000";

/// The queue position of a request; the end of the queue if it has no live queue entry.
const PLACE: &str = "coalesce((SELECT seq FROM {p}_waiters WHERE name = ?1 AND request = ?2 \
                     AND expires_at > {now}), 9223372036854775807)";

/// The file that creates the tables of the first version.
pub(super) const SCHEMA: &str = include_str!("statements/schema.sql");

/// The version of the tables. The steps are in `statements/upgrade/`.
const VERSION: Version<'_> = Version {
    row: "schema",
    first: 2,
    steps: &[
        include_str!("statements/upgrade/3.sql"),
        include_str!("statements/upgrade/4.sql"),
        include_str!("statements/upgrade/5.sql"),
    ],
    oldest: 2,
    next: None,
};

/// Every statement, for one prefix of table names.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) prefix: String,
    next: Option<Arc<NextVersion>>,
    pub(super) has_schema: SqlStr,
    pub(super) columns: SqlStr,
    pub(super) foreign: SqlStr,
    pub(super) version: SqlStr,
    pub(super) drop_all: SqlStr,
    pub(super) take: SqlStr,
    pub(super) look: SqlStr,
    pub(super) queue: SqlStr,
    pub(super) keep_alive: SqlStr,
    pub(super) release: SqlStr,
    pub(super) hand_over: SqlStr,
    pub(super) withdraw: SqlStr,
    pub(super) park: SqlStr,
    pub(super) gone: SqlStr,
    pub(super) inspect: SqlStr,
    pub(super) list: SqlStr,
    pub(super) mark: SqlStr,
    pub(super) break_lock: SqlStr,
    pub(super) convert: SqlStr,
    pub(super) notice: SqlStr,
    pub(super) refuse: SqlStr,
    pub(super) raise: SqlStr,
    pub(super) read_record: SqlStr,
    pub(super) write_record: SqlStr,
    pub(super) sweep: SqlStr,
    pub(super) data_version: SqlStr,
}

impl Statements {
    /// Creates the statements for tables with names that begin with `prefix`, which must have been checked: it is not quoted.
    pub(super) fn new(prefix: &str, next: Option<&Arc<NextVersion>>) -> Self {
        let look = include_str!("statements/look.sql");
        let known = VERSION.with(next.map(Arc::as_ref));
        let fill = |file: &str| fill(file, prefix, known, &[]);
        Self {
            prefix: prefix.to_owned(),
            next: next.cloned(),
            has_schema: fill(include_str!("statements/has_schema.sql")),
            columns: fill(include_str!("statements/columns.sql")),
            foreign: fill(include_str!("statements/foreign.sql")),
            version: fill(include_str!("statements/version.sql")),
            drop_all: fill(&format!(
                "BEGIN IMMEDIATE;\n{}COMMIT;",
                table::drops(&(VERSION.steps.concat() + SCHEMA))
            )),
            take: fill(include_str!("statements/take.sql")),
            look: fill(look),
            queue: fill(&include_str!("statements/queue.sql").replace("\n{look}\n", &format!("\n{look}\n"))),
            keep_alive: fill(include_str!("statements/keep_alive.sql")),
            release: fill(include_str!("statements/release.sql")),
            hand_over: fill(
                &include_str!("statements/hand_over.sql")
                    .replace("{next}", &code(include_str!("statements/next.sql"))),
            ),
            withdraw: fill(include_str!("statements/withdraw.sql")),
            park: fill(include_str!("statements/park.sql")),
            gone: fill(include_str!("statements/gone.sql")),
            inspect: fill(include_str!("statements/inspect.sql")),
            list: fill(include_str!("statements/list.sql")),
            mark: fill(include_str!("statements/mark.sql")),
            break_lock: fill(include_str!("statements/break.sql")),
            convert: fill(include_str!("statements/convert.sql")),
            notice: fill(include_str!("statements/notice.sql")),
            refuse: fill(include_str!("statements/refuse.sql")),
            raise: fill(include_str!("statements/raise.sql")),
            read_record: fill(include_str!("statements/read_record.sql")),
            write_record: fill(include_str!("statements/write_record.sql")),
            sweep: fill(include_str!("statements/sweep.sql")),
            data_version: fill(include_str!("statements/data_version.sql")),
        }
    }

    /// Returns the version of the tables that this program uses.
    pub(super) fn known(&self) -> Version<'_> {
        VERSION.with(self.next.as_deref())
    }

    /// Returns the script that creates the tables, or leads to them from version `found`, 0 if there is none; `columns` are those that
    /// exist. The script fails without an effect if the tables have another version meanwhile.
    pub(super) fn creation(&self, found: i64, columns: &[Column]) -> SqlStr {
        let is_there = |added: &Addition<'_>| {
            let table = format!("{}_{}", self.prefix, added.table);
            let mut columns = columns.iter();
            columns
                .any(|(t, column)| t.eq_ignore_ascii_case(&table) && column.eq_ignore_ascii_case(added.name))
        };
        let mut script = format!("BEGIN IMMEDIATE;\n{SCHEMA}\n");
        for (_, step) in self.known().steps() {
            let add = |added: &Addition<'_>| {
                if is_there(added) { String::new() } else { format!("{};", added.statement) }
            };
            script.extend([with_additions(step, add).as_str(), "\n"]);
        }
        script.push_str(include_str!("statements/installed.sql"));
        script.push_str("COMMIT;");
        fill(&script, &self.prefix, self.known(), &[("{found}", found.to_string())])
    }

    /// Returns the statement that sets the oldest version with programs that may use the tables.
    pub(super) fn raise(&self, oldest: i64) -> String {
        format!("UPDATE {}_meta SET value = {oldest} WHERE key = 'oldest'", self.prefix)
    }
}

/// Returns the statements of a file, without its comments.
fn code(file: &str) -> String {
    file.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n")
}

/// Removes the comments, which the driver would hash and compare with every call, and replaces every parameter in braces.
fn fill(file: &str, prefix: &str, known: Version<'_>, more: &[(&str, String)]) -> SqlStr {
    let mut text = code(file).replace("{place}", PLACE).replace("{p}", prefix);
    let by_mode = Mode::ALL.map(|mode| format!(" WHEN {} THEN {}", mode.bit(), mode.conflicts())).concat();
    let (exclusive, all) = (Mode::Exclusive.bit().to_string(), Mode::Exclusive.conflicts().to_string());
    text = text
        .replace("{conflicts walk.mode}", &format!("CASE walk.mode{by_mode} ELSE 0 END"))
        .replace("{exclusive}", &exclusive)
        .replace("{all}", &all);
    for parameter in ["?3", "?4", "?8", "ttl"] {
        let until = format!("{NOW} + {parameter} + {STEP}");
        text = text.replace(&format!("{{until {parameter}}}"), &until);
    }
    text = text
        .replace("{left}", &format!("max(expires_at - {NOW} - {STEP}, 0)"))
        .replace("{age}", &format!("max({NOW} - max(since, 0), 0)"))
        // Other programs can write to the file, too: limits keep every reply small.
        .replace("{owner}", "substr(owner, 1, 256)")
        .replace("{label}", "substr(label, 1, 256)")
        .replace("{notice}", "substr(notice, 1, 1024)")
        .replace("{now}", NOW);
    for (key, value) in known.replacements().iter().chain(more) {
        text = text.replace(key, value);
    }
    if let Some(next) = known.next {
        text = next.apply_edits(text);
    }
    // An `Arc`, because a statement is cloned with every call. Only the prefix comes from outside, and it was checked.
    AssertSqlSafe(Arc::<str>::from(text)).into_sql_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sqlx::{ConnectOptions, Executor, Row, SqliteConnection, sqlite::SqliteConnectOptions};

    /// Returns SQLite's query plan for every statement of `sql`.
    async fn plan(connection: &mut SqliteConnection, sql: &SqlStr) -> Vec<String> {
        let mut steps = Vec::new();
        for statement in sql.as_str().split(';').filter(|statement| statement.contains("polylock_")) {
            let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {statement}"));
            let rows = connection.fetch_all(explain).await.unwrap();
            steps.extend(rows.iter().map(|row| row.get::<String, _>("detail")));
        }
        steps
    }

    /// Inserts three expired holds, a live hold and an expired waiter.
    const ROWS: &str = "
        INSERT INTO polylock_holds (token, name, slot, request, mode, owner, label, since, expires_at)
        SELECT column1, CAST('n' || column1 AS BLOB), x'', zeroblob(16), 5, '', '', 0, iif(column1 = 2, 1 << 60, 0)
        FROM (VALUES (1), (2), (3), (4));
        INSERT INTO polylock_waiters VALUES (7, x'00', zeroblob(16), 5, '', '', 0, 0, NULL, NULL, NULL);";

    #[tokio::test]
    async fn a_sweep_continues_where_the_last_one_ended() {
        let statements = Statements::new("polylock", None);
        let mut connection = SqliteConnectOptions::new().in_memory(true).connect().await.unwrap();
        connection.execute(statements.creation(0, &[])).await.unwrap();
        connection.execute(ROWS).await.unwrap();
        let mut from = (0, 0);
        let mut ends = Vec::new();
        for _ in 0..3 {
            let sweep = sqlx::query(statements.sweep.clone()).bind(from.0).bind(from.1).bind(2);
            let row = sweep.fetch_one(&mut connection).await.unwrap();
            from = (row.get::<Option<i64>, _>(0).unwrap_or(0), row.get::<Option<i64>, _>(1).unwrap_or(0));
            ends.push(from);
        }
        let left = connection.fetch_all("SELECT token FROM polylock_holds").await.unwrap();
        let left: Vec<i64> = left.iter().map(|row| row.get(0)).collect();
        assert_eq!(left, [2], "the live hold stays: {ends:?}");
    }

    #[tokio::test]
    async fn no_statement_scans_a_table_or_all_waiters_of_a_lock() {
        let statements = Statements::new("polylock", None);
        let mut connection = SqliteConnectOptions::new().in_memory(true).connect().await.unwrap();
        connection.execute(statements.creation(0, &[])).await.unwrap();
        let Statements {
            take,
            look,
            queue,
            keep_alive,
            release,
            hand_over,
            withdraw,
            gone,
            inspect,
            list,
            mark,
            break_lock,
            convert,
            notice,
            sweep,
            ..
        } = &statements;
        let breaking = [mark, break_lock, convert, notice];
        for sql in [take, look, queue, keep_alive, release, hand_over, withdraw, gone, inspect, list, sweep]
            .into_iter()
            .chain(breaking)
        {
            let steps = plan(&mut connection, sql).await;
            assert!(!steps.is_empty());
            for step in &steps {
                let scans = ["SCAN polylock_", "SCAN hold", "SCAN waiter", "SCAN behind"]
                    .iter()
                    .any(|scan| step.starts_with(scan));
                assert!(!scans, "{step}: {sql:?}");
                // A search by name alone would read every row of a lock with hundreds of waiters.
                let all = step.contains("_waiters USING") && step.ends_with("(name=?)");
                assert!(!all || sql == inspect, "{step}: {sql:?}");
            }
        }
    }
}
