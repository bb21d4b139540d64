//! The dialect of PostgreSQL.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    BreakOrder, Capabilities, Entry, Fencing, HoldAlerts, LockName, LockStatus, LostReason, Moment,
    Notifications, Operation, Release, Request, RequestId, Result, Scope,
    wakeups::{Handover, Wakeups},
};
use sqlx::postgres::PgRow;

use super::{
    NAME,
    config::{Config, Durability, Listen},
    listener::Listener,
    statements::Statements,
};
use crate::engine::{
    self, ClaimRow, Dialect, EntryState, LIST_ROWS, MAX_TTL, MIN_TTL, PollInterval, PollOutcome, SWEEP_ROWS,
    bytes, label,
    literal::{Arg, Template},
    pool::Server,
    rows::{self, Columns, TimedReply, micros},
    slot,
};

/// Without notifications each round is a query. Most of its time is spent in the network and in the server's queue, so a pause of
/// twice that time is sufficient; a longer one would delay hand-overs.
const POLL_INTERVAL: PollInterval =
    PollInterval { shortest: Duration::from_millis(2), longest: Duration::from_millis(100), min_ratio: 2 };

/// The locks of one database, on the connections of one runtime.
#[derive(Clone)]
pub(super) struct PostgresDialect {
    server: Server<sqlx::Postgres>,
    capabilities: Capabilities,
    durable: bool,
    statements: Arc<Statements>,
    listener: Arc<Listener>,
    sweep: Arc<Mutex<Sweep>>,
}

/// The names from which the next sweep continues.
#[derive(Debug, Default, Clone)]
struct Sweep {
    holds: Vec<u8>,
    waiters: Vec<u8>,
    broken: Vec<u8>,
}

impl fmt::Debug for PostgresDialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("server", &self.server.endpoint()).finish_non_exhaustive()
    }
}

impl PostgresDialect {
    pub(super) fn new(config: &Config, server: Server<sqlx::Postgres>, statements: Statements) -> Self {
        let mut capabilities = Capabilities::new(NAME, MIN_TTL..=MAX_TTL);
        capabilities.scope = Scope::Network;
        capabilities.claims_at_once = server.claims_at_once();
        if !matches!(config.listen, Listen::Off) {
            capabilities.notifications = Notifications::Pushed;
        }
        let durable = config.durability == Durability::Full;
        if !durable {
            // A crash of the server may undo the most recent grants.
            capabilities.fencing = Fencing::WhileRunning;
        }
        let listener = Arc::new(Listener::new(config, server.clone(), &statements));
        Self {
            server,
            capabilities,
            durable,
            statements: Arc::new(statements),
            listener,
            sweep: Arc::default(),
        }
    }

    /// Deletes the expired rows of one section of a table, and returns the name from which the next section begins.
    async fn clear(&self, template: &Template, from: &[u8]) -> Result<Vec<u8>> {
        let arguments = [Arg::Bytes(from), Arg::Int(SWEEP_ROWS)];
        self.server
            .query(Operation::Claim, template, &arguments, |rows| {
                rows.first().map_or(Ok(Vec::new()), |row| row.bytes(0))
            })
            .await
    }
}

/// Reads a grant that a release has made, from a row of `release.sql`.
fn read_handover(row: &PgRow) -> Result<Option<Handover>, sqlx::Error> {
    let fields = [row.int(0)?, row.int(1)?, row.int(2)?, row.int(3)?];
    Ok(Handover::new(fields.map(Option::unwrap_or_default)))
}

#[async_trait]
impl Dialect for PostgresDialect {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn for_caller(&self) -> Option<Pin<Box<dyn Future<Output = Result<Self>> + Send>>> {
        let dialect = self.server.serves_callers().then(|| self.clone())?;
        Some(Box::pin(async move { Ok(Self { server: dialect.server.for_caller().await?, ..dialect }) }))
    }

    fn has_connection(&self) -> bool {
        self.server.has_connection()
    }

    fn poll_interval(&self) -> PollInterval {
        POLL_INTERVAL
    }

    fn receive_notifications(&self, _: &Arc<Wakeups>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::pending())
    }

    async fn claim(&self, request: &Request, wakeups: &Arc<Wakeups>) -> Result<ClaimRow> {
        let (queue_lease, ticket) =
            if request.queues { (micros(request.queue_lease()), wakeups.register(request)) } else { (0, 0) };
        let arguments = [
            Arg::Bytes(bytes(&request.name)),
            Arg::Bytes(&request.id.to_bytes()),
            Arg::Int(request.mode.bit().into()),
            Arg::Int(request.mode.conflicts().into()),
            Arg::Bytes(&slot(request)),
            Arg::Text(request.owner.as_str()),
            Arg::Text(label(request)),
            Arg::Int(micros(request.ttl)),
            Arg::Int(queue_lease),
            Arg::Text(self.listener.channel()),
            Arg::Int(i64::try_from(ticket).unwrap_or(0)),
            Arg::Bool(self.durable),
            Arg::Bool(request.wants_position),
        ];
        let (claim_row, position) = self
            .server
            .query_expiring(Operation::Claim, Some(request.id), &self.statements.claim, &arguments, |rows| {
                let position = rows.first().map_or(Ok(None), |row| row.int(2))?;
                let TimedReply { clock_us, outcome } = rows::timed_claim_row(rows)?;
                Ok(TimedReply { clock_us, outcome: outcome.map(|claim_row| (claim_row, position)) })
            })
            .await?;
        match (&claim_row, position) {
            (ClaimRow::Blocked { .. }, Some(position)) if request.queues => {
                wakeups.set_position(request, position.unsigned_abs());
            }
            (ClaimRow::Held(..), _) => self.listener.listen_soon(wakeups),
            _ => {}
        }
        Ok(claim_row)
    }

    fn late_until(&self, request: RequestId) -> Option<Moment> {
        self.server.late_claims().until(request)
    }

    fn request_records(&self) -> usize {
        self.server.late_claims().len()
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<EntryState>> {
        let arguments = [Arg::Bytes(&engine::packed(requests)), Arg::Bool(self.durable)];
        self.server.query(Operation::Renew, &self.statements.keep_alive, &arguments, rows::states).await
    }

    async fn loss(&self, request: &Request) -> Result<LostReason> {
        let arguments = [Arg::Bytes(bytes(&request.name)), Arg::Bytes(&request.id.to_bytes())];
        self.server.query(Operation::Renew, &self.statements.notice, &arguments, rows::loss).await
    }

    async fn release(&self, request: &Request, wakeups: &Wakeups) -> Result<Release> {
        let arguments = [
            Arg::Bytes(bytes(&request.name)),
            Arg::Bytes(&request.id.to_bytes()),
            Arg::Text(self.listener.channel()),
        ];
        match self.server.send(Operation::Release, &self.statements.release, &arguments).await {
            Ok((rows, reply_lost)) => {
                let failed = |error| self.server.failed(Operation::Release, error);
                let outcome = rows::release(rows.first(), 4, reply_lost).map_err(failed)?;
                let next: Result<Vec<_>, _> = rows.iter().skip(1).map(read_handover).collect();
                next.map_err(failed)?.into_iter().flatten().for_each(|next| wakeups.deliver(next));
                if reply_lost {
                    // The notification of the next holder may have been in the lost reply. A claim finds the grant.
                    wakeups.notify_all();
                }
                Ok(outcome)
            }
            Err(error) => {
                wakeups.notify_all();
                Err(error)
            }
        }
    }

    async fn poll(&self, wakeups: &Arc<Wakeups>, _: bool) -> Result<PollOutcome> {
        if self.listener.ensure_receiving(wakeups).await {
            return Ok(PollOutcome::Unchanged);
        }
        let waiting = engine::pairs(wakeups.waiting());
        if waiting.is_empty() {
            return Ok(PollOutcome::Unchanged);
        }
        let arguments = [Arg::Pairs(&waiting)];
        let handed =
            self.server.query(Operation::Wait, &self.statements.handed, &arguments, rows::requests).await?;
        handed.iter().for_each(|request| wakeups.wake(*request));
        Ok(if handed.is_empty() {
            PollOutcome::Unchanged
        } else {
            PollOutcome::NextAfter(POLL_INTERVAL.shortest)
        })
    }

    async fn lock(&self, name: &[u8]) -> Result<Vec<LockStatus>> {
        let (template, arguments) = (&self.statements.locks_by_name, [Arg::Bytes(name)]);
        self.server.query(Operation::Inspect, template, &arguments, |rows| rows::statuses(rows, true)).await
    }

    async fn page(&self, first: &[u8], end: &[u8]) -> Result<rows::Page> {
        let arguments = [Arg::Bytes(first), Arg::Bytes(end), Arg::Int(LIST_ROWS)];
        let template = &self.statements.locks_by_prefix;
        self.server.query(Operation::Inspect, template, &arguments, |rows| rows::page(rows, LIST_ROWS)).await
    }

    async fn break_lock(&self, name: &LockName, order: &BreakOrder, wakeups: &Wakeups) -> Result<Vec<Entry>> {
        let notice = engine::notice(order);
        let arguments = [
            Arg::Bytes(bytes(name)),
            Arg::Text(&notice),
            Arg::Bool(order.force),
            Arg::Text(self.listener.break_channel()),
        ];
        let broken = self
            .server
            .query_expiring(
                Operation::Break,
                None,
                &self.statements.break_lock,
                &arguments,
                rows::timed_break,
            )
            .await?;
        if order.force {
            // The waiters of this process claim immediately, even if it does not listen.
            wakeups.notify_all();
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
