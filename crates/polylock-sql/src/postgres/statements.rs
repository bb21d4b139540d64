//! The SQL of the store, from the files in `statements/`, with the table names and the clock filled in.

use std::time::Duration;

use polylock_core::Mode;

use super::config::{Config, Durability};
use crate::engine::{
    server::{
        literal::{Literals, Template, fill_template},
        locks::LockLists,
        records::RecordStatements,
        tables::Tables,
    },
    version::Version,
};

/// The database's clock in whole microseconds: `clock_timestamp()`, because `now()` is the time at which the transaction began.
const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// Greater than every queue position.
const MAX: &str = "9223372036854775807";

/// The search path of every function. Other users may create functions and operators in schemas of a search path that match a
/// call better than those of the system, and that would run with the rights of the caller.
const PINNED: &str = "SET search_path = pg_catalog, pg_temp";

/// The same search path for the transaction of a message, and no compilation of its statements: where the planner's estimates are far from the
/// truth, a compilation takes hundreds of times as long as the statement.
pub(super) const PIN: &str = "SET LOCAL search_path = pg_catalog, pg_temp;\nSET LOCAL jit = off;";

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
    pub(super) park: Template,
    pub(super) break_lock: Template,
    pub(super) convert: Template,
    pub(super) handed: Template,
    pub(super) lists: LockLists,
    /// The sweeps of holds, of waiters, of broken holds.
    pub(super) sweep: [Template; 3],
    pub(super) broken: Template,
    pub(super) notify: Template,
    pub(super) session: Template,
    pub(super) raise: [Template; 2],
    pub(super) records: RecordStatements,
}

/// The steps from the first version of the tables of either strategy.
pub(super) const STEPS: &[&str] = &[include_str!("statements/upgrade/3.sql")];

/// The tables of the lease strategy.
pub(super) const TABLES: Tables = Tables {
    version: Version { row: "schema", first: 2, steps: STEPS, oldest: 2, next: None },
    schema: concat!(include_str!("statements/meta.sql"), include_str!("statements/schema.sql")),
    routines: &[
        ("settle_3", include_str!("statements/routines/settle.sql")),
        ("claim_4", include_str!("statements/routines/claim.sql")),
        ("keep_alive_3", include_str!("statements/routines/keep_alive.sql")),
        ("release_4", include_str!("statements/routines/release.sql")),
        ("park_4", include_str!("statements/routines/park.sql")),
        ("break_3", include_str!("statements/routines/break.sql")),
        ("convert_3", include_str!("statements/routines/convert.sql")),
    ],
};

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

/// Returns the statements that raise the tokens. Each token is drawn in a statement that inserts into `table`.
pub(super) fn raise(config: &Config, table: &str) -> [Template; 2] {
    let begin = begin(config.common.timeout);
    [include_str!("statements/raise_near.sql"), include_str!("statements/raise_far.sql")].map(|file| {
        let more = [("{begin}", begin.as_str()), ("{sync}", sync(config)), ("{table}", table)];
        Template::new(&fill(file, config, &more))
    })
}

/// Returns the statements on the records of jobs.
pub(super) fn records(config: &Config) -> RecordStatements {
    let begin = begin(config.common.timeout);
    let more = [("{begin}", begin.as_str()), ("{sync}", sync(config))];
    let with = |file: &str| Template::new(&fill(file, config, &more));
    RecordStatements {
        read: with(include_str!("statements/read_record.sql")),
        write: with(include_str!("statements/write_record.sql")),
    }
}

/// Returns the value of `synchronous_commit` for the configured durability.
fn sync(config: &Config) -> &'static str {
    if config.durability == Durability::Full { "on" } else { "off" }
}

impl Statements {
    /// Returns the statements on the tables of `config`, which must have been checked.
    pub(super) fn new(config: &Config) -> Self {
        let begin = begin(config.common.timeout);
        let with = |file: &str, more: &[(&str, &str)]| {
            let more = [more, &[("{begin}", begin.as_str())]].concat();
            Template::new(&fill(file, config, &more))
        };
        Self {
            claim: with(include_str!("statements/claim.sql"), &[]),
            keep_alive: with(include_str!("statements/keep_alive.sql"), &[]),
            notice: with(include_str!("statements/notice.sql"), &[]),
            release: with(include_str!("statements/release.sql"), &[]),
            park: with(include_str!("statements/park.sql"), &[]),
            break_lock: with(include_str!("statements/break.sql"), &[]),
            convert: with(include_str!("statements/convert.sql"), &[]),
            handed: with(include_str!("statements/handed.sql"), &[]),
            lists: LockLists::new(|which| with(include_str!("statements/locks.sql"), which)),
            sweep: ["holds", "waiters", "broken"]
                .map(|table| with(include_str!("statements/sweep.sql"), &[("{table}", table)])),
            broken: with(include_str!("statements/broken.sql"), &[]),
            notify: with(include_str!("statements/notify.sql"), &[]),
            session: with(include_str!("statements/session.sql"), &[]),
            raise: raise(config, "holds"),
            records: records(config),
        }
    }
}
