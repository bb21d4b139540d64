//! The statements of the pessimistic strategy for PostgreSQL.

use std::time::Duration;

use polylock_core::Store;
use sqlx::Error;

use super::{
    config::{Config, Durability},
    error,
    statements::{STEPS, begin, fill, raise, records},
};
use crate::{
    engine::{
        dialect::MIN_TTL,
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

/// The identity of a session: its process id and the time at which its transaction began. The pair never repeats.
const IDENTITY: &str = "pg_backend_pid()::bigint, (extract(epoch FROM now()) * 1000000)::bigint";

/// True if the session of an entry is still in its transaction. The server shows the time at which a transaction began only to
/// its own role and to monitoring roles, but shows every role that the session has locked rows.
const LIVE: &str = "EXISTS (SELECT FROM pg_locks WHERE pid = session_1 AND relation = '{p}_rows'::regclass AND granted) \
    AND NOT EXISTS (SELECT FROM pg_stat_activity \
        WHERE pid = session_1 AND (extract(epoch FROM xact_start) * 1000000)::bigint <> session_2)";

#[derive(Debug)]
struct Postgres;

impl ErrorCodes for Postgres {
    type Database = sqlx::Postgres;

    fn is_locked(error: &Error) -> bool {
        error::code(error) == Some("55P03")
    }

    fn is_no_session(_: &Error) -> bool {
        false
    }

    fn is_transaction_ended(error: &Error) -> bool {
        // The transaction has failed, or there is no transaction with this savepoint.
        matches!(error::code(error), Some("25P01" | "25P02" | "3B001"))
    }
}

/// Opens the store over a server that has been checked.
pub(super) async fn open(
    config: &Config,
    pinned: Server<sqlx::Postgres>,
    side: Server<sqlx::Postgres>,
) -> Store {
    let pools = ServerPools::<Postgres> { pinned, side, statements: statements(config) };
    let durable = config.durability == Durability::Full;
    pessimistic::open(pools, MIN_TTL, durable, config.common.connections).await
}

fn statements(config: &Config) -> Statements {
    let millis = |time: Duration| time.as_millis().to_string();
    let (begin, timeout, slice) =
        (begin(config.common.timeout), millis(config.common.timeout), millis(SLICE));
    let durable = if config.durability == Durability::Full { "on" } else { "off" };
    let text = |file: &str, more: &[(&str, &str)]| {
        let own = [
            ("{begin}", begin.as_str()),
            ("{patience}", &timeout),
            ("{slice}", &slice),
            ("{identity}", IDENTITY),
            ("{durable}", durable),
            ("{live}", LIVE),
        ];
        fill(file, config, &[more, &own].concat())
    };
    let template = |file: &str| Template::new(&text(file, &[]));
    let lock_statements = |file: &str| LockStatements {
        exclusive: Template::new(&text(file, &[("{strength}", "FOR UPDATE")])),
        shared: Template::new(&text(file, &[("{strength}", "FOR SHARE")])),
    };
    let signal = |function| {
        Template::new(&text(include_str!("statements/pessimistic/cancel.sql"), &[("{function}", function)]))
    };
    let clear = include_str!("statements/pessimistic/clear.sql");
    let holds = include_str!("statements/pessimistic/holds.sql");
    Statements {
        enter: lock_statements(include_str!("statements/pessimistic/enter.sql")),
        wait_limits: template(include_str!("statements/pessimistic/wait_limits.sql")),
        wait: lock_statements(include_str!("statements/pessimistic/wait.sql")),
        wait_again: template(include_str!("statements/pessimistic/wait_again.sql")),
        confirm: template(include_str!("statements/pessimistic/confirm.sql")),
        limit: template(include_str!("statements/pessimistic/limit.sql")),
        // The transaction has no changes to keep, and a rollback does not wait for the disk.
        leave: Template::new(&format!("ROLLBACK;\n{}", text(clear, &[]))),
        clear: template(clear),
        sweep: template(include_str!("statements/pessimistic/sweep.sql")),
        rollback: Template::plain("ROLLBACK".to_owned()),
        commit: Template::plain("COMMIT".to_owned()),
        cancel: signal("pg_cancel_backend"),
        kill: signal("pg_terminate_backend"),
        raise: raise(config, "sessions").into(),
        records: records(config),
        token: template(include_str!("statements/pessimistic/token.sql")),
        mark: template(include_str!("statements/pessimistic/mark.sql")),
        notice: template(include_str!("statements/pessimistic/notice.sql")),
        holds_by_name: Template::new(&text(holds, &[("{which}", "name = $1")])),
        holds_by_prefix: Template::new(&text(holds, &[("{which}", "name >= $1 AND name < $2")])),
    }
}
