//! How waiters learn of what other processes do, if they are not woken ([`wakeups`](super::wakeups)): because a hold or a place in the
//! queue has expired or was withdrawn, or the other process can't wake them.
//!
//! Each round asks for SQLite's `data_version`, a number in shared memory that changes with every commit, and only if it
//! has changed, or somebody has begun to wait, looks which of those that are waited for have left. The number is taken
//! before the look, so what happens meanwhile is seen by the next.

use std::{
    fmt::Write,
    sync::{Arc, PoisonError},
    time::Duration,
};

use polylock_core::{Operation, Result, hub::Hub};
use sqlx::{Arguments, Row, sqlite::SqliteArguments};

use super::{
    backend::Sqlite,
    connection::{Answer, Lane, Sql},
    error,
};
use crate::engine::{
    Pace, Round,
    rows::{self, hex},
};

/// A round costs next to nothing, so they follow each other closely; less so where hand-overs are reported.
pub(super) const fn pace(is_woken: bool) -> Pace {
    Pace {
        shortest: Duration::from_millis(if is_woken { 4 } else { 1 }),
        longest: Duration::from_millis(20),
        // The rounds run in this process: they use an eighth of a core at most.
        share: 8,
    }
}

impl Sqlite {
    /// One round.
    pub(super) async fn look_around(&self, hub: &Arc<Hub>, news: bool) -> Result<Round> {
        // Taken, so that a round that fails looks again.
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).take();
        let version = self.version().await?;
        let look = news || seen != Some(version);
        let gone = if look {
            let mut arguments = SqliteArguments::default();
            let failed = |failure| error::driver(Operation::Wait, &self.connections.path, failure);
            arguments.add(watched(hub)).map_err(|failure| failed(sqlx::Error::Encode(failure)))?;
            let sql = &self.statements.gone;
            self.rows(Lane::Reading, Operation::Wait, sql, arguments, rows::requests).await?
        } else {
            Vec::new()
        };
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(version);
        gone.iter().for_each(|gone| hub.ring(*gone));
        let Pace { shortest, .. } = pace(self.wakeups.channel().is_some());
        Ok(match (look, gone.is_empty()) {
            (false, _) => Round::Quiet,
            // Others come and go, so that it may be this process's turn soon.
            (true, true) => Round::Soon(2 * shortest),
            (true, false) => Round::Soon(shortest),
        })
    }

    /// What changes with every foreign commit: the number, and the connection that counts it.
    async fn version(&self) -> Result<(u64, i64)> {
        let read = |answer: Answer| {
            let version = answer.rows.first().map_or(Ok(0), |row| row.try_get(0));
            let version =
                version.map_err(|failure| error::driver(Operation::Wait, &self.connections.path, failure))?;
            Ok((answer.openings, version))
        };
        let sql = &self.statements.data_version;
        self.connections
            .run(Lane::Reading, Operation::Wait, Sql::Asks(sql), SqliteArguments::default(), read)
            .await
    }
}

/// Who is waited for, as `gone.sql` wants it.
fn watched(hub: &Hub) -> String {
    let mut pairs = String::from("[");
    for (name, requests) in hub.watched() {
        let name = hex(name.as_str().as_bytes());
        for request in requests {
            let comma = if pairs.len() > 1 { "," } else { "" };
            write!(pairs, "{comma}[\"{name}\",\"{}\"]", hex(&request.to_bytes())).ok();
        }
    }
    pairs.push(']');
    pairs
}
