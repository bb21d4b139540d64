//! The statements of the pessimistic strategy for MySQL and MariaDB.

use std::time::Duration;

use polylock_core::Store;
use sqlx::Error;

use super::{
    config::Config,
    error,
    statements::{STEPS, fill, raise, records},
};
use crate::{
    engine::{
        server::{literal::Template, pool::Server, tables::Tables},
        version::Version,
    },
    pessimistic::{self, ErrorCodes, LockStatements, SLICE, ServerPools, Statements},
};

/// The tables of the pessimistic strategy.
pub(super) const TABLES: Tables = Tables {
    version: Version { row: "rows", first: 2, steps: STEPS, oldest: 2, next: None },
    schema: concat!(include_str!("statements/meta.sql"), include_str!("statements/pessimistic/schema.sql")),
    routines: &[],
};

/// The server measures silence in whole seconds.
const MIN_TTL: Duration = Duration::from_secs(1);

/// The setting of the time in ms that a transaction may be silent: `wait_timeout`, without any other limit. MySQL reads only the
/// first comment, MariaDB only the second. {ms} is an argument.
const LIMIT: &str = "wait_timeout = greatest(1, ({ms} + 999) DIV 1000) /*!80000 , max_execution_time = 0 */ \
                     /*M! , max_statement_time = 0, idle_transaction_timeout = 0, idle_write_transaction_timeout = 0, \
                     idle_readonly_transaction_timeout = 0 */";

/// The named lock of a session on its own identity, {1} and {2}: held until the session ends or releases it. The identity is
/// never repeated, unlike connection numbers, which start again when the server restarts.
const SESSION: &str = "concat('polylock:', lpad(hex({1}), 16, '0'), lpad(hex({2}), 16, '0'))";

/// Locks in share mode without waiting: MySQL and MariaDB have no common syntax for it.
const TRY_SHARED: &str = "/*!80001 FOR SHARE SKIP LOCKED */ /*M! LOCK IN SHARE MODE SKIP LOCKED */";

/// Ends the hold, then releases the session's identity.
const LEAVE: &str = "ROLLBACK; DO release_all_locks();";

/// Deletes the record of a hold.
const FORGET: &str = "DELETE FROM {p}_sessions WHERE name = $1 AND request = $2;";

#[derive(Debug)]
struct MySql;

impl ErrorCodes for MySql {
    type Database = sqlx::MySql;

    fn is_locked(error: &Error) -> bool {
        matches!(error::number(error), Some(1205 | 3572))
    }

    fn is_no_session(error: &Error) -> bool {
        error::number(error) == Some(1094)
    }

    fn is_transaction_ended(error: &Error) -> bool {
        // There is no transaction with this savepoint: a lock wait timeout has ended it, if innodb_rollback_on_timeout is on.
        error::number(error) == Some(1305)
    }
}

/// Opens the store over a server that has been checked.
pub(super) async fn open(
    config: &Config,
    pinned: Server<sqlx::MySql>,
    side: Server<sqlx::MySql>,
    durable: bool,
) -> Store {
    let pools = ServerPools::<MySql> { pinned, side, statements: statements(config) };
    pessimistic::open(pools, MIN_TTL, durable, config.common.connections).await
}

fn statements(config: &Config) -> Statements {
    let slice = SLICE.as_secs().to_string();
    let text = |file: &str, limited: &str, more: &[(&str, &str)]| {
        let limit = LIMIT.replace("{ms}", limited);
        fill(file, config, &[more, &[("{limit}", limit.as_str()), ("{slice}", &slice)]].concat())
    };
    let session = |first: &str, second: &str| SESSION.replace("{1}", first).replace("{2}", second);
    let entering = [("{session}", session("$3", "$4")), ("{identity}", "$3, $4".to_owned())];
    let signal = |what: &str| {
        let file = include_str!("statements/pessimistic/kill.sql");
        Template::new(&text(file, "", &[("{what}", what), ("{session}", &session("$1", "$2"))]))
    };
    let template = |file: &str| Template::new(&text(file, "$1", &[]));
    let lock_statements = |file: &str| {
        let statement = |how: &str, attempt: &str| {
            let entering = entering.each_ref().map(|(key, value)| (*key, value.as_str()));
            let more = [&[("{strength}", how), ("{try}", attempt)], &entering[..]].concat();
            Template::new(&text(file, "$2", &more))
        };
        LockStatements {
            exclusive: statement("FOR UPDATE", "FOR UPDATE SKIP LOCKED"),
            shared: statement("LOCK IN SHARE MODE", TRY_SHARED),
        }
    };
    let clear = |at_once: &str, inside: &str| {
        let file = include_str!("statements/pessimistic/clear.sql");
        text(file, "$1", &[("{forget}", at_once), ("{and_forget}", inside)])
    };
    let live = format!("is_used_lock({}) IS NOT NULL", session("session_1", "session_2"));
    let with_live =
        |file: &str, which: &str| Template::new(&text(file, "", &[("{which}", which), ("{live}", &live)]));
    let holds = include_str!("statements/pessimistic/holds.sql");
    Statements {
        enter: lock_statements(include_str!("statements/pessimistic/enter.sql")),
        wait_limits: template(include_str!("statements/pessimistic/wait_limits.sql")),
        wait: lock_statements(include_str!("statements/pessimistic/wait.sql")),
        wait_again: template(include_str!("statements/pessimistic/wait_again.sql")),
        confirm: Template::new(&text(
            include_str!("statements/pessimistic/confirm.sql"),
            "$1",
            &[("{session}", &session("$2", "$3"))],
        )),
        limit: template(include_str!("statements/pessimistic/limit.sql")),
        // One transaction, because each commit waits for the disk.
        leave: Template::new(&format!("{LEAVE}\n{}", clear("", FORGET))),
        clear: Template::new(&clear(FORGET, "")),
        sweep: with_live(include_str!("statements/pessimistic/sweep.sql"), ""),
        rollback: Template::plain(LEAVE.to_owned()),
        commit: Template::plain("COMMIT".to_owned()),
        cancel: signal("QUERY"),
        kill: signal("CONNECTION"),
        raise: raise(config, "tokens", "63").into(),
        records: records(config),
        token: template(include_str!("statements/pessimistic/token.sql")),
        mark: with_live(include_str!("statements/pessimistic/mark.sql"), ""),
        notice: template(include_str!("statements/pessimistic/notice.sql")),
        holds_by_name: with_live(holds, "name = $1"),
        holds_by_prefix: with_live(holds, "name >= $1 AND name < $2"),
    }
}
