//! A connection with a transaction on it that holds a lock, or is among those who want it.

use std::{fmt, sync::Arc, time::Duration};

use polylock_core::{Clock, LockName, Mode, Operation, Request, Result, SystemClock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::host::{Fact, Host, Identity, Link};
use crate::engine::{
    bytes,
    literal::{Arg, Template},
    pool::Trouble,
};

/// How long an attempt waits while all connections are in use: some may just be on their way back.
const MOMENT: Duration = Duration::from_millis(250);

/// A transaction that is open. Dropped, its connection is closed, and the server ends it.
pub(super) struct Session {
    host: Arc<dyn Host>,
    link: Box<dyn Link>,
    identity: Identity,
    _permit: OwnedSemaphorePermit,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// What an attempt to take a lock has come to.
pub(super) enum Entered {
    /// It holds the lock.
    Holds(Session),
    /// Another does; it is among the users of the name, so that its rows stay.
    Waits(Session),
}

/// The connections that may be pinned by locks.
#[derive(Debug)]
pub(super) struct Places {
    free: Arc<Semaphore>,
    count: u32,
}

impl Places {
    pub(super) fn new(count: u32) -> Self {
        let places = usize::try_from(count).unwrap_or(Semaphore::MAX_PERMITS);
        Self { free: Arc::new(Semaphore::new(places)), count }
    }

    async fn one(&self, host: &dyn Host) -> Result<OwnedSemaphorePermit> {
        match SystemClock.before(SystemClock.now() + MOMENT, self.free.clone().acquire_owned()).await {
            Some(Ok(permit)) => Ok(permit),
            Some(Err(_)) | None => {
                let advice = format!(
                    "all {} connections of this store hold locks or wait for some: raise polylock.connections",
                    self.count
                );
                Err(host.busy(Operation::Claim, advice))
            }
        }
    }
}

/// Milliseconds, rounded up: the server may keep a lock longer than was asked for, never shorter.
fn millis(time: Duration) -> Arg<'static> {
    Arg::Int(i64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX))
}

fn named(name: &LockName) -> Arg<'_> {
    Arg::Bytes(bytes(name))
}

impl Session {
    /// Opens a transaction and tries the lock.
    pub(super) async fn enter(host: &Arc<dyn Host>, places: &Places, request: &Request) -> Result<Entered> {
        let operation = Operation::Claim;
        let deadline = SystemClock.now() + host.patience();
        let permit = places.one(&**host).await?;
        // Its next message comes within the time of two operations. A claim that is delivered late, to a server that does not
        // notice that the client is gone, keeps the lock no longer than that.
        let silence = request.ttl.min(host.patience() * 2);
        let [first, second] = Identity::random().arguments();
        let arguments = [named(&request.name), millis(silence), first, second];
        let text = host.text(host.statements().enter.of(request.mode), &arguments);
        let mut link = host.lend(operation, deadline).await?;
        loop {
            let answer = SystemClock.before(deadline, link.ask(text.clone())).await;
            match answer.ok_or_else(|| host.out_of_time(operation))? {
                Ok(facts) => {
                    if let Some(identity) = facts.iter().find_map(|fact| fact.inside()) {
                        let session = Self { host: host.clone(), link, identity, _permit: permit };
                        let holds = facts.contains(&Fact::Locked);
                        return Ok(if holds { Entered::Holds(session) } else { Entered::Waits(session) });
                    }
                    // Whoever left last has deleted the rows just before they could be used: once more.
                    let rollback = host.text(&host.statements().rollback, &[]);
                    let ended = SystemClock.before(deadline, link.ask(rollback)).await;
                    ended
                        .ok_or_else(|| host.out_of_time(operation))?
                        .map_err(|error| host.failed(operation, error))?;
                }
                // Each broken one leaves the pool, so this comes to an end: a new one is well, or can't be made.
                Err(error) if host.trouble(&error) != Trouble::Other && SystemClock.now() < deadline => {
                    drop(link);
                    link = host.lend(operation, deadline).await?;
                }
                Err(error) => return Err(host.failed(operation, error)),
            }
        }
    }

    pub(super) const fn identity(&self) -> Identity {
        self.identity
    }

    async fn tell(&mut self, template: &Template, arguments: &[Arg<'_>]) -> Result<Vec<Fact>, sqlx::Error> {
        self.link.ask(self.host.text(template, arguments)).await
    }

    /// Waits until it holds the lock; for ever, if need be.
    pub(super) async fn wait(
        &mut self,
        name: &LockName,
        mode: Mode,
        limit: Duration,
    ) -> Result<(), sqlx::Error> {
        let host = self.host.clone();
        let (wait, wait_on) = (host.statements().wait.of(mode), host.statements().wait_on.of(mode));
        let arguments = [named(name), millis(limit)];
        let mut answer = self.tell(wait, &arguments).await;
        while answer.as_ref().is_err_and(|error| host.is_locked(error)) {
            answer = self.tell(wait_on, &arguments).await;
        }
        if answer?.contains(&Fact::Locked) {
            return Ok(());
        }
        Err(sqlx::Error::Protocol("the row is gone though it was in use".into()))
    }

    /// Makes sure that the transaction is still the one that was opened, which from now on may be silent for the lease. Returns
    /// whether the hold is marked as broken.
    pub(super) async fn confirm(&mut self, request: &Request) -> Result<bool, sqlx::Error> {
        let host = self.host.clone();
        let ([first, second], id) = (self.identity.arguments(), request.id.to_bytes());
        let arguments = [millis(request.ttl), first, second, named(&request.name), Arg::Bytes(&id)];
        let facts = self.tell(&host.statements().confirm, &arguments).await?;
        if facts.contains(&Fact::Inside(self.identity)) {
            return Ok(facts.contains(&Fact::Broken));
        }
        Err(sqlx::Error::Protocol("the connection is in another transaction".into()))
    }

    /// From now on it may be silent for `limit`.
    pub(super) async fn limit(&mut self, limit: Duration) -> Result<(), sqlx::Error> {
        let host = self.host.clone();
        // Not for 0 ms, which means for ever.
        let limit = limit.max(Duration::from_millis(1));
        self.tell(&host.statements().limit, &[millis(limit)]).await.map(drop)
    }

    /// Ends the transaction and leaves nothing; the connection is for others.
    pub(super) async fn leave(mut self, request: &Request) -> Result<(), sqlx::Error> {
        let host = self.host.clone();
        let id = request.id.to_bytes();
        match self.tell(&host.statements().leave, &[named(&request.name), Arg::Bytes(&id)]).await {
            Ok(_) => {}
            // Others use the rows: they delete them when they leave.
            Err(error) if host.is_locked(&error) => {
                self.tell(&host.statements().commit, &[]).await?;
            }
            Err(error) => return Err(error),
        }
        self.link.give_back();
        Ok(())
    }
}
