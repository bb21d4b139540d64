//! The dialect of MySQL and MariaDB.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    BreakOrder, Capabilities, Entry, Fencing, HoldAlerts, LockName, LockStatus, LostReason, Moment,
    Operation, Release, Request, RequestId, Result, Scope, wakeups::Wakeups,
};

use super::{
    NAME,
    hand_over::GrantedWaiter,
    local_requests::LocalRequests,
    statements::Statements,
    watch::{self, Watch},
};
use crate::engine::{
    self, ClaimRow, Dialect, EntryState, LIST_ROWS, MAX_TTL, MIN_TTL, PollInterval, PollOutcome, SWEEP_ROWS,
    bytes, label,
    literal::Arg,
    pool::Server,
    rows::{self, Columns, TimedReply, micros},
    slot,
};

/// The locks of one database, on the connections of one runtime.
#[derive(Clone)]
pub(super) struct MySqlDialect {
    server: Server<sqlx::MySql>,
    capabilities: Capabilities,
    longest_pause: Duration,
    statements: Arc<Statements>,
    local: Arc<LocalRequests>,
    watch: Arc<Watch>,
    /// The names from which the next sweep continues: of holds, of waiters, of broken holds.
    sweep: Arc<Mutex<[Vec<u8>; 3]>>,
}

impl fmt::Debug for MySqlDialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySql").field("server", &self.server.endpoint()).finish_non_exhaustive()
    }
}

impl MySqlDialect {
    /// Returns the store. `durable` is true if grants survive a crash of the server's machine.
    pub(super) fn new(
        server: Server<sqlx::MySql>,
        statements: Statements,
        poll: Duration,
        durable: bool,
    ) -> Self {
        let mut capabilities = Capabilities::new(NAME, MIN_TTL..=MAX_TTL);
        capabilities.scope = Scope::Network;
        capabilities.claims_at_once = server.claims_at_once();
        if !durable {
            capabilities.fencing = Fencing::WhileRunning;
        }
        Self {
            server,
            capabilities,
            longest_pause: poll,
            statements: Arc::new(statements),
            local: Arc::default(),
            watch: Arc::default(),
            sweep: Arc::default(),
        }
    }
}

#[async_trait]
impl Dialect for MySqlDialect {
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
        watch::poll_interval(self.longest_pause)
    }

    fn receive_notifications(&self, _: &Arc<Wakeups>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::pending())
    }

    async fn claim(&self, request: &Request, wakeups: &Arc<Wakeups>) -> Result<ClaimRow> {
        let queue_lease = if request.queues { micros(request.queue_lease()) } else { 0 };
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
            Arg::Int(request.wants_position.into()),
        ];
        if request.queues {
            // Before the claim is sent, so that a release that grants it the lock immediately afterwards finds it.
            self.local.claim(request);
            wakeups.register(request);
        }
        let (claim_row, queued) = self
            .server
            .query_expiring(Operation::Claim, Some(request.id), &self.statements.claim, &arguments, |rows| {
                let TimedReply { clock_us, outcome } = rows::timed_claim_row(rows)?;
                let queued = match (&outcome, rows.first()) {
                    (Some(ClaimRow::Blocked { .. }), Some(row)) => {
                        Some((rows::request(row, 2)?, row.int(5)?))
                    }
                    _ => None,
                };
                Ok(TimedReply { clock_us, outcome: outcome.map(|claim_row| (claim_row, queued)) })
            })
            .await?;
        match queued {
            Some((ahead, position)) if request.queues => {
                if let Some(position) = position {
                    wakeups.set_position(request, position.unsigned_abs());
                }
                wakeups.watch(request, ahead);
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
        let arguments = [Arg::Bytes(&engine::packed(requests))];
        let states = self
            .server
            .query(Operation::Renew, &self.statements.keep_alive, &arguments, rows::states)
            .await?;
        for (request, state) in requests.iter().zip(&states) {
            match state {
                // Another request may be granted the lock before this process releases it.
                EntryState::Broken | EntryState::Gone => self.local.forget(request.id),
                EntryState::Held | EntryState::Queued | EntryState::Contested => self.local.extend(request),
            }
        }
        Ok(states)
    }

    async fn loss(&self, request: &Request) -> Result<LostReason> {
        let arguments = [
            Arg::Bytes(bytes(&request.name)),
            Arg::Bytes(&request.id.to_bytes()),
            Arg::Bytes(&slot(request)),
        ];
        self.server.query(Operation::Renew, &self.statements.notice, &arguments, rows::loss).await
    }

    async fn release(&self, request: &Request, wakeups: &Wakeups) -> Result<Release> {
        let arguments = [
            Arg::Bytes(bytes(&request.name)),
            Arg::Bytes(&request.id.to_bytes()),
            Arg::Bytes(&slot(request)),
        ];
        let answered = self.server.send(Operation::Release, &self.statements.release, &arguments).await;
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
        for granted in GrantedWaiter::read(row, 2).map_err(failed)? {
            granted.deliver(wakeups);
        }
        if reply_lost {
            // The grants may have been in the lost reply. A claim finds them.
            wakeups.notify_all();
        } else {
            // The waiters behind it that were not granted the lock wait for another request now.
            wakeups.notify(request.id);
        }
        rows::release(Some(row), 0, reply_lost).map_err(failed)
    }

    async fn poll(&self, wakeups: &Arc<Wakeups>, _: bool) -> Result<PollOutcome> {
        self.watch.poll(&self.server, &self.statements.watch, &self.local, wakeups).await
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
        let arguments = [Arg::Bytes(bytes(name)), Arg::Text(&notice), Arg::Int(order.force.into())];
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
            // The waiters of this process claim immediately; those of other processes when their pollers find the change.
            wakeups.notify_all();
        }
        Ok(broken)
    }

    async fn sweep(&self) -> Result<()> {
        let [holds, waiters, broken] = self.sweep.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let arguments = [Arg::Bytes(&holds), Arg::Bytes(&waiters), Arg::Bytes(&broken), Arg::Int(SWEEP_ROWS)];
        let next = self
            .server
            .query(Operation::Claim, &self.statements.sweep, &arguments, |rows| {
                rows.first()
                    .map_or(Ok(Default::default()), |row| Ok([row.bytes(0)?, row.bytes(1)?, row.bytes(2)?]))
            })
            .await?;
        *self.sweep.lock().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    fn alerts(&self) -> Option<&Arc<HoldAlerts>> {
        // There are no notifications, and holders do not poll.
        None
    }
}
