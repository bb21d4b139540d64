//! The dialect of PostgreSQL.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    BreakOrder, Capabilities, Entry, Fencing, HoldAlerts, LockName, LockStatus, LostReason, Operation, Reach,
    Release, Request, Result, WakeUp,
    hub::{Handed, Hub},
};
use sqlx::postgres::PgRow;

use super::{
    NAME,
    config::{Config, Durability, Listen},
    listener::Listener,
    statements::Statements,
};
use crate::engine::{
    self, Dialect, LIST_ROWS, LONGEST, Look, Pace, Round, SHORTEST, SWEEP_ROWS, State, bytes, label,
    literal::{Arg, Template},
    pool::Server,
    rows::{self, Columns, Timed, micros},
    slot,
};

/// While nothing is pushed, each round is a query. Most of the time that it takes is the network's and the server's queue, so the
/// pause need not be many times as long: a hand-over would wait for it on each of its ways.
const PACE: Pace = Pace { shortest: Duration::from_millis(2), longest: Duration::from_millis(100), share: 2 };

/// The locks of one database.
pub(super) struct Database {
    capabilities: Capabilities,
    durable: bool,
    server: Arc<Server<sqlx::Postgres>>,
    statements: Statements,
    listener: Listener,
    sweep: Mutex<Sweep>,
}

/// The names after which the sweep goes on.
#[derive(Debug, Default, Clone)]
struct Sweep {
    holds: Vec<u8>,
    waiters: Vec<u8>,
    broken: Vec<u8>,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("server", &self.server.place).finish_non_exhaustive()
    }
}

impl Database {
    pub(super) fn new(config: &Config, server: Server<sqlx::Postgres>, statements: Statements) -> Self {
        let mut capabilities = Capabilities::new(NAME, SHORTEST..=LONGEST);
        capabilities.reach = Reach::Machines;
        capabilities.claims_at_once = server.claims_at_once();
        if !matches!(config.listen, Listen::Off) {
            capabilities.wake = WakeUp::Pushed;
        }
        let durable = config.durability == Durability::Full;
        if !durable {
            // The last grants may be undone by a crash of the server.
            capabilities.fencing = Fencing::WhileRunning;
        }
        let server = Arc::new(server);
        let listener = Listener::new(config, server.clone(), &statements);
        Self { capabilities, durable, server, statements, listener, sweep: Mutex::default() }
    }

    /// Clears a stretch of one table, and says where the next begins.
    async fn clear(&self, template: &Template, from: &[u8]) -> Result<Vec<u8>> {
        let arguments = [Arg::Bytes(from), Arg::Int(SWEEP_ROWS)];
        self.server
            .ask(Operation::Claim, template, &arguments, |rows| {
                rows.first().map_or(Ok(Vec::new()), |row| row.bytes(0))
            })
            .await
    }
}

/// Whom a release handed the lock to, as `release.sql` answers.
fn handed(row: &PgRow) -> Result<Option<Handed>, sqlx::Error> {
    let news = [row.int(0)?, row.int(1)?, row.int(2)?, row.int(3)?];
    Ok(Handed::new(news.map(Option::unwrap_or_default)))
}

#[async_trait]
impl Dialect for Database {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn pace(&self) -> Pace {
        PACE
    }

    fn wakeups(&self, _: &Arc<Hub>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::pending())
    }

    async fn claim(&self, request: &Request, hub: &Arc<Hub>) -> Result<Look> {
        let (place_ttl, ticket) =
            if request.queues { (micros(request.place_ttl()), hub.enter(request)) } else { (0, 0) };
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
            Arg::Text(self.listener.channel()),
            Arg::Int(i64::try_from(ticket).unwrap_or(0)),
            Arg::Bool(self.durable),
            Arg::Bool(request.wants_position),
        ];
        let (look, place) = self
            .server
            .ask_expiring(Operation::Claim, &self.statements.claim, &arguments, |rows| {
                let place = rows.first().map_or(Ok(None), |row| row.int(2))?;
                let Timed { clock_us, outcome } = rows::timed_look(rows)?;
                Ok(Timed { clock_us, outcome: outcome.map(|look| (look, place)) })
            })
            .await?;
        match (&look, place) {
            (Look::Behind { .. }, Some(place)) if request.queues => hub.placed(request, place.unsigned_abs()),
            (Look::Held(..), _) => self.listener.listen_soon(hub),
            _ => {}
        }
        Ok(look)
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<State>> {
        let arguments = [Arg::Bytes(&engine::packed(requests)), Arg::Bool(self.durable)];
        self.server.ask(Operation::Renew, &self.statements.keep_alive, &arguments, rows::states).await
    }

    async fn loss(&self, request: &Request) -> Result<LostReason> {
        let arguments = [Arg::Bytes(bytes(&request.name)), Arg::Bytes(&request.id.to_bytes())];
        self.server.ask(Operation::Renew, &self.statements.notice, &arguments, rows::loss).await
    }

    async fn release(&self, request: &Request, hub: &Hub) -> Result<Release> {
        let arguments = [
            Arg::Bytes(bytes(&request.name)),
            Arg::Bytes(&request.id.to_bytes()),
            Arg::Text(self.listener.channel()),
        ];
        match self.server.answer(Operation::Release, &self.statements.release, &arguments).await {
            Ok((rows, reply_lost)) => {
                let failed = |error| self.server.failed(Operation::Release, error);
                let outcome = rows::release(rows.first(), 4, reply_lost).map_err(failed)?;
                let next: Result<Vec<_>, _> = rows.iter().skip(1).map(handed).collect();
                next.map_err(failed)?.into_iter().flatten().for_each(|next| hub.hand_over(next));
                if reply_lost {
                    // The notification of the next holder may have been in the reply that was lost. A claim finds the grant.
                    hub.ring_all();
                }
                Ok(outcome)
            }
            Err(error) => {
                hub.ring_all();
                Err(error)
            }
        }
    }

    async fn round(&self, hub: &Arc<Hub>, _: bool) -> Result<Round> {
        if self.listener.hears(hub).await {
            return Ok(Round::Quiet);
        }
        let waiting = engine::pairs(hub.waiting());
        if waiting.is_empty() {
            return Ok(Round::Quiet);
        }
        let arguments = [Arg::Pairs(&waiting)];
        let handed =
            self.server.ask(Operation::Wait, &self.statements.handed, &arguments, rows::requests).await?;
        handed.iter().for_each(|request| hub.wake(*request));
        Ok(if handed.is_empty() { Round::Quiet } else { Round::Soon(PACE.shortest) })
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
        let arguments = [
            Arg::Bytes(bytes(name)),
            Arg::Text(&notice),
            Arg::Bool(order.force),
            Arg::Text(self.listener.break_channel()),
        ];
        let broken = self
            .server
            .ask_expiring(Operation::Break, &self.statements.break_lock, &arguments, rows::timed_break)
            .await?;
        if order.force {
            // The waiters of this process claim at once, listening or not.
            hub.ring_all();
        }
        Ok(broken)
    }

    async fn sweep(&self) -> Result<()> {
        let Sweep { holds, waiters, broken } =
            self.sweep.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let holds = self.clear(&self.statements.sweep_holds, &holds).await?;
        let waiters = self.clear(&self.statements.sweep_waiters, &waiters).await?;
        let broken = self.clear(&self.statements.sweep_broken, &broken).await?;
        *self.sweep.lock().unwrap_or_else(PoisonError::into_inner) = Sweep { holds, waiters, broken };
        Ok(())
    }

    fn alerts(&self) -> Option<&Arc<HoldAlerts>> {
        self.listener.alerts()
    }
}
