//! What the pessimistic strategy says to PostgreSQL.

use std::{sync::Arc, time::Duration};

use polylock_core::{Capabilities, Carrier, Fencing, Modes, Order, QueueLease, Reach, WakeUp};
use sqlx::Error;

use super::{
    NAME,
    config::{Config, Durability},
    error,
    statements::{Tables, begin, fill},
};
use crate::{
    engine::{LONGEST, SHORTEST, literal::Template, pool::Server, version::Version},
    pessimistic::{Pessimistic, SLICE, Servers, Statements, Strengths, Wording},
};

/// The tables.
pub(super) const TABLES: Tables = Tables {
    // The steps are in `statements/pessimistic/upgrade/`.
    version: Version { row: "rows", first: 2, steps: &[], oldest: 2, next: None },
    schema: concat!(include_str!("statements/meta.sql"), include_str!("statements/pessimistic/schema.sql")),
    routines: &[],
};

/// The connection, and when its transaction began, which no other on it did.
const IDENTITY: &str = "pg_backend_pid()::bigint, (extract(epoch FROM now()) * 1000000)::bigint";

/// Whether the session of an entry is in its transaction still. When a transaction began is shown to its own role and to
/// monitors alone; that the session has locked rows is shown to everybody.
const LIVE: &str = "EXISTS (SELECT FROM pg_locks WHERE pid = session_1 AND relation = '{p}_rows'::regclass AND granted) \
    AND NOT EXISTS (SELECT FROM pg_stat_activity \
        WHERE pid = session_1 AND (extract(epoch FROM xact_start) * 1000000)::bigint <> session_2)";

#[derive(Debug)]
struct Postgres;

impl Wording for Postgres {
    type Database = sqlx::Postgres;

    fn is_locked(error: &Error) -> bool {
        error::code(error) == Some("55P03")
    }

    fn is_gone(_: &Error) -> bool {
        false
    }

    fn is_over(error: &Error) -> bool {
        // It has failed, or there is none with a savepoint.
        matches!(error::code(error), Some("25P01" | "25P02" | "3B001"))
    }
}

/// The store over a server that has been looked at.
pub(super) fn store(
    config: &Config,
    own: Server<sqlx::Postgres>,
    shared: Server<sqlx::Postgres>,
) -> Pessimistic {
    let mut capabilities = Capabilities::new(NAME, SHORTEST..=LONGEST);
    capabilities.modes = Modes::ExclusiveAndShared;
    capabilities.order = Order::Unordered;
    capabilities.wake = WakeUp::Pushed;
    capabilities.carrier = Carrier::Connection;
    capabilities.queue_lease = QueueLease::Absent;
    capabilities.keep_alive_batch = 1;
    capabilities.reach = Reach::Machines;
    if config.durability != Durability::Full {
        capabilities.fencing = Fencing::WhileRunning;
    }
    let host = Servers::<Postgres> { own, shared, statements: texts(config) };
    Pessimistic::new(capabilities, Arc::new(host), config.common.connections)
}

fn texts(config: &Config) -> Statements {
    let millis = |time: Duration| time.as_millis().to_string();
    let (begin, patience, slice) =
        (begin(config.common.timeout), millis(config.common.timeout), millis(SLICE));
    let durable = if config.durability == Durability::Full { "on" } else { "off" };
    let text = |file: &str, more: &[(&str, &str)]| {
        let own = [
            ("{begin}", begin.as_str()),
            ("{patience}", &patience),
            ("{slice}", &slice),
            ("{identity}", IDENTITY),
            ("{durable}", durable),
            ("{live}", LIVE),
        ];
        fill(file, config, &[more, &own].concat())
    };
    let template = |file: &str| Template::new(&text(file, &[]));
    let strengths = |file: &str| Strengths {
        exclusive: Template::new(&text(file, &[("{strength}", "FOR UPDATE")])),
        shared: Template::new(&text(file, &[("{strength}", "FOR SHARE")])),
    };
    let signal = |function| {
        Template::new(&text(include_str!("statements/pessimistic/cancel.sql"), &[("{function}", function)]))
    };
    let clear = include_str!("statements/pessimistic/clear.sql");
    let holds = include_str!("statements/pessimistic/holds.sql");
    Statements {
        enter: strengths(include_str!("statements/pessimistic/enter.sql")),
        wait: strengths(include_str!("statements/pessimistic/wait.sql")),
        wait_on: strengths(include_str!("statements/pessimistic/wait_on.sql")),
        confirm: template(include_str!("statements/pessimistic/confirm.sql")),
        limit: template(include_str!("statements/pessimistic/limit.sql")),
        // Nothing in it is to be kept, and a rollback does not wait for the disk.
        leave: Template::new(&format!("ROLLBACK;\n{}", text(clear, &[]))),
        clear: template(clear),
        sweep: template(include_str!("statements/pessimistic/sweep.sql")),
        rollback: Template::plain("ROLLBACK".to_owned()),
        commit: Template::plain("COMMIT".to_owned()),
        cancel: signal("pg_cancel_backend"),
        kill: signal("pg_terminate_backend"),
        token: template(include_str!("statements/pessimistic/token.sql")),
        mark: template(include_str!("statements/pessimistic/mark.sql")),
        notice: template(include_str!("statements/pessimistic/notice.sql")),
        holds_named: Template::new(&text(holds, &[("{which}", "name = $1")])),
        holds_under: Template::new(&text(holds, &[("{which}", "name >= $1 AND name < $2")])),
    }
}
