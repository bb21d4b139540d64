//! The poller's rounds, which find the departures that no [wake-up](super::datagrams) reports: a hold or a queue entry has expired or was
//! withdrawn, or the other process can't send one.
//!
//! Each round queries SQLite's `data_version`, a number in shared memory that changes with every commit by another connection. Only if it
//! has changed, or a waiter was added, the round reads the tables for watched requests that have left. The number is read before the
//! tables, so the next round detects a change in between.

use std::{fmt::Write, sync::Mutex, time::Duration};

use polylock_core::{Operation, Result, sync::lock, wakeups::Wakeups};
use sqlx::{Arguments, Row, sqlite::SqliteArguments};

use super::{
    connection::{Connections, Lane, Reply, Sql},
    error,
    statements::Statements,
};
use crate::engine::{
    dialect::{PollInterval, PollOutcome},
    rows::{self, hex},
};

/// The pauses between rounds: short, because a round costs next to nothing; longer where wake-ups report hand-overs.
pub(super) const fn poll_interval(is_woken: bool) -> PollInterval {
    PollInterval {
        shortest: Duration::from_millis(if is_woken { 4 } else { 1 }),
        longest: Duration::from_millis(20),
        // The rounds run in this process: they use at most an eighth of a core.
        min_ratio: 8,
    }
}

/// The version of the file at the last round, and the connection that counted it.
#[derive(Debug, Default)]
pub(super) struct Watch(Mutex<Option<(u64, i64)>>);

impl Watch {
    /// Runs one round. `shortest` is the pause after a round that found a departure.
    pub(super) async fn poll(
        &self,
        connections: &Connections,
        statements: &Statements,
        wakeups: &Wakeups,
        waiter_added: bool,
        shortest: Duration,
    ) -> Result<PollOutcome> {
        // The last version is removed first, so that the round after a failed one reads the tables.
        let last_version = lock(&self.0).take();
        let version = version(connections, statements, Operation::Wait).await?;
        let must_read = waiter_added || last_version != Some(version);
        let gone = if must_read {
            let mut arguments = SqliteArguments::default();
            let failed = |failure| error::from_driver(Operation::Wait, &connections.path, failure);
            arguments.add(watched(wakeups)).map_err(|failure| failed(sqlx::Error::Encode(failure)))?;
            let sql = Sql::Query(&statements.gone);
            let read = |reply: Reply| rows::requests(&reply.rows);
            connections.run(Lane::Reading, Operation::Wait, sql, arguments, read).await?
        } else {
            Vec::new()
        };
        *lock(&self.0) = Some(version);
        gone.iter().for_each(|gone| wakeups.notify(*gone));
        Ok(match (must_read, gone.is_empty()) {
            (false, _) => PollOutcome::Unchanged,
            // Other processes use the file, so it may soon be the turn of a waiter of this process.
            (true, true) => PollOutcome::NextAfter(2 * shortest),
            (true, false) => PollOutcome::NextAfter(shortest),
        })
    }
}

/// Returns a value that changes with every commit by another connection: the number, and the connection that counts it.
pub(super) async fn version(
    connections: &Connections,
    statements: &Statements,
    operation: Operation,
) -> Result<(u64, i64)> {
    let (sql, arguments) = (Sql::Query(&statements.data_version), SqliteArguments::default());
    connections
        .run(Lane::Reading, operation, sql, arguments, |reply| {
            Ok((reply.openings, reply.rows.first().map_or(Ok(0), |row| row.try_get(0))?))
        })
        .await
}

/// Returns the requests that the waiters wait for, as the argument of `gone.sql`.
fn watched(wakeups: &Wakeups) -> String {
    let mut pairs = String::from("[");
    for (name, requests) in wakeups.watched() {
        let name = hex(name.as_str().as_bytes());
        for request in requests {
            let comma = if pairs.len() > 1 { "," } else { "" };
            write!(pairs, "{comma}[\"{name}\",\"{}\"]", hex(&request.to_bytes())).ok();
        }
    }
    pairs.push(']');
    pairs
}
