//! The dialect of MySQL and MariaDB.

use std::{
    collections::HashSet,
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    BreakOrder, Capabilities, Entry, Fencing, HoldAlerts, LockName, LockStatus, LostReason, Operation, Reach,
    Release, Request, RequestId, Result, hub::Hub,
};

use super::{NAME, departed::Departed, statements::Statements};
use crate::engine::{
    self, Dialect, LIST_ROWS, LONGEST, Look, Pace, Round, SHORTEST, SWEEP_ROWS, State, bytes, label,
    literal::Arg,
    pool::Server,
    rows::{self, Columns, Timed, micros},
    slot,
};

/// The pause between two looks after somebody has left ...
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
/// The least pause, as a multiple of the time that a look took. A look is a query for a few keys, because only those are looked for that
/// the first waiters of this process wait for; most of its time is the network's and the server's queue.
const SHARE: u32 = 2;
/// ... and while others come and go, so that it may be this process's turn soon.
const LIVELY_PAUSE: Duration = Duration::from_millis(2);

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
    /// The names after which the sweep goes on: of holds, of waiters, of broken holds.
    sweep: Mutex<[Vec<u8>; 3]>,
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
        capabilities.claims_at_once = server.claims_at_once();
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
        Pace { shortest: SHORTEST_PAUSE, longest: self.longest_pause, share: SHARE }
    }

    fn wakeups(&self, _: &Arc<Hub>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::pending())
    }

    async fn claim(&self, request: &Request, hub: &Arc<Hub>) -> Result<Look> {
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
            Arg::Int(request.wants_position.into()),
        ];
        let (look, ahead) = self
            .server
            .ask_expiring(Operation::Claim, &self.statements.claim, &arguments, |rows| {
                let Timed { clock_us, outcome } = rows::timed_look(rows)?;
                let ahead = match (&outcome, rows.first()) {
                    (Some(Look::Behind { .. }), Some(row)) => Some(rows::request(row, 2)?),
                    _ => None,
                };
                Ok(Timed { clock_us, outcome: outcome.map(|look| (look, ahead)) })
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

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<State>> {
        let arguments = [Arg::Bytes(&engine::packed(requests))];
        self.server.ask(Operation::Renew, &self.statements.keep_alive, &arguments, rows::states).await
    }

    async fn loss(&self, request: &Request) -> Result<LostReason> {
        let arguments = [
            Arg::Bytes(bytes(&request.name)),
            Arg::Bytes(&request.id.to_bytes()),
            Arg::Bytes(&slot(request)),
        ];
        self.server.ask(Operation::Renew, &self.statements.notice, &arguments, rows::loss).await
    }

    async fn release(&self, request: &Request, hub: &Hub) -> Result<Release> {
        let arguments = [
            Arg::Bytes(bytes(&request.name)),
            Arg::Bytes(&request.id.to_bytes()),
            Arg::Bytes(&slot(request)),
        ];
        let operation = Operation::Release;
        let (rows, reply_lost) = self.server.answer(operation, &self.statements.release, &arguments).await?;
        self.departed.push(request.id);
        hub.ring(request.id);
        rows::release(rows.first(), 0, reply_lost).map_err(|error| self.server.failed(operation, error))
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

    async fn lock(&self, name: &[u8]) -> Result<Vec<LockStatus>> {
        let (template, arguments) = (&self.statements.locks_named, [Arg::Bytes(name)]);
        self.server.ask(Operation::Inspect, template, &arguments, |rows| rows::statuses(rows, true)).await
    }

    async fn page(&self, first: &[u8], end: &[u8]) -> Result<rows::Page> {
        let arguments = [Arg::Bytes(first), Arg::Bytes(end), Arg::Int(LIST_ROWS)];
        let template = &self.statements.locks_under;
        self.server.ask(Operation::Inspect, template, &arguments, |rows| rows::page(rows, LIST_ROWS)).await
    }

    async fn break_lock(&self, name: &LockName, order: &BreakOrder, hub: &Hub) -> Result<Vec<Entry>> {
        let notice = engine::notice(order);
        let arguments = [Arg::Bytes(bytes(name)), Arg::Text(&notice), Arg::Int(order.force.into())];
        let broken = self
            .server
            .ask_expiring(Operation::Break, &self.statements.break_lock, &arguments, rows::timed_break)
            .await?;
        if order.force {
            // The waiters of this process claim at once, those of others when their pollers have found it.
            hub.ring_all();
        }
        Ok(broken)
    }

    async fn sweep(&self) -> Result<()> {
        let [holds, waiters, broken] = self.sweep.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let arguments = [Arg::Bytes(&holds), Arg::Bytes(&waiters), Arg::Bytes(&broken), Arg::Int(SWEEP_ROWS)];
        let next = self
            .server
            .ask(Operation::Claim, &self.statements.sweep, &arguments, |rows| {
                rows.first()
                    .map_or(Ok(Default::default()), |row| Ok([row.bytes(0)?, row.bytes(1)?, row.bytes(2)?]))
            })
            .await?;
        *self.sweep.lock().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    fn alerts(&self) -> Option<&Arc<HoldAlerts>> {
        // There is no push, and holders do not poll.
        None
    }
}
