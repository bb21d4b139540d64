//! The dialect of PostgreSQL.

use std::{
    collections::BTreeMap,
    fmt,
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    BreakOrder, Capabilities, Conversion, ConversionOutcome, Entry, FencingToken, HoldAlerts, LockName,
    LockStatus, LostReason, Moment, Notifications, Operation, Record, Release, Request, RequestId, Result,
    StoredRecord,
    sync::lock,
    wakeups::{Handover, Waiter, WaiterId, Wakeups},
};

use super::{
    config::{Config, Durability},
    listener::Listener,
    push::PushDriver,
    statements::Statements,
};
use crate::engine::{
    columns::Columns,
    convert::{self, ConversionModes},
    dialect::{Dialect, PollInterval, PollOutcome, SWEEP_ROWS, bytes, notice, targets},
    rows::{self, ClaimRow, EntryState, TimedReply, micros},
    server::{
        literal::Arg,
        locks::{claim_arguments, packed},
        pool::Server,
    },
    source::Source,
};

/// Without notifications each round is a query. Most of its time is spent in the network and in the server's queue, so a pause of
/// twice that time is sufficient; a longer one would delay hand-overs.
const POLL_INTERVAL: PollInterval =
    PollInterval { shortest: Duration::from_millis(2), longest: Duration::from_millis(100), min_ratio: 2 };

/// The locks of one database, on the connections of one runtime.
pub(super) struct PostgresDialect<DB: PushDriver> {
    server: Server<DB>,
    capabilities: Capabilities,
    durable: bool,
    statements: Arc<Statements>,
    listener: Arc<Listener<DB>>,
    /// The names from which the next sweep continues: of holds, of waiters, of broken holds.
    sweep: Arc<Mutex<[Vec<u8>; 3]>>,
}

impl<DB: PushDriver> Clone for PostgresDialect<DB> {
    fn clone(&self) -> Self {
        self.on(self.server.clone())
    }
}

impl<DB: PushDriver> fmt::Debug for PostgresDialect<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("server", &self.server.endpoint()).finish_non_exhaustive()
    }
}

impl<DB: PushDriver> PostgresDialect<DB> {
    /// Returns the store. `listening` has the options of the connection that receives notifications, or `None` if this process does not
    /// listen.
    pub(super) fn new(config: &Config, server: Server<DB>, listening: Option<Source<DB::Options>>) -> Self {
        let statements = Statements::new(config);
        let durable = config.durability == Durability::Full;
        let mut capabilities = server.capabilities(durable);
        if listening.is_some() {
            capabilities.notifications = Notifications::Pushed;
        }
        let listener = Arc::new(Listener::new(config, server.clone(), listening, &statements));
        Self {
            server,
            capabilities,
            durable,
            statements: Arc::new(statements),
            listener,
            sweep: Arc::default(),
        }
    }

    /// Returns the same store on other connections.
    fn on(&self, server: Server<DB>) -> Self {
        Self {
            server,
            capabilities: self.capabilities.clone(),
            durable: self.durable,
            statements: self.statements.clone(),
            listener: self.listener.clone(),
            sweep: self.sweep.clone(),
        }
    }
}

/// Reads a grant that a release has made, from a row of `release.sql`.
fn read_handover(row: &impl Columns) -> Result<Option<Handover>, sqlx::Error> {
    let fields = [row.int(0)?, row.int(1)?, row.int(2)?, row.int(3)?];
    Ok(Handover::new(fields.map(Option::unwrap_or_default)))
}

/// Returns the waiters of this process ([`Wakeups::waiting`]) as pairs of name and request, as the tables store them.
fn pairs(names: BTreeMap<LockName, Vec<RequestId>>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut pairs = Vec::new();
    for (name, requests) in names {
        pairs.extend(requests.iter().map(|request| (bytes(&name).to_vec(), request.to_bytes().to_vec())));
    }
    pairs
}

#[async_trait]
impl<DB: PushDriver> Dialect for PostgresDialect<DB> {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn for_caller(&self) -> Option<Pin<Box<dyn Future<Output = Result<Self>> + Send>>> {
        let dialect = self.server.serves_callers().then(|| self.clone())?;
        Some(Box::pin(async move { Ok(dialect.on(dialect.server.for_caller().await?)) }))
    }

    fn has_connection(&self) -> bool {
        self.server.has_connection()
    }

    fn is_open(&self) -> bool {
        self.server.is_open()
    }

    fn poll_interval(&self) -> PollInterval {
        POLL_INTERVAL
    }

    async fn claim(
        &self,
        request: &Request,
        waiter: &Waiter<'_>,
        wakeups: &Arc<Wakeups>,
    ) -> Result<ClaimRow> {
        let more = [
            Arg::Text(self.listener.channel()),
            Arg::Int(i64::try_from(waiter.ticket()).unwrap_or(0)),
            Arg::Bool(self.durable),
            Arg::Bool(request.wants_position),
        ];
        let arguments = [&claim_arguments(request)[..], &more].concat();
        let (claim_row, position) = self
            .server
            .query_expiring(
                Operation::Claim,
                Some(request.id),
                &self.statements.claim,
                &arguments,
                |rows, _| {
                    let position = rows.first().map_or(Ok(None), |row| row.int(2))?;
                    let TimedReply { clock_us, outcome } = rows::timed_claim_row(&rows)?;
                    Ok(TimedReply { clock_us, outcome: outcome.map(|claim_row| (claim_row, position)) })
                },
            )
            .await?;
        match (&claim_row, position) {
            (ClaimRow::Blocked { .. }, Some(position)) => waiter.queued_at(position.unsigned_abs()),
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
        let arguments = [Arg::Bytes(&packed(requests)), Arg::Bool(self.durable)];
        self.server.query(Operation::Renew, &self.statements.keep_alive, &arguments, rows::states).await
    }

    async fn loss(&self, request: &Request) -> Result<LostReason> {
        let arguments = [Arg::Bytes(bytes(&request.name)), Arg::Id(request.id)];
        self.server.query(Operation::Renew, &self.statements.notice, &arguments, rows::loss).await
    }

    async fn release(&self, request: &Request, wakeups: &Wakeups) -> Result<Release> {
        let arguments =
            [Arg::Bytes(bytes(&request.name)), Arg::Id(request.id), Arg::Text(self.listener.channel())];
        match self.server.release(&self.statements.release, request, &arguments, [3, 4]).await {
            Ok((rows, reply_lost)) => {
                let failed = |error| self.server.failed(Operation::Release, error);
                let outcome = rows::release(rows.first(), 4, reply_lost).map_err(failed)?;
                let next: Result<Vec<_>, _> = rows.iter().skip(1).map(read_handover).collect();
                next.map_err(failed)?.into_iter().flatten().for_each(|next| wakeups.deliver(next));
                if reply_lost || outcome == Release::Lost(LostReason::Gone) {
                    // An earlier copy may have made grants to waiters of this process, and its reply was lost, or was sent to a caller that has
                    // been relieved of its release. A claim finds them.
                    wakeups.notify_lock(&request.name);
                }
                Ok(outcome)
            }
            Err(error) => {
                wakeups.notify_all();
                Err(error)
            }
        }
    }

    async fn park(&self, request: &Request, token: FencingToken, left: Duration) -> Result<Release> {
        let arguments = [
            Arg::Bytes(bytes(&request.name)),
            Arg::Id(request.id),
            Arg::Int(token.as_i64()),
            Arg::Int(micros(left)),
            Arg::Bool(self.durable),
        ];
        self.server.park(&self.statements.park, request, left, &arguments).await
    }

    async fn poll(&self, wakeups: &Arc<Wakeups>, _: bool) -> Result<PollOutcome> {
        if self.listener.ensure_receiving(wakeups).await {
            return Ok(PollOutcome::Unchanged);
        }
        let waiting = pairs(wakeups.waiting());
        if waiting.is_empty() {
            return Ok(PollOutcome::Unchanged);
        }
        let arguments = [Arg::Pairs(&waiting)];
        let handed =
            self.server.query(Operation::Wait, &self.statements.handed, &arguments, rows::requests).await?;
        handed.iter().for_each(|request| wakeups.wake(WaiterId::Request(*request)));
        Ok(if handed.is_empty() {
            PollOutcome::Unchanged
        } else {
            PollOutcome::NextAfter(POLL_INTERVAL.shortest)
        })
    }

    async fn lock(&self, name: &[u8]) -> Result<Vec<LockStatus>> {
        self.server.lock(&self.statements.lists, name).await
    }

    async fn page(&self, first: &[u8], end: &[u8]) -> Result<rows::Page> {
        self.server.page(&self.statements.lists, first, end).await
    }

    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        let (targets, notice) = (targets(order), notice(order));
        let arguments = [
            Arg::Bytes(bytes(name)),
            Arg::Text(&targets),
            Arg::Text(&notice),
            Arg::Bool(order.force),
            Arg::Text(self.listener.break_channel()),
        ];
        self.server.break_holds(&self.statements.break_lock, &arguments).await
    }

    async fn convert(&self, request: &Request, conversion: &Conversion) -> Result<Option<ConversionOutcome>> {
        let modes = ConversionModes::new(conversion);
        let arguments = [
            Arg::Bytes(bytes(&request.name)),
            Arg::Id(request.id),
            Arg::Int(conversion.from.as_i64()),
            Arg::Int(modes.to),
            Arg::Int(modes.conflicts),
            Arg::Int(modes.in_way),
            Arg::Int(modes.held_conflicts),
            Arg::Int(modes.waiting),
            Arg::Bool(self.durable),
        ];
        let read = |rows: Vec<DB::Row>, _| convert::timed(conversion, &rows);
        self.server.query_expiring(Operation::Convert, None, &self.statements.convert, &arguments, read).await
    }

    async fn raise(&self, name: &LockName, to: FencingToken) -> Result<FencingToken> {
        self.server.raise(&self.statements.raise, name, to).await
    }

    async fn read_record(&self, name: &LockName) -> Result<StoredRecord> {
        self.server.read_record(&self.statements.records, name).await
    }

    async fn write_record(&self, name: &LockName, record: &Record, keep: Duration) -> Result<()> {
        self.server.write_record(&self.statements.records, name, record, keep).await
    }

    async fn sweep(&self) -> Result<()> {
        let mut names = lock(&self.sweep).clone();
        for (name, template) in names.iter_mut().zip(&self.statements.sweep) {
            let arguments = [Arg::Bytes(name), Arg::Int(SWEEP_ROWS)];
            let read = |rows: &[DB::Row]| rows.first().map_or(Ok(Vec::new()), |row| row.bytes(0));
            *name = self.server.query(Operation::Claim, template, &arguments, read).await?;
        }
        *lock(&self.sweep) = names;
        Ok(())
    }

    fn alerts(&self) -> Option<&Arc<HoldAlerts>> {
        self.listener.alerts()
    }
}
