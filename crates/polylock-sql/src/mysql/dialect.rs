//! The dialect of MySQL and MariaDB.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    BreakOrder, Capabilities, Conversion, ConversionOutcome, Entry, FencingToken, LockName, LockStatus,
    LostReason, Moment, Operation, Record, Release, Request, RequestId, Result, StoredRecord,
    sync::lock,
    wakeups::{Waiter, Wakeups},
};

use super::{
    config::Config,
    hand_over,
    local_requests::LocalRequests,
    statements::Statements,
    watch::{self, Watch},
};
use crate::engine::{
    columns::Columns,
    convert::{self, ConversionModes},
    dialect::{Dialect, PollInterval, PollOutcome, SWEEP_ROWS, bytes, notice, targets},
    rows::{self, ClaimRow, EntryState, TimedReply, micros},
    server::{
        driver::Driver,
        literal::Arg,
        locks::{claim_arguments, packed, slot_argument},
        pool::Server,
    },
};

/// The locks of one database, on the connections of one runtime.
pub(super) struct MySqlDialect<DB: Driver> {
    server: Server<DB>,
    capabilities: Capabilities,
    longest_pause: Duration,
    statements: Arc<Statements>,
    local: Arc<LocalRequests>,
    watch: Arc<Watch>,
    /// The names from which the next sweep continues: of holds, of waiters, of broken holds.
    sweep: Arc<Mutex<[Vec<u8>; 3]>>,
}

impl<DB: Driver> Clone for MySqlDialect<DB> {
    fn clone(&self) -> Self {
        self.on(self.server.clone())
    }
}

impl<DB: Driver> fmt::Debug for MySqlDialect<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySql").field("server", &self.server.endpoint()).finish_non_exhaustive()
    }
}

impl<DB: Driver> MySqlDialect<DB> {
    /// Returns the store. `durable` is true if grants survive a crash of the server's machine.
    pub(super) fn new(config: &Config, server: Server<DB>, durable: bool) -> Self {
        Self {
            capabilities: server.capabilities(durable),
            server,
            longest_pause: config.poll,
            statements: Arc::new(Statements::new(config)),
            local: Arc::default(),
            watch: Arc::default(),
            sweep: Arc::default(),
        }
    }

    /// Returns the same store on other connections.
    fn on(&self, server: Server<DB>) -> Self {
        Self {
            server,
            capabilities: self.capabilities.clone(),
            longest_pause: self.longest_pause,
            statements: self.statements.clone(),
            local: self.local.clone(),
            watch: self.watch.clone(),
            sweep: self.sweep.clone(),
        }
    }
}

#[async_trait]
impl<DB: Driver> Dialect for MySqlDialect<DB> {
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
        watch::poll_interval(self.longest_pause)
    }

    async fn claim(
        &self,
        request: &Request,
        waiter: &Waiter<'_>,
        wakeups: &Arc<Wakeups>,
    ) -> Result<ClaimRow> {
        let arguments = [&claim_arguments(request)[..], &[Arg::Int(request.wants_position.into())]].concat();
        if request.queues {
            // Before the claim is sent, so that a release that grants it the lock immediately afterwards finds it.
            self.local.claim(request);
        }
        let (claim_row, queued) = self
            .server
            .query_expiring(
                Operation::Claim,
                Some(request.id),
                &self.statements.claim,
                &arguments,
                |rows, _| {
                    let TimedReply { clock_us, outcome } = rows::timed_claim_row(&rows)?;
                    let queued = match (&outcome, rows.first()) {
                        (Some(ClaimRow::Blocked { .. }), Some(row)) => {
                            Some((rows::request(row, 2)?, row.int(5)?))
                        }
                        _ => None,
                    };
                    Ok(TimedReply { clock_us, outcome: outcome.map(|claim_row| (claim_row, queued)) })
                },
            )
            .await?;
        match queued {
            Some((ahead, position)) if request.queues => {
                if let Some(position) = position {
                    waiter.queued_at(position.unsigned_abs());
                }
                waiter.queued_behind(ahead);
                if self.local.was_released(ahead) {
                    wakeups.notify(ahead);
                }
            }
            Some(_) => {}
            None => self.local.claim(request),
        }
        Ok(claim_row)
    }

    fn late_until(&self, request: RequestId) -> Option<Moment> {
        self.server.late_claims().until(request)
    }

    fn request_records(&self) -> usize {
        self.server.late_claims().len() + self.local.len()
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<EntryState>> {
        let arguments = [Arg::Bytes(&packed(requests))];
        let states = self
            .server
            .query(Operation::Renew, &self.statements.keep_alive, &arguments, rows::states)
            .await?;
        for (request, state) in requests.iter().zip(&states) {
            match state {
                // Another request may be granted the lock before this process releases it.
                EntryState::Broken | EntryState::Gone => self.local.forget(request.id),
                // Another process may release it, so the poller has to look it up.
                EntryState::Held(..) if request.outlives_process => self.local.forget(request.id),
                EntryState::Held(..) | EntryState::Queued | EntryState::Contested => {
                    self.local.extend(request);
                }
            }
        }
        Ok(states)
    }

    async fn loss(&self, request: &Request) -> Result<LostReason> {
        let arguments = [Arg::Bytes(bytes(&request.name)), Arg::Id(request.id), slot_argument(request)];
        self.server.query(Operation::Renew, &self.statements.notice, &arguments, rows::loss).await
    }

    async fn release(&self, request: &Request, wakeups: &Wakeups) -> Result<Release> {
        let arguments = [Arg::Bytes(bytes(&request.name)), Arg::Id(request.id), slot_argument(request)];
        let answered = self.server.release(&self.statements.release, request, &arguments, [3, 0]).await;
        let (rows, reply_lost) = match answered {
            Ok(answer) => answer,
            Err(error) => {
                // If the release is still carried out, the poller finds that, and its grants.
                self.local.forget(request.id);
                return Err(error);
            }
        };
        self.local.release(request.id);
        let failed = |error| self.server.failed(Operation::Release, error);
        let row = rows.first().ok_or(sqlx::Error::RowNotFound).map_err(failed)?;
        hand_over::read(row, 2).map_err(failed)?.into_iter().for_each(|grant| wakeups.deliver(grant));
        if reply_lost {
            // The grants may have been in the lost reply. A claim finds them.
            wakeups.notify_all();
        } else {
            // The waiters behind it that were not granted the lock wait for another request now.
            wakeups.notify(request.id);
        }
        rows::release(Some(row), 0, reply_lost).map_err(failed)
    }

    async fn park(&self, request: &Request, token: FencingToken, left: Duration) -> Result<Release> {
        let arguments = [
            Arg::Bytes(bytes(&request.name)),
            Arg::Id(request.id),
            slot_argument(request),
            Arg::Int(token.as_i64()),
            Arg::Int(micros(left)),
        ];
        self.server.park(&self.statements.park, request, left, &arguments).await
    }

    async fn poll(&self, wakeups: &Arc<Wakeups>, _: bool) -> Result<PollOutcome> {
        self.watch.poll(&self.server, &self.statements.watch, &self.local, wakeups).await
    }

    async fn lock(&self, name: &[u8]) -> Result<Vec<LockStatus>> {
        self.server.lock(&self.statements.lists, name).await
    }

    async fn page(&self, first: &[u8], end: &[u8]) -> Result<rows::Page> {
        self.server.page(&self.statements.lists, first, end).await
    }

    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        let (targets, notice) = (targets(order), notice(order));
        let arguments =
            [Arg::Bytes(bytes(name)), Arg::Text(&targets), Arg::Text(&notice), Arg::Int(order.force.into())];
        self.server.break_holds(&self.statements.break_lock, &arguments).await
    }

    async fn convert(&self, request: &Request, conversion: &Conversion) -> Result<Option<ConversionOutcome>> {
        let modes = ConversionModes::new(conversion);
        let arguments = [
            Arg::Bytes(bytes(&request.name)),
            Arg::Id(request.id),
            slot_argument(request),
            Arg::Int(conversion.from.as_i64()),
            Arg::Int(modes.to),
            Arg::Int(modes.in_way),
            Arg::Int(modes.held_conflicts),
            Arg::Int(modes.waiting),
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
        let [holds, waiters, broken] = lock(&self.sweep).clone();
        let arguments = [Arg::Bytes(&holds), Arg::Bytes(&waiters), Arg::Bytes(&broken), Arg::Int(SWEEP_ROWS)];
        let next = self
            .server
            .query(Operation::Claim, &self.statements.sweep, &arguments, |rows| {
                rows.first()
                    .map_or(Ok(Default::default()), |row| Ok([row.bytes(0)?, row.bytes(1)?, row.bytes(2)?]))
            })
            .await?;
        *lock(&self.sweep) = next;
        Ok(())
    }
}
