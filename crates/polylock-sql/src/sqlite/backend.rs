//! The dialect of SQLite.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use polylock_core::{
    BreakOrder, Capabilities, Entry, Fencing, FencingToken, HoldAlerts, LockName, LockStatus, LostReason,
    Operation, Release, Request, Result, hub::Hub,
};
use sqlx::{
    Arguments, Encode, Row, SqlStr, Type,
    sqlite::{SqliteArguments, SqliteRow},
};

use super::{
    NAME,
    config::{Config, Durability},
    connection::{Answer, Connections, Lane, Sql},
    error,
    hand_over::{Granted, HandOver},
    open::prepare,
    round,
    statements::Statements,
    wakeups::Wakeups,
};
use crate::engine::{
    self, Dialect, LIST_ROWS, LONGEST, Look, Pace, Round, SHORTEST, SWEEP_ROWS, State, bytes, label,
    rows::{self, Columns, micros},
    slot,
};

/// How often a claim goes round if the one it waits for leaves between the two steps of a round. Its place in the
/// queue is its own from the first round on, so a second is hardly ever needed.
const ROUNDS: u32 = 3;

/// How many claims may be under way at once. One is at the file; each of the others waits for all before it, and the first one of a
/// request has half a second.
const CLAIMS: usize = 8;

/// The locks of one file.
pub(super) struct Sqlite {
    capabilities: Capabilities,
    sweep: tokio::sync::Mutex<Sweep>,
    returning: tokio::sync::Mutex<()>,
    pub(super) connections: Connections,
    pub(super) statements: Statements,
    pub(super) wakeups: Arc<Wakeups>,
    /// The last version of the file that was looked at, and the connection that counted it.
    pub(super) seen: Mutex<Option<(u64, i64)>>,
}

/// Where the sweep goes on.
#[derive(Debug, Default)]
struct Sweep {
    token: i64,
    place: i64,
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite").field("file", &self.connections.path).finish_non_exhaustive()
    }
}

/// Puts an argument behind the others.
trait With: Sized {
    fn with<'v>(self, value: impl Encode<'v, sqlx::Sqlite> + Type<sqlx::Sqlite>) -> Self;
}

impl With for SqliteArguments {
    #[expect(clippy::expect_used, reason = "numbers, texts and blobs are copied, which can't fail")]
    fn with<'v>(mut self, value: impl Encode<'v, sqlx::Sqlite> + Type<sqlx::Sqlite>) -> Self {
        self.add(value).expect("a plain value can be an argument");
        self
    }
}

fn id(request: &Request) -> Vec<u8> {
    request.id.to_bytes().to_vec()
}

/// The requests of a keep-alive as a JSON array of rows: name and request as hexadecimal digits, TTL and the TTL of the queue entry
/// in us.
fn batch(requests: &[Arc<Request>]) -> String {
    let row = |request: &Arc<Request>| {
        let (name, id) = (rows::hex(bytes(&request.name)), rows::hex(&request.id.to_bytes()));
        format!(r#"["{name}","{id}",{},{}]"#, micros(request.ttl), micros(request.place_ttl()))
    };
    format!("[{}]", requests.iter().map(row).collect::<Vec<_>>().join(","))
}

/// The arguments of `look.sql`.
fn looking(request: &Request) -> SqliteArguments {
    SqliteArguments::default()
        .with(bytes(&request.name))
        .with(id(request))
        .with(request.mode.bit())
        .with(request.mode.conflicts())
        .with(request.wants_position)
}

impl Sqlite {
    pub(super) fn new(config: &Config, connections: Connections, statements: Statements) -> Self {
        let mut capabilities = Capabilities::new(NAME, SHORTEST..=LONGEST);
        capabilities.claims_at_once = CLAIMS;
        if config.durability == Durability::Normal {
            // The last grants may be undone by a power cut.
            capabilities.fencing = Fencing::WhileRunning;
        }
        Self {
            capabilities,
            sweep: tokio::sync::Mutex::default(),
            returning: tokio::sync::Mutex::default(),
            connections,
            statements,
            wakeups: Arc::default(),
            seen: Mutex::default(),
        }
    }

    /// Takes the lock if it is the request's turn.
    async fn take(&self, request: &Request) -> Result<Option<FencingToken>> {
        let arguments = SqliteArguments::default()
            .with(bytes(&request.name))
            .with(id(request))
            .with(request.mode.bit())
            .with(request.mode.conflicts())
            .with(slot(request))
            .with(request.owner.as_str())
            .with(label(request))
            .with(micros(request.ttl));
        let sql = &self.statements.take;
        let inserted = self.changed(Lane::Durable, Operation::Claim, sql, arguments).await?;
        // SQLite counts up from 1, so there is no number that is not a token.
        Ok(inserted.and_then(FencingToken::new))
    }

    /// Joins the queue, or keeps the place in it.
    async fn queue(&self, request: &Request, hub: &Hub) -> Result<Look> {
        // Known before the claim is sent, so that it is found by whoever hands the lock over right after it.
        let ticket = i64::try_from(hub.enter(request)).ok();
        let channel = self.wakeups.channel();
        let arguments = SqliteArguments::default()
            .with(bytes(&request.name))
            .with(id(request))
            .with(request.mode.bit())
            .with(request.mode.conflicts())
            .with(request.wants_position)
            .with(request.owner.as_str())
            .with(label(request))
            .with(micros(request.place_ttl()))
            .with(channel)
            .with(ticket);
        let sql = &self.statements.queue;
        self.rows(Lane::Relaxed, Operation::Claim, sql, arguments, |rows| {
            let look = rows::look(rows)?;
            if let (Look::Behind { .. }, Some(row)) = (&look, rows.first()) {
                // Behind the turnstile still, so no release of this process comes between.
                hub.expect(request, rows::request(row, 2)?);
                if let Some(place) = row.int(4)? {
                    hub.placed(request, place.unsigned_abs());
                }
            }
            Ok(look)
        })
        .await
    }

    /// Looks where a request stands that has a place in the queue, without a write. `None` if that is not enough: it has no place any
    /// more, or one that must be refreshed, or nobody is in its way.
    async fn look_again(&self, request: &Request, hub: &Hub) -> Result<Option<Look>> {
        let sql = &self.statements.look;
        self.rows(Lane::Reading, Operation::Claim, sql, looking(request), |rows| {
            let look = rows::look(rows)?;
            match (&look, rows.first()) {
                (Look::Held(..), _) => Ok(Some(look)),
                (Look::Behind { .. }, Some(row))
                    if row.int(4)?.is_some() && rows::duration(row.int(5)?) > request.place_ttl() / 2 =>
                {
                    // A release of this process may have come between; the next round finds that out.
                    hub.expect(request, rows::request(row, 2)?);
                    Ok(Some(look))
                }
                _ => Ok(None),
            }
        })
        .await
    }

    /// Looks where a request stands that leaves nothing behind.
    async fn look(&self, request: &Request) -> Result<Look> {
        let sql = &self.statements.look;
        self.rows(Lane::Reading, Operation::Claim, sql, looking(request), rows::look).await
    }

    /// Releases or withdraws, in one step with the grants to those whose turn it is then: whether there was an entry.
    async fn hand_over(&self, request: &Request, hub: &Hub) -> Result<bool> {
        let arguments = SqliteArguments::default().with(bytes(&request.name)).with(id(request));
        let sql = &self.statements.hand_over;
        self.rows(Lane::Durable, Operation::Release, sql, arguments, |rows| {
            let HandOver { released, grants } = HandOver::read(rows)?;
            if grants.is_empty() {
                hub.ring(request.id);
            }
            for Granted { waiter, grant } in grants {
                match waiter.channel.as_deref() {
                    Some(channel) if Some(channel) != self.wakeups.channel() => {
                        self.wakeups.wake(channel, waiter.ticket);
                    }
                    _ => hub.grant(waiter.request, waiter.place, grant),
                }
            }
            Ok(released)
        })
        .await
    }

    /// Goes over to what is at the path now, if that is another file than before.
    async fn follow(&self, operation: Operation) -> Result<()> {
        let Self { connections, statements, .. } = self;
        if connections.moved() {
            let _one_at_a_time = self.returning.lock().await;
            if connections.moved() {
                tracing::warn!(file = ?connections.path, "the file was deleted or replaced: its locks are lost");
                connections.leave(operation).await?;
                prepare(connections, statements).await?;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Dialect for Sqlite {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn pace(&self) -> Pace {
        round::pace(self.wakeups.channel().is_some())
    }

    fn wakeups(&self, hub: &Arc<Hub>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (wakeups, hub) = (self.wakeups.clone(), hub.clone());
        Box::pin(async move { wakeups.receive(&hub).await })
    }

    async fn claim(&self, request: &Request, hub: &Arc<Hub>) -> Result<Look> {
        self.follow(Operation::Claim).await?;
        if request.queues
            && hub.is_placed(request.id)
            && let Some(look) = self.look_again(request, hub).await?
        {
            return Ok(look);
        }
        for _ in 0..ROUNDS {
            if let Some(token) = self.take(request).await? {
                return Ok(Look::Held(token, request.ttl));
            }
            let look =
                if request.queues { self.queue(request, hub).await? } else { self.look(request).await? };
            if !matches!(look, Look::Free) || !request.queues {
                return Ok(look);
            }
        }
        Ok(Look::Free)
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<State>> {
        self.follow(Operation::Renew).await?;
        let arguments = SqliteArguments::default().with(batch(requests));
        let sql = &self.statements.keep_alive;
        self.rows(Lane::Relaxed, Operation::Renew, sql, arguments, rows::states).await
    }

    async fn loss(&self, request: &Request) -> Result<LostReason> {
        self.reason(Lane::Reading, Operation::Renew, &self.statements.notice, request).await
    }

    async fn release(&self, request: &Request, hub: &Hub) -> Result<Release> {
        let arguments = || SqliteArguments::default().with(bytes(&request.name)).with(id(request));
        if !hub.is_watched(request.id) {
            // The hand-over, which must be on the disk, comes after the release, which need not be.
            let sql = &self.statements.release;
            let is_awaited = self.rows(Lane::Relaxed, Operation::Release, sql, arguments(), |rows| {
                rows.first().map_or(Ok(None), |row| row.int(0))
            });
            if let Some(is_awaited) = is_awaited.await? {
                hub.ring(request.id);
                // If it fails, the waiters find out themselves that it is their turn.
                if is_awaited != 0
                    && let Err(error) = self.hand_over(request, hub).await
                {
                    tracing::debug!(error = &error as &dyn std::error::Error, "not handed over");
                }
                return Ok(Release::Released);
            }
            let sql = &self.statements.withdraw;
            if self.changed(Lane::Relaxed, Operation::Release, sql, arguments()).await?.is_some() {
                hub.ring(request.id);
                return Ok(Release::Released);
            }
        }
        // With a waiter of this process behind it, in one step; and when both tables had no entry of it one after the other, because
        // another release may have granted it the lock in between.
        if self.hand_over(request, hub).await? {
            return Ok(Release::Released);
        }
        hub.ring(request.id);
        let sql = &self.statements.forget;
        Ok(Release::Lost(self.reason(Lane::Relaxed, Operation::Release, sql, request).await?))
    }

    async fn round(&self, hub: &Arc<Hub>, news: bool) -> Result<Round> {
        self.look_around(hub, news).await
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

    async fn break_lock(&self, name: &LockName, order: &BreakOrder, hub: &Hub) -> Result<Vec<Entry>> {
        let arguments = SqliteArguments::default().with(bytes(name)).with(engine::notice(order));
        let sql = if order.force { &self.statements.break_lock } else { &self.statements.mark };
        let broken = self.rows(Lane::Relaxed, Operation::Break, sql, arguments, rows::holders).await?;
        if order.force {
            hub.ring_all();
        }
        Ok(broken)
    }

    async fn sweep(&self) -> Result<()> {
        let mut from = self.sweep.lock().await;
        let arguments = SqliteArguments::default().with(from.token).with(from.place).with(SWEEP_ROWS);
        let sql = &self.statements.sweep;
        let ends = self.rows(Lane::Relaxed, Operation::Claim, sql, arguments, |rows| {
            let Some(row) = rows.first() else { return Ok(Sweep::default()) };
            let end = |at: usize| Ok::<_, sqlx::Error>(row.try_get::<Option<i64>, _>(at)?.unwrap_or(0));
            Ok(Sweep { token: end(0)?, place: end(1)? })
        });
        *from = ends.await?;
        Ok(())
    }

    fn alerts(&self) -> Option<&Arc<HoldAlerts>> {
        // There is no push, and holders do not poll.
        None
    }
}

impl Sqlite {
    /// Runs `sql` and gives its rows to `read`, before anyone else of this process can write.
    pub(super) async fn rows<T>(
        &self,
        lane: Lane,
        operation: Operation,
        sql: &SqlStr,
        arguments: SqliteArguments,
        read: impl FnOnce(&[SqliteRow]) -> Result<T, sqlx::Error> + Send,
    ) -> Result<T> {
        let read = |answer: Answer| {
            read(&answer.rows).map_err(|failure| error::driver(operation, &self.connections.path, failure))
        };
        self.connections.run(lane, operation, Sql::Asks(sql), arguments, read).await
    }

    /// Why there is no hold of `request` to extend or to release, from the notice that `sql` answers with, if any.
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

    /// Runs `sql`, which returns no rows: the number of the row that it inserted, if one; anything, if it changed one.
    async fn changed(
        &self,
        lane: Lane,
        operation: Operation,
        sql: &SqlStr,
        arguments: SqliteArguments,
    ) -> Result<Option<i64>> {
        let read = |answer: Answer| Ok(answer.changed);
        self.connections.run(lane, operation, Sql::Changes(sql), arguments, read).await
    }
}
