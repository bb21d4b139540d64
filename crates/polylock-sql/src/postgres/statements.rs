//! The SQL of the store, from the files in `statements/`, with the tables' names and the clock filled in.

use std::time::Duration;

use polylock_core::Mode;

use crate::engine::literal::{LOCKS_NAMED, LOCKS_UNDER, Literals, Template, filled};

/// The database's clock in whole microseconds: `clock_timestamp()`, because `now()` is when the transaction began.
const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// Behind every place in the queue.
const MAX: &str = "9223372036854775807";

/// What every function is pinned to: other users may create functions and operators in schemas of a search path, which fit a call
/// better than the system's own, and would run with the rights of whoever locks.
const PINNED: &str = "SET search_path = pg_catalog, pg_temp";

/// The same for the transaction of a message.
const PIN: &str = "SET LOCAL search_path = pg_catalog, pg_temp;";

/// As durable as was asked, whatever the server's default is.
const DURABLE: &str =
    "PERFORM set_config('synchronous_commit', CASE WHEN a_durable THEN 'on' ELSE 'off' END, true);";

/// As escapes of hexadecimal digits, which mean the same under any `standard_conforming_strings`, and are read without a
/// call of a function.
impl Literals for sqlx::Postgres {
    fn bytes(text: &mut String, digits: &str) {
        text.extend(["E'\\\\x", digits, "'"]);
    }

    fn text(text: &mut String, digits: &str) {
        text.push_str("E'");
        for byte in 0..digits.len() / 2 {
            text.extend(["\\x", &digits[2 * byte..2 * byte + 2]]);
        }
        text.push('\'');
    }

    fn pair(text: &mut String, first: &str, second: &str) {
        text.push('(');
        Self::bytes(text, first);
        // The type of a column of VALUES is text unless it is stated.
        text.push_str("::bytea, ");
        Self::bytes(text, second);
        text.push_str("::bytea)");
    }
}

/// Every statement, for one schema and one prefix of table names.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) claim: Template,
    pub(super) keep_alive: Template,
    pub(super) notice: Template,
    pub(super) release: Template,
    pub(super) break_lock: Template,
    pub(super) handed: Template,
    pub(super) locks_named: Template,
    pub(super) locks_under: Template,
    pub(super) sweep_holds: Template,
    pub(super) sweep_waiters: Template,
    pub(super) sweep_broken: Template,
    pub(super) broken: Template,
    pub(super) notify: Template,
    pub(super) session: Template,
}

/// What makes the tables and the functions; `schema` and `prefix` must have been checked.
pub(super) fn ddl(schema: &str, prefix: &str) -> String {
    let mut text = String::new();
    for file in [
        SCHEMA,
        include_str!("statements/routines/settle.sql"),
        include_str!("statements/routines/claim.sql"),
        include_str!("statements/routines/keep_alive.sql"),
        include_str!("statements/routines/release.sql"),
        include_str!("statements/routines/break.sql"),
        include_str!("statements/routines/installed.sql"),
    ] {
        text.push_str(&fill(file, schema, prefix, &[]));
        text.push('\n');
    }
    with_schema(schema, &text)
}

/// What the server is, and which tables there are.
pub(super) fn checkup(schema: &str, prefix: &str) -> Template {
    Template::new(&fill(include_str!("statements/checkup.sql"), schema, prefix, &[]))
}

/// The file that makes the tables.
pub(super) const SCHEMA: &str = include_str!("statements/schema.sql");

/// The columns that there are.
pub(super) fn columns(schema: &str, prefix: &str) -> Template {
    Template::new(&fill(include_str!("statements/columns.sql"), schema, prefix, &[]))
}

/// The versions of the tables and the functions.
pub(super) fn version(schema: &str, prefix: &str) -> Template {
    Template::new(&fill(include_str!("statements/version.sql"), schema, prefix, &[]))
}

/// Makes the schema before `ddl`, where it is one of its own.
pub(super) fn with_schema(schema: &str, ddl: &str) -> String {
    if schema == super::Config::DEFAULT_SCHEMA {
        return ddl.to_owned();
    }
    format!("CREATE SCHEMA IF NOT EXISTS \"{schema}\";\n{ddl}")
}

/// `ddl` as one transaction behind one lock: two programs that start at once do not meet half-made tables.
pub(super) fn creation(ddl: &str) -> Template {
    Template::plain(format!(
        "{PIN}\nSET LOCAL client_min_messages = warning;\n\
         SELECT pg_advisory_xact_lock(hashtextextended('polylock schema', 0));\n{ddl}"
    ))
}

/// The head of a transaction. The server ends each statement of it after `patience`: by then nobody waits for its answer
/// any more.
pub(super) fn begin(patience: Duration) -> String {
    // Under REPEATABLE READ a claim would judge by what was before it had its turn.
    format!(
        "SET TRANSACTION ISOLATION LEVEL READ COMMITTED;\nSET LOCAL statement_timeout = {};\n{PIN}",
        patience.as_millis()
    )
}

/// The tables' names are not quoted, so capitals do not count; the schema's is, so they do.
pub(super) fn fill(file: &str, schema: &str, prefix: &str, more: &[(&str, &str)]) -> String {
    let qualified = format!("\"{schema}\".{prefix}");
    let all = Mode::Exclusive.conflicts().to_string();
    let own = [
        ("{pinned}", PINNED),
        ("{pin}", PIN),
        ("{durable}", DURABLE),
        ("{now}", NOW),
        ("{max}", MAX),
        ("{all}", &all),
        ("{p}", &qualified),
        ("{s}", schema),
        ("{t}", prefix),
    ];
    filled(file, &[more, &own].concat())
}

impl Statements {
    /// The statements on tables of `schema` whose names begin with `prefix`, both of which must have been checked.
    pub(super) fn new(schema: &str, prefix: &str, patience: Duration) -> Self {
        let begin = begin(patience);
        let with = |file: &str, more: &[(&str, &str)]| {
            let more = [more, &[("{begin}", begin.as_str())]].concat();
            Template::new(&fill(file, schema, prefix, &more))
        };
        let locks = include_str!("statements/locks.sql");
        let sweep = include_str!("statements/sweep.sql");
        Self {
            claim: with(include_str!("statements/claim.sql"), &[]),
            keep_alive: with(include_str!("statements/keep_alive.sql"), &[]),
            notice: with(include_str!("statements/notice.sql"), &[]),
            release: with(include_str!("statements/release.sql"), &[]),
            break_lock: with(include_str!("statements/break.sql"), &[]),
            handed: with(include_str!("statements/handed.sql"), &[]),
            locks_named: with(locks, &LOCKS_NAMED),
            locks_under: with(locks, &LOCKS_UNDER),
            sweep_holds: with(sweep, &[("{table}", "holds")]),
            sweep_waiters: with(sweep, &[("{table}", "waiters")]),
            sweep_broken: with(sweep, &[("{table}", "broken")]),
            broken: with(include_str!("statements/broken.sql"), &[]),
            notify: with(include_str!("statements/notify.sql"), &[]),
            session: with(include_str!("statements/session.sql"), &[]),
        }
    }
}
