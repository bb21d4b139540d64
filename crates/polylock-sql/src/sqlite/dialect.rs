//! The dialect of SQLite.

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use polylock_core::{
    BreakOrder, Capabilities, Conversion, ConversionOutcome, Entry, Fencing, FencingToken, LockName,
    LockStatus, LostReason, Operation, Record, Release, Request, RequestId, Result, StoredRecord,
    wakeups::{Handover, Waiter, WaiterId, Wakeups},
};
use sqlx::{
    Arguments, Encode, Row, SqlStr, Type,
    sqlite::{SqliteArguments, SqliteRow},
};

use super::{
    NAME,
    blockers::{Blocker, Blockers, Found},
    config::{Config, Durability},
    connection::{Connections, Lane, Sql},
    datagrams::Datagrams,
    hand_over::{GrantedWaiter, ReleaseOutcome},
    process_lock::{ProcessId, ProcessLock},
    statements::Statements,
    tables::prepare,
    watch::{self, Watch},
};
use crate::engine::{
    columns::Columns,
    convert::{self, ConversionModes},
    dialect::{
        Dialect, LIST_ROWS, MAX_TTL, MIN_TTL, PollInterval, PollOutcome, SWEEP_ROWS, bytes, notice, targets,
    },
    records::stored_record,
    rows::{self, ClaimRow, EntryState, micros},
};

/// The number of claims that may be in flight at once. One of them uses the file; each of the others waits for all before it, and the first
/// claim of a request has half a second.
const CLAIMS: usize = 8;

/// The maximum number of entries of dead processes that a claim deletes, so that it ends in bounded time. The poller deletes the next one.
const MAX_SUPERSEDED: u32 = 100;

/// The time after its release for which a request that other processes may know is granted nothing: far longer than a process is stopped
/// between two steps of a claim, unless somebody stops it.
const REFUSED: Duration = Duration::from_secs(30);

/// The locks of one file.
pub(super) struct SqliteDialect {
    capabilities: Capabilities,
    sweep: tokio::sync::Mutex<Sweep>,
    reopening: tokio::sync::Mutex<()>,
    connections: Connections,
    pub(super) statements: Statements,
    pub(super) datagrams: Arc<Datagrams>,
    watch: Watch,
    pub(super) process: ProcessLock,
    blockers: Blockers,
}

/// The position at which the sweep continues.
#[derive(Debug, Default)]
struct Sweep {
    token: i64,
    position: i64,
}

impl fmt::Debug for SqliteDialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteDialect").field("file", &self.connections.path).finish_non_exhaustive()
    }
}

/// Adds an argument behind the others.
pub(super) trait WithArgument: Sized {
    fn with<'v>(self, value: impl Encode<'v, sqlx::Sqlite> + Type<sqlx::Sqlite>) -> Self;
}

impl WithArgument for SqliteArguments {
    #[expect(clippy::expect_used, reason = "numbers, texts and blobs are copied, which can't fail")]
    fn with<'v>(mut self, value: impl Encode<'v, sqlx::Sqlite> + Type<sqlx::Sqlite>) -> Self {
        self.add(value).expect("a plain value can be an argument");
        self
    }
}

pub(super) fn id(request: &Request) -> Vec<u8> {
    request.id.to_bytes().to_vec()
}

/// Returns the requests of a keep-alive as a JSON array of rows: name and request as hexadecimal digits, TTL and the TTL of the queue entry
/// in us, 1 if the hold may outlive its process.
fn batch(requests: &[Arc<Request>]) -> String {
    let row = |request: &Arc<Request>| {
        let (name, id) = (rows::hex(bytes(&request.name)), rows::hex(&request.id.to_bytes()));
        let (ttl, queue_ttl) = (micros(request.ttl), micros(request.queue_lease()));
        format!(r#"["{name}","{id}",{ttl},{queue_ttl},{}]"#, u8::from(request.outlives_process))
    };
    format!("[{}]", requests.iter().map(row).collect::<Vec<_>>().join(","))
}

impl SqliteDialect {
    pub(super) fn new(
        config: &Config,
        connections: Connections,
        statements: Statements,
        datagrams: Datagrams,
        process: ProcessLock,
    ) -> Self {
        let mut capabilities = Capabilities::new(NAME, MIN_TTL..=MAX_TTL);
        capabilities.claims_at_once = CLAIMS;
        capabilities.frees_dead_holders = process.id().is_some();
        if config.durability == Durability::Normal {
            // A power cut may undo the last grants.
            capabilities.fencing = Fencing::WhileRunning;
        }
        Self {
            capabilities,
            sweep: tokio::sync::Mutex::default(),
            reopening: tokio::sync::Mutex::default(),
            connections,
            statements,
            datagrams: Arc::new(datagrams),
            watch: Watch::default(),
            process,
            blockers: Blockers::default(),
        }
    }

    /// Deletes an entry of a process that has ended, and grants the lock to the next waiters.
    async fn supersede(&self, Blocker { name, request, process }: Blocker, wakeups: &Wakeups) -> Result<()> {
        tracing::debug!(lock.name = %name, "the process of a hold or a waiter has ended: its entry is deleted");
        self.hand_over(&name, request, Some(process), wakeups).await.map(drop)
    }

    /// Releases or withdraws, and grants the lock to the next waiters in the same transaction. Returns true if there was an entry.
    /// `process` is that of the entry if it has ended.
    async fn hand_over(
        &self,
        name: &LockName,
        request: RequestId,
        process: Option<ProcessId>,
        wakeups: &Wakeups,
    ) -> Result<bool> {
        let arguments = SqliteArguments::default()
            .with(bytes(name))
            .with(request.to_bytes().to_vec())
            .with(process.map(|process| process.0));
        let sql = &self.statements.hand_over;
        self.rows(Lane::Durable, Operation::Release, sql, arguments, |rows| {
            let ReleaseOutcome { released, grants } = ReleaseOutcome::read(rows)?;
            if grants.is_empty() {
                wakeups.notify(request);
            }
            for GrantedWaiter { waiter, grant } in grants {
                match waiter.channel.as_deref() {
                    Some(channel) if Some(channel) != self.datagrams.channel() => {
                        self.datagrams.wake(channel, waiter.ticket);
                    }
                    _ => wakeups.deliver(Handover {
                        waiter: WaiterId::Request(waiter.request),
                        position: waiter.position,
                        grant,
                    }),
                }
            }
            Ok(released)
        })
        .await
    }

    /// Switches to the file at the path, if it is another one than before.
    async fn reopen_if_moved(&self, operation: Operation) -> Result<()> {
        let Self { connections, statements, .. } = self;
        if connections.has_moved() {
            let _guard = self.reopening.lock().await;
            if connections.has_moved() {
                tracing::warn!(file = ?connections.path, "the file was deleted or replaced: its locks are lost");
                connections.close_all(operation).await?;
                prepare(connections, statements).await?;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Dialect for SqliteDialect {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn poll_interval(&self) -> PollInterval {
        watch::poll_interval(self.datagrams.channel().is_some())
    }

    fn receive_notifications(&self, wakeups: &Arc<Wakeups>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (datagrams, wakeups) = (self.datagrams.clone(), wakeups.clone());
        Box::pin(async move { datagrams.receive(&wakeups).await })
    }

    async fn claim(
        &self,
        request: &Request,
        waiter: &Waiter<'_>,
        wakeups: &Arc<Wakeups>,
    ) -> Result<ClaimRow> {
        self.reopen_if_moved(Operation::Claim).await?;
        let mut found = self.take_or_queue(request, waiter).await?;
        for _ in 0..MAX_SUPERSEDED {
            match found.blocker.take_if(|blocker| self.process.has_ended(&blocker.process)) {
                Some(ended) => self.supersede(ended, wakeups).await?,
                None => break,
            }
            found = self.take_or_queue(request, waiter).await?;
        }
        let Found { claim_row, blocker } = found;
        if let Some(blocker) = blocker
            && request.queues
            && Some(&blocker.process) != self.process.id()
        {
            self.blockers.add(blocker);
        }
        Ok(claim_row)
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<EntryState>> {
        self.reopen_if_moved(Operation::Renew).await?;
        let arguments = SqliteArguments::default().with(batch(requests));
        let sql = &self.statements.keep_alive;
        self.rows(Lane::Relaxed, Operation::Renew, sql, arguments, rows::states).await
    }

    async fn loss(&self, request: &Request) -> Result<LostReason> {
        self.reason(Lane::Reading, Operation::Renew, &self.statements.notice, request).await
    }

    async fn release(&self, request: &Request, wakeups: &Wakeups) -> Result<Release> {
        let arguments = || SqliteArguments::default().with(bytes(&request.name)).with(id(request));
        if request.outlives_process {
            let refused = arguments().with(micros(REFUSED));
            self.changed(Lane::Relaxed, Operation::Release, &self.statements.refuse, refused).await?;
        }
        if !wakeups.is_watched(request.id) {
            // Neither need be on the disk, as opposed to a hand-over.
            for sql in [&self.statements.release, &self.statements.withdraw] {
                if self.changed(Lane::Relaxed, Operation::Release, sql, arguments()).await?.is_some() {
                    wakeups.notify(request.id);
                    return Ok(Release::Released);
                }
            }
        }
        // A hand-over is one transaction. It also follows if neither table had an entry of the request in two separate statements, because
        // another release may have granted it the lock in between.
        if self.hand_over(&request.name, request.id, None, wakeups).await? {
            return Ok(Release::Released);
        }
        wakeups.notify(request.id);
        // The notice of a break stays until the lease would have ended, for a release that is repeated for lack of a reply, as through a lock
        // service.
        let sql = &self.statements.notice;
        Ok(Release::Lost(self.reason(Lane::Reading, Operation::Release, sql, request).await?))
    }

    async fn park(&self, request: &Request, token: FencingToken, left: Duration) -> Result<Release> {
        self.reopen_if_moved(Operation::Renew).await?;
        let arguments = SqliteArguments::default()
            .with(bytes(&request.name))
            .with(id(request))
            .with(token.as_i64())
            .with(micros(left));
        self.rows(Lane::Durable, Operation::Renew, &self.statements.park, arguments, |rows| {
            rows.first().map_or(Ok(Release::Lost(LostReason::Gone)), rows::parked)
        })
        .await
    }

    async fn poll(&self, wakeups: &Arc<Wakeups>, waiter_added: bool) -> Result<PollOutcome> {
        if waiter_added {
            self.blockers.retain(|request| wakeups.is_watched(request));
        }
        for ended in self.blockers.take_ended(|process| self.process.has_ended(process)) {
            self.supersede(ended, wakeups).await?;
        }
        let PollInterval { shortest, .. } = self.poll_interval();
        self.watch.poll(&self.connections, &self.statements, wakeups, waiter_added, shortest).await
    }

    async fn lock(&self, name: &[u8]) -> Result<Vec<LockStatus>> {
        let (sql, arguments) = (&self.statements.inspect, SqliteArguments::default().with(name));
        self.rows(Lane::Reading, Operation::Inspect, sql, arguments, |rows| rows::statuses(rows, true)).await
    }

    async fn page(&self, first: &[u8], end: &[u8]) -> Result<rows::Page> {
        let arguments = SqliteArguments::default().with(first).with(end).with(LIST_ROWS);
        let sql = &self.statements.list;
        self.rows(Lane::Reading, Operation::Inspect, sql, arguments, |rows| rows::page(rows, LIST_ROWS)).await
    }

    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        let targets = format!("[{}]", targets(order));
        let arguments = SqliteArguments::default().with(bytes(name)).with(notice(order)).with(targets);
        let sql = if order.force { &self.statements.break_lock } else { &self.statements.mark };
        self.rows(Lane::Relaxed, Operation::Break, sql, arguments, rows::holders).await
    }

    async fn version(&self) -> Result<Option<u64>> {
        self.reopen_if_moved(Operation::Inspect).await?;
        let (opening, changes) =
            watch::version(&self.connections, &self.statements, Operation::Inspect).await?;
        Ok(Some((opening << 32) ^ changes.cast_unsigned()))
    }

    async fn convert(&self, request: &Request, conversion: &Conversion) -> Result<Option<ConversionOutcome>> {
        self.reopen_if_moved(Operation::Convert).await?;
        let modes = ConversionModes::new(conversion);
        let arguments = SqliteArguments::default()
            .with(bytes(&request.name))
            .with(id(request))
            .with(conversion.from.as_i64())
            .with(modes.to)
            .with(modes.in_way)
            .with(modes.held_conflicts)
            .with(modes.waiting);
        let sql = &self.statements.convert;
        self.rows(Lane::Durable, Operation::Convert, sql, arguments, |rows| {
            convert::outcome(conversion, rows.first())
        })
        .await
    }

    async fn raise(&self, _: &LockName, to: FencingToken) -> Result<FencingToken> {
        self.reopen_if_moved(Operation::Claim).await?;
        let arguments = SqliteArguments::default().with(to.as_i64());
        self.rows(Lane::Durable, Operation::Claim, &self.statements.raise, arguments, |rows| {
            let last = rows.first().map_or(Ok(None), |row| row.int(0))?;
            last.and_then(FencingToken::new).ok_or(sqlx::Error::RowNotFound)
        })
        .await
    }

    async fn read_record(&self, name: &LockName) -> Result<StoredRecord> {
        self.reopen_if_moved(Operation::Record).await?;
        let arguments = SqliteArguments::default().with(bytes(name));
        let sql = &self.statements.read_record;
        self.rows(Lane::Reading, Operation::Record, sql, arguments, stored_record).await
    }

    async fn write_record(&self, name: &LockName, record: &Record, keep: Duration) -> Result<()> {
        self.reopen_if_moved(Operation::Record).await?;
        let arguments = SqliteArguments::default()
            .with(bytes(name))
            .with(record.version.token.as_i64())
            .with(record.version.revision)
            .with(&*record.text)
            .with(micros(keep));
        let sql = &self.statements.write_record;
        self.rows(Lane::Durable, Operation::Record, sql, arguments, |_| Ok(())).await
    }

    async fn sweep(&self) -> Result<()> {
        let mut from = self.sweep.lock().await;
        let arguments = SqliteArguments::default().with(from.token).with(from.position).with(SWEEP_ROWS);
        let sql = &self.statements.sweep;
        let ends = self.rows(Lane::Relaxed, Operation::Claim, sql, arguments, |rows| {
            let Some(row) = rows.first() else { return Ok(Sweep::default()) };
            let end = |at: usize| Ok::<_, sqlx::Error>(row.try_get::<Option<i64>, _>(at)?.unwrap_or(0));
            Ok(Sweep { token: end(0)?, position: end(1)? })
        });
        *from = ends.await?;
        Ok(())
    }
}

impl SqliteDialect {
    /// Runs `sql` and calls `read` with its rows, before another writer of this process is admitted.
    pub(super) async fn rows<T>(
        &self,
        lane: Lane,
        operation: Operation,
        sql: &SqlStr,
        arguments: SqliteArguments,
        read: impl FnOnce(&[SqliteRow]) -> Result<T, sqlx::Error> + Send,
    ) -> Result<T> {
        self.connections.run(lane, operation, Sql::Query(sql), arguments, |reply| read(&reply.rows)).await
    }

    /// Returns the reason why there is no hold of `request` to extend or to release, from the notice that `sql` returns, if any.
    async fn reason(
        &self,
        lane: Lane,
        operation: Operation,
        sql: &SqlStr,
        request: &Request,
    ) -> Result<LostReason> {
        let arguments = SqliteArguments::default().with(bytes(&request.name)).with(id(request));
        self.rows(lane, operation, sql, arguments, rows::loss).await
    }

    /// Runs `sql`, which returns no rows. Returns the number of the row that it inserted, any number if it changed or deleted one, or
    /// `None`.
    pub(super) async fn changed(
        &self,
        lane: Lane,
        operation: Operation,
        sql: &SqlStr,
        arguments: SqliteArguments,
    ) -> Result<Option<i64>> {
        self.connections.run(lane, operation, Sql::Execute(sql), arguments, |reply| Ok(reply.changed)).await
    }
}
