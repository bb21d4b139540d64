//! The SQL of the store, from the files in `statements/`, with the table names and the clock filled in.

use std::time::Duration;

use polylock_core::Mode;

use super::{Config, pessimistic};
use crate::{
    engine::{
        literal::{LOCKS_BY_NAME, LOCKS_BY_PREFIX, Literals, Template, fill_template},
        version::{Version, with_additions},
    },
    pessimistic::Strategy,
};

/// The database's clock in whole microseconds: `clock_timestamp()`, because `now()` is the time at which the transaction began.
const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// Greater than every queue position.
const MAX: &str = "9223372036854775807";

/// The search path of every function. Other users may create functions and operators in schemas of a search path that match a
/// call better than those of the system, and that would run with the rights of the caller.
const PINNED: &str = "SET search_path = pg_catalog, pg_temp";

/// The same search path for the transaction of a message.
const PIN: &str = "SET LOCAL search_path = pg_catalog, pg_temp;";

/// Sets the configured durability, independently of the server's default.
const DURABLE: &str =
    "PERFORM set_config('synchronous_commit', CASE WHEN a_durable THEN 'on' ELSE 'off' END, true);";

/// Writes values as escapes of hexadecimal digits: they have the same meaning under any `standard_conforming_strings`, and need
/// no function call.
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
        // A column of VALUES has the type text unless a type is stated.
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
    pub(super) locks_by_name: Template,
    pub(super) locks_by_prefix: Template,
    pub(super) sweep_holds: Template,
    pub(super) sweep_waiters: Template,
    pub(super) sweep_broken: Template,
    pub(super) broken: Template,
    pub(super) notify: Template,
    pub(super) session: Template,
}

/// A set of tables and the functions that use them.
pub(super) struct Tables {
    pub(super) version: Version<'static>,
    /// The statements that create the tables of the first version.
    pub(super) schema: &'static str,
    /// The names of the functions and the statements that create them. The number at the end of a name is the version of the
    /// function's behaviour: programs of other versions have functions of their own in the same schema.
    pub(super) routines: &'static [(&'static str, &'static str)],
}

/// The tables of the lease strategy.
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

/// Returns the statements that create the tables and functions of `config`, which must have been checked, or upgrade them from
/// any earlier version that has upgrade steps. They may be run again, even if an earlier run was interrupted.
pub(super) fn ddl(config: &Config) -> String {
    let (tables, version) = (tables(config), known(config));
    let numbers = version.replacements();
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
        add(&with_additions(step, |added| {
            added.statement.replacen("ADD COLUMN", "ADD COLUMN IF NOT EXISTS", 1) + ";"
        }));
    }
    tables.routines.iter().for_each(|(_, routine)| add(routine));
    add(include_str!("statements/installed.sql"));
    text
}

/// Reads the server's settings and checks which tables exist.
pub(super) fn checkup(config: &Config) -> Template {
    Template::new(&fill(include_str!("statements/checkup.sql"), config, &[]))
}

/// Lists the existing columns.
pub(super) fn columns(config: &Config) -> Template {
    Template::new(&fill(include_str!("statements/columns.sql"), config, &[]))
}

/// Reads the existing versions.
pub(super) fn version(config: &Config) -> Template {
    let Tables { version, routines, .. } = tables(config);
    // The server folds unquoted names to lower case.
    let prefix = config.common.table.to_ascii_lowercase();
    let names: Vec<String> = routines.iter().map(|(name, _)| format!("'{prefix}_{name}'")).collect();
    let more = [("{routines}", names.join(", ")), ("{row}", version.row.to_owned())];
    let more = more.each_ref().map(|(key, value)| (*key, value.as_str()));
    Template::new(&fill(include_str!("statements/version.sql"), config, &more))
}

/// Returns the statement that sets the oldest version with access to the tables.
pub(super) fn raise(config: &Config, oldest: i64) -> String {
    fill(&format!("UPDATE {{p}}_meta SET value = {oldest} WHERE key = 'oldest'"), config, &[])
}

/// The time that a change of the tables waits for transactions that use them. After it, the change lets other transactions pass
/// and is retried.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// `ddl` as one transaction behind one lock, so that two programs that start at the same time never see incomplete tables.
pub(super) fn creation(config: &Config) -> Template {
    Template::plain(format!(
        "{PIN}\nSET LOCAL client_min_messages = warning;\nSET LOCAL lock_timeout = {};\n\
         SELECT pg_advisory_xact_lock(hashtextextended('polylock schema', 0));\n{}",
        LOCK_TIMEOUT.as_millis(),
        ddl(config)
    ))
}

/// The head of a transaction. The server cancels each of its statements after `timeout`, when the client has stopped waiting for
/// the reply.
pub(super) fn begin(timeout: Duration) -> String {
    // Under REPEATABLE READ a claim would decide on a snapshot that is older than its advisory lock.
    format!(
        "SET TRANSACTION ISOLATION LEVEL READ COMMITTED;\nSET LOCAL statement_timeout = {};\n{PIN}",
        timeout.as_millis()
    )
}

/// Fills in `file`. The tables' names are not quoted, so the prefix is case-insensitive, also in the keys of advisory locks; the
/// schema's name is quoted, so it is case-sensitive.
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
    config.common.apply_edits(fill_template(file, &[more, &own].concat()))
}

impl Statements {
    /// Returns the statements on the tables of `config`, which must have been checked.
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
            locks_by_name: with(locks, &LOCKS_BY_NAME),
            locks_by_prefix: with(locks, &LOCKS_BY_PREFIX),
            sweep_holds: with(sweep, &[("{table}", "holds")]),
            sweep_waiters: with(sweep, &[("{table}", "waiters")]),
            sweep_broken: with(sweep, &[("{table}", "broken")]),
            broken: with(include_str!("statements/broken.sql"), &[]),
            notify: with(include_str!("statements/notify.sql"), &[]),
            session: with(include_str!("statements/session.sql"), &[]),
        }
    }
}
