//! A connection with a transaction that holds a lock, or is one of its users.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use polylock_core::{Clock, LockName, Mode, Operation, Request, Result, SystemClock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::server::{Connection, Identity, LockServer, ReplyRow};
use crate::engine::{
    dialect::bytes,
    server::{
        driver::ErrorClass,
        literal::{Arg, Template},
    },
};

/// The time that an attempt waits while all connections are in use: one may be about to be returned.
const CONNECTION_WAIT: Duration = Duration::from_millis(250);

/// An open transaction. A drop closes its connection, and the server ends the transaction.
pub(super) struct Session {
    server: Arc<dyn LockServer>,
    connection: Box<dyn Connection>,
    identity: Identity,
    _permit: OwnedSemaphorePermit,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// The outcome of an attempt to take a lock.
pub(super) enum Entered {
    /// The session holds the lock.
    Locked(Session),
    /// Another session holds the lock. This session is one of the users of the name, so the rows of the name stay.
    Blocked(Session),
}

/// The connections that locks may pin.
#[derive(Debug)]
pub(super) struct PinnedConnections {
    free: Arc<Semaphore>,
    count: u32,
}

impl PinnedConnections {
    pub(super) fn new(count: u32) -> Self {
        let pinned = usize::try_from(count).unwrap_or(Semaphore::MAX_PERMITS);
        Self { free: Arc::new(Semaphore::new(pinned)), count }
    }

    async fn acquire(&self, server: &dyn LockServer) -> Result<OwnedSemaphorePermit> {
        match SystemClock.before(SystemClock.now() + CONNECTION_WAIT, self.free.clone().acquire_owned()).await
        {
            Some(Ok(permit)) => Ok(permit),
            Some(Err(_)) | None => {
                let advice = format!(
                    "all {} connections of this store hold locks or wait for locks: raise polylock.connections",
                    self.count
                );
                Err(server.temporary_error(Operation::Claim, advice))
            }
        }
    }
}

/// Returns milliseconds, rounded up: the server may keep a lock longer than requested, never shorter.
fn millis(time: Duration) -> Arg<'static> {
    Arg::Int(i64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX))
}

fn name_argument(name: &LockName) -> Arg<'_> {
    Arg::Bytes(bytes(name))
}

impl Session {
    /// Opens a transaction and tries the lock. Sets `may_leave_rows` from the sending of the claim to its reply, and for good if it was sent
    /// more than once: its first copy may be delivered later, and insert the rows.
    pub(super) async fn enter(
        server: &Arc<dyn LockServer>,
        pinned: &PinnedConnections,
        request: &Request,
        may_leave_rows: &AtomicBool,
    ) -> Result<Entered> {
        let operation = Operation::Claim;
        let deadline = SystemClock.now() + server.timeout();
        let permit = pinned.acquire(&**server).await?;
        // The next message comes within the time limit of two operations. If a claim is delivered late, and the server does not
        // notice that the client is gone, it keeps the lock no longer than that.
        let silence = request.ttl.min(server.timeout() * 2);
        let [first, second] = Identity::random().arguments();
        let arguments = [name_argument(&request.name), millis(silence), first, second];
        let text = server.text(server.statements().enter.for_mode(request.mode), &arguments);
        let mut connection = server.acquire(operation, deadline).await?;
        let mut is_late = may_leave_rows.swap(true, Ordering::Relaxed);
        loop {
            let answer = SystemClock.before(deadline, connection.fetch(text.clone())).await;
            match answer.ok_or_else(|| server.timed_out(operation))? {
                Ok(rows) => {
                    if let Some(identity) = rows.iter().find_map(|row| row.session()) {
                        let session = Self { server: server.clone(), connection, identity, _permit: permit };
                        let holds = rows.contains(&ReplyRow::Locked);
                        may_leave_rows.store(is_late, Ordering::Relaxed);
                        return Ok(if holds { Entered::Locked(session) } else { Entered::Blocked(session) });
                    }
                    // Another session deleted the rows before this one could lock them: retry.
                    let rollback = server.text(&server.statements().rollback, &[]);
                    let ended = SystemClock.before(deadline, connection.fetch(rollback)).await;
                    ended
                        .ok_or_else(|| server.timed_out(operation))?
                        .map_err(|error| server.failed(operation, error))?;
                }
                // Each broken connection leaves the pool, so the loop ends: a new connection works, or can't be opened.
                Err(error)
                    if server.error_class(&error) != ErrorClass::Other && SystemClock.now() < deadline =>
                {
                    drop(connection);
                    is_late = true;
                    connection = server.acquire(operation, deadline).await?;
                }
                Err(error) => return Err(server.failed(operation, error)),
            }
        }
    }

    pub(super) const fn identity(&self) -> Identity {
        self.identity
    }

    async fn send(
        &mut self,
        template: &Template,
        arguments: &[Arg<'_>],
    ) -> Result<Vec<ReplyRow>, sqlx::Error> {
        self.connection.fetch(self.server.text(template, arguments)).await
    }

    /// Waits without a time limit until the session holds the lock.
    pub(super) async fn wait(
        &mut self,
        name: &LockName,
        mode: Mode,
        limit: Duration,
    ) -> Result<(), sqlx::Error> {
        let (server, name) = (self.server.clone(), [name_argument(name)]);
        let statements = server.statements();
        self.send(&statements.wait_limits, &[millis(limit)]).await?;
        let mut answer = self.send(statements.wait.for_mode(mode), &name).await;
        while answer.as_ref().is_err_and(|error| server.is_locked(error)) {
            self.send(&statements.wait_again, &[]).await?;
            answer = self.send(statements.wait.for_mode(mode), &name).await;
        }
        if answer?.contains(&ReplyRow::Locked) {
            return Ok(());
        }
        Err(sqlx::Error::Protocol("the row was deleted although it was in use".into()))
    }

    /// Confirms that the transaction is still the one that was opened, and allows it to be silent for the lease from now on.
    /// Returns true if the hold is marked as broken.
    pub(super) async fn confirm(&mut self, request: &Request) -> Result<bool, sqlx::Error> {
        let server = self.server.clone();
        let ([first, second], id) = (self.identity.arguments(), request.id.to_bytes());
        let arguments = [millis(request.ttl), first, second, name_argument(&request.name), Arg::Bytes(&id)];
        let rows = self.send(&server.statements().confirm, &arguments).await?;
        if rows.contains(&ReplyRow::Session(self.identity)) {
            return Ok(rows.contains(&ReplyRow::Broken));
        }
        Err(sqlx::Error::Protocol("the connection is in another transaction".into()))
    }

    /// Allows the transaction to be silent for `limit` from now on.
    pub(super) async fn limit(&mut self, limit: Duration) -> Result<(), sqlx::Error> {
        let server = self.server.clone();
        // The servers read 0 ms as no limit.
        let limit = limit.max(Duration::from_millis(1));
        self.send(&server.statements().limit, &[millis(limit)]).await.map(drop)
    }

    /// Ends the transaction without leaving rows, and returns the connection to the pool.
    pub(super) async fn leave(mut self, request: &Request) -> Result<(), sqlx::Error> {
        let server = self.server.clone();
        let id = request.id.to_bytes();
        match self.send(&server.statements().leave, &[name_argument(&request.name), Arg::Bytes(&id)]).await {
            Ok(_) => {}
            // Other sessions use the rows: the last one deletes them.
            Err(error) if server.is_locked(&error) => {
                self.send(&server.statements().commit, &[]).await?;
            }
            Err(error) => return Err(error),
        }
        self.connection.return_to_pool();
        Ok(())
    }
}
