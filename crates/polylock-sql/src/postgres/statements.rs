//! The SQL of the store, from the files in `statements/`, with the tables' names and the clock filled in.

use std::time::Duration;

use polylock_core::Mode;

use super::{Config, pessimistic};
use crate::{
    engine::{
        literal::{LOCKS_NAMED, LOCKS_UNDER, Literals, Template, filled},
        version::{Version, with_added},
    },
    pessimistic::Strategy,
};

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

/// A set of tables, with the functions on them.
pub(super) struct Tables {
    pub(super) version: Version<'static>,
    /// The file that makes the tables of the first version.
    pub(super) schema: &'static str,
    /// What makes the functions, by name. The number at the end of a name is the version of what the function does: a program of
    /// another version has functions of its own beside these.
    pub(super) routines: &'static [(&'static str, &'static str)],
}

/// Those of leases.
const LEASE: Tables = Tables {
    // The steps are in `statements/upgrade/`.
    version: Version { row: "schema", first: 2, steps: &[], oldest: 2, next: None },
    schema: concat!(include_str!("statements/meta.sql"), include_str!("statements/schema.sql")),
    routines: &[
        ("settle_2", include_str!("statements/routines/settle.sql")),
        ("claim_2", include_str!("statements/routines/claim.sql")),
        ("keep_alive_2", include_str!("statements/routines/keep_alive.sql")),
        ("release_2", include_str!("statements/routines/release.sql")),
        ("break_2", include_str!("statements/routines/break.sql")),
    ],
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

/// What makes the tables and the functions of `config`, which must have been checked, or leads to them from any earlier version from
/// which there are steps. Wherever it was done already, wholly or in part, it may be done again.
pub(super) fn ddl(config: &Config) -> String {
    let (tables, version) = (tables(config), known(config));
    let numbers = version.numbers();
    let numbers = numbers.each_ref().map(|(key, number)| (*key, number.as_str()));
    let mut text = String::new();
    if config.schema != Config::DEFAULT_SCHEMA {
        text = format!("CREATE SCHEMA IF NOT EXISTS \"{}\";\n", config.schema);
    }
    let mut add = |file: &str| {
        text.push_str(&fill(file, config, &numbers));
        text.push('\n');
    };
    add(tables.schema);
    for (_, step) in version.steps() {
        add(&with_added(step, |added| {
            added.statement.replacen("ADD COLUMN", "ADD COLUMN IF NOT EXISTS", 1) + ";"
        }));
    }
    tables.routines.iter().for_each(|(_, routine)| add(routine));
    add(include_str!("statements/installed.sql"));
    text
}

/// What the server is, and which tables there are.
pub(super) fn checkup(config: &Config) -> Template {
    Template::new(&fill(include_str!("statements/checkup.sql"), config, &[]))
}

/// The columns that there are.
pub(super) fn columns(config: &Config) -> Template {
    Template::new(&fill(include_str!("statements/columns.sql"), config, &[]))
}

/// The versions that there are.
pub(super) fn version(config: &Config) -> Template {
    let Tables { version, routines, .. } = tables(config);
    // As the server folds it.
    let prefix = config.common.table.to_ascii_lowercase();
    let names: Vec<String> = routines.iter().map(|(name, _)| format!("'{prefix}_{name}'")).collect();
    let more = [("{routines}", names.join(", ")), ("{row}", version.row.to_owned())];
    let more = more.each_ref().map(|(key, value)| (*key, value.as_str()));
    Template::new(&fill(include_str!("statements/version.sql"), config, &more))
}

/// What sets the oldest version whose programs may use the tables.
pub(super) fn raise(config: &Config, oldest: i64) -> String {
    fill(&format!("UPDATE {{p}}_meta SET value = {oldest} WHERE key = 'oldest'"), config, &[])
}

/// How long the making of the tables waits for those who use them, before it lets others pass and tries again.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// `ddl` as one transaction behind one lock: two programs that start at once do not meet half-made tables.
pub(super) fn creation(config: &Config) -> Template {
    Template::plain(format!(
        "{PIN}\nSET LOCAL client_min_messages = warning;\nSET LOCAL lock_timeout = {};\n\
         SELECT pg_advisory_xact_lock(hashtextextended('polylock schema', 0));\n{}",
        LOCK_TIMEOUT.as_millis(),
        ddl(config)
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

/// The tables' names are not quoted, so capitals do not count, in the keys of advisory locks neither; the schema's is, so they do.
pub(super) fn fill(file: &str, config: &Config, more: &[(&str, &str)]) -> String {
    let (schema, prefix) = (config.schema.as_str(), config.common.table.to_ascii_lowercase());
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
        ("{t}", prefix.as_str()),
    ];
    config.common.edited(filled(file, &[more, &own].concat()))
}

impl Statements {
    /// The statements on the tables of `config`, which must have been checked.
    pub(super) fn new(config: &Config) -> Self {
        let begin = begin(config.common.timeout);
        let with = |file: &str, more: &[(&str, &str)]| {
            let more = [more, &[("{begin}", begin.as_str())]].concat();
            Template::new(&fill(file, config, &more))
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
