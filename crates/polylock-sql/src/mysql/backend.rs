//! The dialect of MySQL and MariaDB.

use std::{
    collections::HashSet,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    Capabilities, Entry, Fencing, LockName, LockStatus, Operation, Reach, Request, RequestId, Result,
    hub::Hub,
};

use super::{NAME, departed::Departed, statements::Statements};
use crate::engine::{
    self, Dialect, LONGEST, Look, Pace, Round, SHORTEST, SWEEP_ROWS, Which, bytes, label,
    literal::Arg,
    pool::Server,
    rows::{self, Columns, micros},
    slot,
};

/// The pause between two looks after somebody has left ...
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
/// ... and while others come and go, so that it may be this process's turn soon.
const LIVELY_PAUSE: Duration = Duration::from_millis(5);

/// So many are looked up by one statement: with two keys each, fewer than those for which MariaDB reads the whole table
/// instead, and a message that every server takes.
const PAIRS: usize = 400;

/// The locks of one database.
pub(super) struct Database {
    capabilities: Capabilities,
    longest_pause: Duration,
    server: Server<sqlx::MySql>,
    statements: Statements,
    departed: Departed,
    /// Who was there when the poller looked last.
    present: Mutex<HashSet<RequestId>>,
    /// The names after which the sweep goes on: of holds, of waiters.
    sweep: Mutex<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySql").field("server", &self.server.place).finish_non_exhaustive()
    }
}

impl Database {
    /// With grants that survive a crash of the server's machine only if it is set so.
    pub(super) fn new(
        server: Server<sqlx::MySql>,
        statements: Statements,
        poll: Duration,
        durable: bool,
    ) -> Self {
        let mut capabilities = Capabilities::new(NAME, SHORTEST..=LONGEST);
        capabilities.reach = Reach::Machines;
        if !durable {
            capabilities.fencing = Fencing::WhileRunning;
        }
        Self {
            capabilities,
            longest_pause: poll,
            server,
            statements,
            departed: Departed::default(),
            present: Mutex::default(),
            sweep: Mutex::default(),
        }
    }
}

#[async_trait]
impl Dialect for Database {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn pace(&self) -> Pace {
        Pace { shortest: SHORTEST_PAUSE, longest: self.longest_pause }
    }

    async fn claim(&self, request: &Request, hub: &Hub) -> Result<Look> {
        let place_ttl = if request.queues { micros(request.place_ttl()) } else { 0 };
        let arguments = [
            Arg::Bytes(bytes(&request.name)),
            Arg::Bytes(&request.id.to_bytes()),
            Arg::Int(request.mode.bit().into()),
            Arg::Int(request.mode.conflicts().into()),
            Arg::Bytes(&slot(request)),
            Arg::Text(request.owner.as_str()),
            Arg::Text(label(request)),
            Arg::Int(micros(request.ttl)),
            Arg::Int(place_ttl),
        ];
        let (look, ahead) = self
            .server
            .ask(Operation::Claim, &self.statements.claim, &arguments, |rows| {
                let look = rows::look(rows)?;
                let ahead = match (&look, rows.first()) {
                    (Look::Behind { .. }, Some(row)) => Some(rows::request(row, 2)?),
                    _ => None,
                };
                Ok((look, ahead))
            })
            .await?;
        if let (Some(ahead), true) = (ahead, request.queues) {
            hub.expect(request, ahead);
            if self.departed.contains(ahead) {
                hub.ring(ahead);
            }
        }
        Ok(look)
    }

    async fn renew(&self, request: &Request) -> Result<bool> {
        let arguments = [
            Arg::Bytes(bytes(&request.name)),
            Arg::Bytes(&request.id.to_bytes()),
            Arg::Bytes(&slot(request)),
            Arg::Int(micros(request.ttl)),
        ];
        self.server
            .ask(Operation::Renew, &self.statements.renew, &arguments, |rows| {
                rows.first().map_or(Ok(false), |row| Ok(row.int(0)?.is_some_and(|renewed| renewed > 0)))
            })
            .await
    }

    async fn release(&self, request: &Request, hub: &Hub) -> Result<()> {
        let arguments = [
            Arg::Bytes(bytes(&request.name)),
            Arg::Bytes(&request.id.to_bytes()),
            Arg::Bytes(&slot(request)),
        ];
        self.server.ask(Operation::Release, &self.statements.release, &arguments, |_| Ok(())).await?;
        self.departed.push(request.id);
        hub.ring(request.id);
        Ok(())
    }

    async fn round(&self, hub: &Arc<Hub>, _: bool) -> Result<Round> {
        let watched = hub.watched();
        if watched.is_empty() {
            return Ok(Round::Quiet);
        }
        let mut present = HashSet::new();
        for pairs in engine::pairs(watched.clone()).chunks(PAIRS) {
            let arguments = [Arg::Pairs(pairs)];
            present.extend(
                self.server
                    .ask(Operation::Wait, &self.statements.present, &arguments, rows::requests)
                    .await?,
            );
        }
        // Who holds a lock alone is told even if nobody of this process waits for that one: whether the queue moves.
        let mut before = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        let lively = Round::Soon(LIVELY_PAUSE.min(self.longest_pause));
        let mut round = if *before == present { Round::Quiet } else { lively };
        for gone in watched.into_values().flatten().filter(|watched| !present.contains(watched)) {
            hub.ring(gone);
            round = Round::Soon(SHORTEST_PAUSE);
        }
        *before = present;
        Ok(round)
    }

    async fn locks(&self, which: Which<'_>) -> Result<Vec<LockStatus>> {
        let (first, end) = which.range();
        let (template, end) = match &end {
            None => (&self.statements.locks_named, Arg::Int(0)),
            Some(end) => (&self.statements.locks_under, Arg::Bytes(end)),
        };
        let arguments = [Arg::Bytes(&first), end];
        self.server.ask(Operation::Inspect, template, &arguments, |rows| rows::statuses(rows, 0)).await
    }

    async fn break_lock(&self, name: &LockName, hub: &Hub) -> Result<Vec<Entry>> {
        let arguments = [Arg::Bytes(bytes(name))];
        let broken = self
            .server
            .ask(Operation::Break, &self.statements.break_lock, &arguments, |rows| rows::statuses(rows, 0))
            .await?;
        // Those of this process hear it at once, the others by looking.
        hub.ring_all();
        Ok(broken.into_iter().flat_map(|lock| lock.holders).collect())
    }

    async fn sweep(&self) -> Result<()> {
        let (holds, waiters) = self.sweep.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let arguments = [Arg::Bytes(&holds), Arg::Bytes(&waiters), Arg::Int(SWEEP_ROWS)];
        let next = self
            .server
            .ask(Operation::Claim, &self.statements.sweep, &arguments, |rows| {
                rows.first().map_or(Ok(Default::default()), |row| Ok((row.bytes(0)?, row.bytes(1)?)))
            })
            .await?;
        *self.sweep.lock().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }
}
