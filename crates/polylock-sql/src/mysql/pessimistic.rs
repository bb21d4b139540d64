//! What the pessimistic strategy says to MySQL and MariaDB.

use std::{sync::Arc, time::Duration};

use polylock_core::{Capabilities, Carrier, Fencing, Modes, Order, QueueLease, Reach, WakeUp};
use sqlx::Error;

use super::{
    NAME,
    config::Config,
    error,
    statements::{Tables, fill},
};
use crate::{
    engine::{LONGEST, literal::Template, pool::Server, version::Version},
    pessimistic::{Pessimistic, SLICE, Servers, Statements, Strengths, Wording},
};

/// The tables.
pub(super) const TABLES: Tables = Tables {
    // The steps are in `statements/pessimistic/upgrade/`.
    version: Version { row: "rows", first: 2, steps: &[], oldest: 2, next: None },
    schema: concat!(include_str!("statements/meta.sql"), include_str!("statements/pessimistic/schema.sql")),
    routines: &[],
    shards: ("tokens", 64),
    other: ("lease", "holds"),
};

/// The server counts silence in whole seconds.
const SHORTEST: Duration = Duration::from_secs(1);

/// For how many ms a transaction may be silent: `wait_timeout`, and no other limit. MariaDB reads the second comment alone,
/// MySQL the first. {ms} is an argument.
const LIMIT: &str = "wait_timeout = greatest(1, ({ms} + 999) DIV 1000) /*!80000 , max_execution_time = 0 */ \
                     /*M! , max_statement_time = 0, idle_transaction_timeout = 0, idle_write_transaction_timeout = 0, \
                     idle_readonly_transaction_timeout = 0 */";

/// The lock that a session has on its own identity, {1} and {2}: until it ends, or gives it back. No restart repeats it, as it
/// repeats the numbers of connections.
const SESSION: &str = "concat('polylock:', lpad(hex({1}), 16, '0'), lpad(hex({2}), 16, '0'))";

/// Locking in share mode without waiting: the two have no form in common.
const TRY_SHARED: &str = "/*!80001 FOR SHARE SKIP LOCKED */ /*M! LOCK IN SHARE MODE SKIP LOCKED */";

/// Ends a hold, and then the session's identity.
const LEAVE: &str = "ROLLBACK; DO release_all_locks();";

/// Deletes the record of a hold.
const FORGET: &str = "DELETE FROM {p}_sessions WHERE name = $1 AND request = $2;";

#[derive(Debug)]
struct MySql;

impl Wording for MySql {
    type Database = sqlx::MySql;

    fn is_locked(error: &Error) -> bool {
        matches!(error::number(error), Some(1205 | 3572))
    }

    fn is_gone(error: &Error) -> bool {
        error::number(error) == Some(1094)
    }

    fn is_over(error: &Error) -> bool {
        // There is none with a savepoint: after a time limit, if innodb_rollback_on_timeout is on.
        error::number(error) == Some(1305)
    }
}

/// The store over a server that has been looked at.
pub(super) fn store(
    config: &Config,
    own: Server<sqlx::MySql>,
    shared: Server<sqlx::MySql>,
    durable: bool,
) -> Pessimistic {
    let mut capabilities = Capabilities::new(NAME, SHORTEST..=LONGEST);
    capabilities.modes = Modes::ExclusiveAndShared;
    capabilities.order = Order::Unordered;
    capabilities.wake = WakeUp::Pushed;
    capabilities.carrier = Carrier::Connection;
    capabilities.queue_lease = QueueLease::Absent;
    capabilities.keep_alive_batch = 1;
    capabilities.reach = Reach::Machines;
    if !durable {
        capabilities.fencing = Fencing::WhileRunning;
    }
    let host = Servers::<MySql> { own, shared, statements: texts(config) };
    Pessimistic::new(capabilities, Arc::new(host), config.common.connections)
}

fn texts(config: &Config) -> Statements {
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
    let strengths = |file: &str| {
        let strength = |how: &str, attempt: &str| {
            let entering = entering.each_ref().map(|(key, value)| (*key, value.as_str()));
            let more = [&[("{strength}", how), ("{try}", attempt)], &entering[..]].concat();
            Template::new(&text(file, "$2", &more))
        };
        Strengths {
            exclusive: strength("FOR UPDATE", "FOR UPDATE SKIP LOCKED"),
            shared: strength("LOCK IN SHARE MODE", TRY_SHARED),
        }
    };
    let clear = |at_once: &str, inside: &str| {
        let file = include_str!("statements/pessimistic/clear.sql");
        text(file, "$1", &[("{forget}", at_once), ("{and_forget}", inside)])
    };
    let live = format!("is_used_lock({}) IS NOT NULL", session("session_1", "session_2"));
    let living =
        |file: &str, which: &str| Template::new(&text(file, "", &[("{which}", which), ("{live}", &live)]));
    let holds = include_str!("statements/pessimistic/holds.sql");
    Statements {
        enter: strengths(include_str!("statements/pessimistic/enter.sql")),
        wait: strengths(include_str!("statements/pessimistic/wait.sql")),
        wait_on: strengths(include_str!("statements/pessimistic/wait_on.sql")),
        confirm: Template::new(&text(
            include_str!("statements/pessimistic/confirm.sql"),
            "$1",
            &[("{session}", &session("$2", "$3"))],
        )),
        limit: template(include_str!("statements/pessimistic/limit.sql")),
        // In one transaction, because each waits for the disk.
        leave: Template::new(&format!("{LEAVE}\n{}", clear("", FORGET))),
        clear: Template::new(&clear(FORGET, "")),
        sweep: living(include_str!("statements/pessimistic/sweep.sql"), ""),
        rollback: Template::plain(LEAVE.to_owned()),
        commit: Template::plain("COMMIT".to_owned()),
        cancel: signal("QUERY"),
        kill: signal("CONNECTION"),
        token: template(include_str!("statements/pessimistic/token.sql")),
        mark: living(include_str!("statements/pessimistic/mark.sql"), ""),
        notice: template(include_str!("statements/pessimistic/notice.sql")),
        holds_named: living(holds, "name = $1"),
        holds_under: living(holds, "name >= $1 AND name < $2"),
    }
}
