//! The contract of [`polylock_core::backend`], on SQLite.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    Backend, Capabilities, Entry, Fencing, FencingToken, Grant, Inspect, LockName, LockStatus, LostReason,
    Mode, Operation, Place, Renewal, Request, RequestId, Result, Standing, Wake,
};
use sqlx::{Arguments, Encode, Row, SqlStr, Type, sqlite::SqliteArguments};

use super::{
    NAME,
    config::{Config, Durability},
    connection::{Answer, Connections, Lane, Sql},
    error,
    open::prepare,
    poller::Poller,
    rows::{self, Look, micros},
    statements::Statements,
};

/// The lease times it gives: above the clock's step and the deadline's margin by far, and at most a day, for which a
/// holder that died can be waited for.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// How often a claim goes round if the one it waits for leaves between the two steps of a round. Its place in the
/// queue is its own from the first round on, so a second is hardly ever needed.
const ROUNDS: u32 = 3;

/// Every so many claims ...
const SWEEP_EVERY: u32 = 256;
/// ... so many rows of each table are looked over: more than came in meanwhile, so the sweep gets round.
const SWEEP_ROWS: i64 = 1024;

/// A store on one file.
pub(super) struct Sqlite {
    capabilities: Capabilities,
    claims: AtomicU32,
    sweep: tokio::sync::Mutex<Sweep>,
    returning: tokio::sync::Mutex<()>,
    shared: Arc<Shared>,
}

/// What the poller needs of the store.
pub(super) struct Shared {
    pub(super) connections: Connections,
    pub(super) statements: Statements,
    pub(super) poller: Poller,
}

/// Where the sweep goes on.
#[derive(Debug, Default)]
struct Sweep {
    token: i64,
    place: i64,
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite").field("file", &self.shared.connections.path).finish_non_exhaustive()
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

fn bytes(name: &LockName) -> &[u8] {
    name.as_str().as_bytes()
}

fn id(request: &Request) -> Vec<u8> {
    request.id.to_bytes().to_vec()
}

impl Sqlite {
    pub(super) fn new(config: &Config, connections: Connections, statements: Statements) -> Self {
        let mut capabilities = Capabilities::new(NAME, SHORTEST..=LONGEST);
        if config.durability == Durability::Normal {
            // The last grants may be undone by a power cut.
            capabilities.fencing = Fencing::WhileRunning;
        }
        Self {
            capabilities,
            claims: AtomicU32::new(0),
            sweep: tokio::sync::Mutex::default(),
            returning: tokio::sync::Mutex::default(),
            shared: Arc::new(Shared { connections, statements, poller: Poller::default() }),
        }
    }

    /// Takes the lock if it is the request's turn.
    async fn take(&self, request: &Request) -> Result<Option<Grant>> {
        let slot = if request.mode == Mode::Exclusive { Vec::new() } else { id(request) };
        let arguments = SqliteArguments::default()
            .with(bytes(&request.name))
            .with(id(request))
            .with(request.mode.bit())
            .with(request.mode.conflicts())
            .with(slot)
            .with(request.owner.as_str())
            .with(label(request))
            .with(micros(request.ttl));
        let sql = &self.shared.statements.take;
        let inserted = self.shared.changed(Lane::Durable, Operation::Claim, sql, arguments).await?;
        // SQLite counts up from 1, so there is no number that is not a token.
        Ok(inserted.and_then(FencingToken::new).map(|token| Grant::new(token, request.ttl)))
    }

    /// Joins the queue, or keeps the place in it.
    async fn queue(&self, request: &Request) -> Result<Look> {
        let arguments = SqliteArguments::default()
            .with(bytes(&request.name))
            .with(id(request))
            .with(request.mode.bit())
            .with(request.mode.conflicts())
            .with(request.owner.as_str())
            .with(label(request))
            .with(micros(request.place_ttl()));
        let sql = &self.shared.statements.queue;
        self.shared
            .rows(Lane::Relaxed, Operation::Claim, sql, arguments, |rows| {
                let look = rows::look(rows)?;
                if let Look::Behind(watched, ..) = look {
                    // Behind the turnstile still, so no release of this process comes between.
                    self.shared.expect(request, watched);
                }
                Ok(look)
            })
            .await
    }

    /// Looks where a request stands that leaves nothing behind.
    async fn look(&self, request: &Request) -> Result<Look> {
        let arguments = SqliteArguments::default()
            .with(bytes(&request.name))
            .with(id(request))
            .with(request.mode.bit())
            .with(request.mode.conflicts());
        let sql = &self.shared.statements.look;
        self.shared.rows(Lane::Reading, Operation::Claim, sql, arguments, rows::look).await
    }

    /// Goes over to what is at the path now, if that is another file than before.
    async fn follow(&self, operation: Operation) -> Result<()> {
        let Shared { connections, statements, .. } = &*self.shared;
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

    fn held(&self, request: &Request, grant: Grant) -> Standing {
        self.shared.poller.hub.forget(request.id);
        Standing::Held(grant)
    }

    /// Clears the next stretch of the tables of what has expired, if that is possible now.
    pub(super) async fn sweep(&self) {
        if let Err(failure) = self.sweep_stretch().await {
            // It is housekeeping: the next one makes up for it, and the claim is none the worse.
            tracing::debug!(error = %failure, "could not clear expired locks");
        }
    }

    async fn sweep_stretch(&self) -> Result<()> {
        let mut from = self.sweep.lock().await;
        let arguments = SqliteArguments::default().with(from.token).with(from.place).with(SWEEP_ROWS);
        let sql = &self.shared.statements.sweep;
        let ends = self.shared.rows(Lane::Relaxed, Operation::Claim, sql, arguments, |rows| {
            rows.iter().map(|row| row.try_get::<Option<i64>, _>(0)).collect::<Result<Vec<_>, _>>()
        });
        let ends = ends.await?;
        let end = |at: usize| ends.get(at).copied().flatten().unwrap_or(0);
        *from = Sweep { token: end(0), place: end(1) };
        Ok(())
    }
}

fn label(request: &Request) -> &str {
    request.label.as_ref().map_or("", |label| label.as_str())
}

#[async_trait]
impl Backend for Sqlite {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn claim(&self, request: &Request) -> Result<Standing> {
        self.follow(Operation::Claim).await?;
        if self.claims.fetch_add(1, Ordering::Relaxed) % SWEEP_EVERY == SWEEP_EVERY - 1 {
            self.sweep().await;
        }
        for _ in 0..ROUNDS {
            if let Some(grant) = self.take(request).await? {
                return Ok(self.held(request, grant));
            }
            let look = if request.queues { self.queue(request).await? } else { self.look(request).await? };
            match look {
                Look::Held(token, left) => return Ok(self.held(request, Grant::new(token, left))),
                Look::Behind(_, left, ahead) => {
                    // A third of its own time, so that the place is refreshed before it has run out.
                    let recheck = left.min(request.place_ttl() / 3);
                    return Ok(Standing::Queued(Place::new(Some(ahead), recheck)));
                }
                Look::Free if !request.queues => break,
                Look::Free => {}
            }
        }
        Ok(Standing::Queued(Place::new(None, Duration::from_millis(1))))
    }

    async fn wait(&self, request: &Request, _: &Place) -> Result<Wake> {
        self.shared.poller.hub.rung(request.id).await;
        Ok(Wake::Stale)
    }

    async fn renew(&self, request: &Request) -> Result<Renewal> {
        self.follow(Operation::Renew).await?;
        let arguments =
            SqliteArguments::default().with(bytes(&request.name)).with(id(request)).with(micros(request.ttl));
        let sql = &self.shared.statements.renew;
        let renewed = self.shared.changed(Lane::Relaxed, Operation::Renew, sql, arguments).await?;
        Ok(if renewed.is_some() {
            Renewal::Renewed { lease: request.ttl }
        } else {
            Renewal::Lost(LostReason::Gone)
        })
    }

    async fn release(&self, request: &Request) -> Result<()> {
        let (hub, statements) = (&self.shared.poller.hub, &self.shared.statements);
        hub.forget(request.id);
        for sql in [&statements.release, &statements.withdraw] {
            let arguments = SqliteArguments::default().with(bytes(&request.name)).with(id(request));
            if self.shared.changed(Lane::Relaxed, Operation::Release, sql, arguments).await?.is_some() {
                break;
            }
        }
        hub.ring(request.id);
        Ok(())
    }
}

#[async_trait]
impl Inspect for Sqlite {
    async fn inspect(&self, name: &LockName) -> Result<LockStatus> {
        let arguments = SqliteArguments::default().with(bytes(name));
        let sql = &self.shared.statements.inspect;
        let locks = self
            .shared
            .rows(Lane::Reading, Operation::Inspect, sql, arguments, |rows| rows::statuses(rows, 0));
        let lock = locks.await?.into_iter().next();
        Ok(lock.unwrap_or_else(|| LockStatus::new(name.clone(), Vec::new(), Vec::new())))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>> {
        // No UTF-8 has the byte FF, so counting up the last byte gives the end of all that begin with the prefix.
        let mut end = prefix.as_bytes().to_vec();
        match end.last_mut() {
            Some(last) => *last += 1,
            None => end.push(0xff),
        }
        let arguments = SqliteArguments::default().with(prefix.as_bytes()).with(end);
        let sql = &self.shared.statements.list;
        self.shared
            .rows(Lane::Reading, Operation::Inspect, sql, arguments, |rows| rows::statuses(rows, 0))
            .await
    }

    async fn break_lock(&self, name: &LockName) -> Result<Vec<Entry>> {
        let arguments = SqliteArguments::default().with(bytes(name));
        let sql = &self.shared.statements.break_lock;
        let broken = self.shared.rows(Lane::Relaxed, Operation::Break, sql, arguments, |rows| {
            let mut holders = Vec::new();
            for row in rows {
                if row.try_get(1)? {
                    let lock = rows::statuses(std::slice::from_ref(row), 2)?;
                    holders.extend(lock.into_iter().flat_map(|lock| lock.holders));
                }
            }
            Ok((all_requests(rows)?, holders))
        });
        let (left, mut holders) = broken.await?;
        left.into_iter().for_each(|request| self.shared.poller.hub.ring(request));
        holders.sort_by_key(|holder| holder.token);
        Ok(holders)
    }
}

pub(super) fn all_requests(rows: &[sqlx::sqlite::SqliteRow]) -> Result<Vec<RequestId>, sqlx::Error> {
    rows.iter().map(|row| rows::request(row, 0)).collect()
}

impl Shared {
    /// Runs `sql` and gives its rows to `read`, before anyone else of this process can write.
    pub(super) async fn rows<T>(
        &self,
        lane: Lane,
        operation: Operation,
        sql: &SqlStr,
        arguments: SqliteArguments,
        read: impl FnOnce(&[sqlx::sqlite::SqliteRow]) -> Result<T, sqlx::Error> + Send,
    ) -> Result<T> {
        let read = |answer: Answer| {
            read(&answer.rows).map_err(|failure| error::driver(operation, &self.connections.path, failure))
        };
        self.connections.run(lane, operation, Sql::Asks(sql), arguments, read).await
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
