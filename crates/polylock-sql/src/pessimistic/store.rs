//! The store: requests and their transactions.

use std::{
    collections::HashMap,
    fmt, mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    Backend, Capabilities, Clock, FencingToken, Grant, LockName, LostReason, Moment, Operation, Place,
    Release, Renewal, Request, RequestId, Result, Standing, SystemClock, Wake,
};
use tokio::sync::Notify;

use super::{
    host::{Fact, Host, Identity},
    session::{Entered, Places, Session},
    waiter::Waiter,
};
use crate::engine::{SWEEP_EVERY, SWEEP_ROWS, bytes, literal::Arg};

/// How long the server may take to tell a waiter that it has been given a lock that is free.
const GRANTED: Duration = Duration::from_millis(100);
/// How long a release waits for a renewal that is under way.
const MOMENT: Duration = Duration::from_millis(250);

/// The locks of one database, as row locks of open transactions.
pub(crate) struct Pessimistic {
    capabilities: Capabilities,
    host: Arc<dyn Host>,
    places: Places,
    requests: Mutex<HashMap<RequestId, Arc<Slot>>>,
    claims: AtomicU32,
}

/// One request. Core has one operation on it at a time, but for renewals that hang.
#[derive(Default)]
struct Slot {
    stage: tokio::sync::Mutex<Stage>,
    /// Whoever is at the stage is to leave it.
    cut: Notify,
}

/// Where a request stands.
#[derive(Default)]
enum Stage {
    /// Outside, with no transaction.
    #[default]
    Out,
    /// A task waits for the lock.
    Waiting(Waiter),
    /// It holds the lock and has no token yet.
    Locked(Session),
    /// It holds the lock.
    Held(Session, FencingToken),
    /// Its connection is closed or broken on this side. Whether it is so on the server's side shows there, or at this
    /// moment at the latest, when the server has not heard of it for its whole lease.
    Adrift(Identity, Moment),
}

impl fmt::Debug for Pessimistic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let requests = self.requests().len();
        f.debug_struct("Pessimistic").field("host", &self.host).field("requests", &requests).finish()
    }
}

impl Pessimistic {
    pub(crate) fn new(capabilities: Capabilities, host: Arc<dyn Host>, connections: u32) -> Self {
        let (places, claims) = (Places::new(connections), AtomicU32::new(0));
        Self { capabilities, host, places, requests: Mutex::default(), claims }
    }

    fn requests(&self) -> MutexGuard<'_, HashMap<RequestId, Arc<Slot>>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, id: RequestId) -> Option<Arc<Slot>> {
        self.requests().get(&id).cloned()
    }

    /// Deletes rows that nobody uses: those of holders that died.
    pub(crate) async fn sweep(&self) {
        let arguments = [Arg::Int(SWEEP_ROWS)];
        let swept = self.host.aside(Operation::Claim, &self.host.statements().sweep, &arguments).await;
        if let Err(failure) = swept {
            // It is housekeeping: the next one makes up for it, and the claim is none the worse.
            tracing::debug!(error = %failure, "could not clear unused rows");
        }
        // What nobody has released because the server was away for longer than a lease.
        let now = SystemClock.now();
        self.requests().retain(|_, slot| {
            let stage = slot.stage.try_lock();
            !stage.is_ok_and(|stage| matches!(*stage, Stage::Adrift(_, until) if until <= now))
        });
    }

    /// Deletes the rows of a session that could not do it itself, if that is possible now.
    async fn clear(&self, name: &LockName) {
        let arguments = [Arg::Bytes(bytes(name))];
        let cleared = self.host.aside(Operation::Release, &self.host.statements().clear, &arguments).await;
        if let Err(failure) = cleared {
            tracing::debug!(error = %failure, "could not clear unused rows");
        }
    }

    /// Ends a session of which this side has no connection any more. Returns whether there was one.
    async fn kill(&self, operation: Operation, identity: Identity) -> Result<bool> {
        let killed = self.host.aside(operation, &self.host.statements().kill, &identity.arguments()).await?;
        Ok(!killed.is_empty())
    }

    async fn token(&self, name: &LockName) -> Result<FencingToken> {
        let arguments = [Arg::Bytes(bytes(name))];
        let drawn = self.host.aside(Operation::Claim, &self.host.statements().token, &arguments).await?;
        let token = drawn.iter().find_map(|fact| match fact {
            Fact::Token(token) => FencingToken::new(*token),
            _ => None,
        });
        token.ok_or_else(|| {
            let advice = "the server gave no token".to_owned();
            self.host.busy(Operation::Claim, advice)
        })
    }

    /// Draws a token for a request that holds the lock.
    ///
    /// 1. A draws while it holds the lock; its transaction ends before the number is drawn, because an operator killed it;
    /// 2. B gets the lock and draws a number;
    /// 3. A's draw is carried out: a greater number than B's.
    ///
    /// So a token counts only if the transaction is seen open after it was drawn: then nobody else held the lock while it
    /// was. None if it is not.
    async fn grant(&self, request: &Request, stage: &mut Stage) -> Result<Option<Grant>> {
        let token = self.token(&request.name).await?;
        let Stage::Locked(mut session) = mem::take(stage) else { return Ok(None) };
        if !self.confirmed(&mut session, request, self.host.patience()).await {
            *stage = Stage::Adrift(session.identity(), SystemClock.now() + request.ttl);
            return Ok(None);
        }
        *stage = Stage::Held(session, token);
        Ok(Some(Grant::new(token, request.ttl)))
    }

    /// Whether the transaction is still there; from now on it may be silent for the lease.
    async fn confirmed(&self, session: &mut Session, request: &Request, within: Duration) -> bool {
        let deadline = SystemClock.now() + within;
        let error = match SystemClock.before(deadline, session.confirm(request.ttl)).await {
            Some(Ok(())) => return true,
            Some(Err(error)) => self.host.failed(Operation::Renew, error),
            None => self.host.out_of_time(Operation::Renew),
        };
        tracing::warn!(
            lock.name = %request.name, error = &error as &dyn std::error::Error,
            "the connection that carried a lock is lost",
        );
        false
    }
}

#[async_trait]
impl Backend for Pessimistic {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn claim(&self, request: &Request) -> Result<Standing> {
        if self.claims.fetch_add(1, Ordering::Relaxed) % SWEEP_EVERY == SWEEP_EVERY - 1 {
            self.sweep().await;
        }
        let slot = self.requests().entry(request.id).or_default().clone();
        let mut stage = slot.stage.lock().await;
        loop {
            *stage = match mem::take(&mut *stage) {
                Stage::Out => match Session::enter(&self.host, &self.places, request).await? {
                    Entered::Holds(session) => Stage::Locked(session),
                    Entered::Waits(session) if request.queues => {
                        *stage = Stage::Waiting(Waiter::start(self.host.clone(), session, request));
                        return Ok(queued());
                    }
                    Entered::Waits(session) => {
                        self.end(Operation::Claim, session, request, &mut stage).await?;
                        self.requests().remove(&request.id);
                        return Ok(queued());
                    }
                },
                Stage::Waiting(mut waiter) => {
                    // If it is its turn, the server may be telling so at this very moment.
                    if SystemClock.before(SystemClock.now() + GRANTED, waiter.end()).await.is_none() {
                        *stage = Stage::Waiting(waiter);
                        return Ok(queued());
                    }
                    Stage::Locked(waiter.outcome().await?)
                }
                Stage::Held(mut session, token) => {
                    if self.confirmed(&mut session, request, self.host.patience()).await {
                        *stage = Stage::Held(session, token);
                        return Ok(Standing::Held(Grant::new(token, request.ttl)));
                    }
                    Stage::Adrift(session.identity(), SystemClock.now() + request.ttl)
                }
                Stage::Adrift(identity, until) => {
                    *stage = Stage::Adrift(identity, until);
                    self.kill(Operation::Claim, identity).await?;
                    Stage::Out
                }
                locked @ Stage::Locked(_) => locked,
            };
            if matches!(*stage, Stage::Locked(_))
                && let Some(grant) = self.grant(request, &mut stage).await?
            {
                return Ok(Standing::Held(grant));
            }
        }
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        let Some(slot) = self.find(request.id) else { return Ok(Wake::Stale) };
        let end = match &*slot.stage.lock().await {
            Stage::Waiting(waiter) => waiter.end(),
            _ => return Ok(Wake::Stale),
        };
        end.await;
        Ok(Wake::Stale)
    }

    async fn renew(&self, request: &Request) -> Result<Renewal> {
        let Some(slot) = self.find(request.id) else { return Ok(Renewal::Lost(LostReason::Gone)) };
        let mut stage = slot.stage.lock().await;
        let session = match &mut *stage {
            Stage::Held(session, _) => session,
            Stage::Adrift(..) => return Ok(Renewal::Lost(LostReason::SessionEnded)),
            _ => return Ok(Renewal::Lost(LostReason::Gone)),
        };
        let confirmed = tokio::select! {
            biased;
            () = slot.cut.notified() => false,
            // A server that stands still for a while need not cost the lock: as long as the lease lasts, there is hope.
            confirmed = self.confirmed(session, request, request.ttl) => confirmed,
        };
        if confirmed {
            return Ok(Renewal::Renewed { lease: request.ttl });
        }
        *stage = Stage::Adrift(session.identity(), SystemClock.now() + request.ttl);
        Ok(Renewal::Lost(LostReason::SessionEnded))
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        let gone = Release::Lost(LostReason::Gone);
        let Some(slot) = self.find(request.id) else { return Ok(gone) };
        let mut stage = match SystemClock.before(SystemClock.now() + MOMENT, slot.stage.lock()).await {
            Some(stage) => stage,
            None => {
                slot.cut.notify_one();
                slot.stage.lock().await
            }
        };
        let operation = Operation::Release;
        let ended = match mem::take(&mut *stage) {
            Stage::Out => {
                self.clear(&request.name).await;
                gone
            }
            Stage::Waiting(mut waiter) => {
                let deadline = SystemClock.now() + self.host.patience();
                match SystemClock.before(deadline, waiter.withdraw()).await {
                    Some(Ok(session)) => self.end(operation, session, request, &mut stage).await?,
                    Some(Err(_)) | None => {
                        self.end_adrift(operation, waiter.identity(), request, &mut stage).await?
                    }
                }
            }
            Stage::Locked(session) => self.end(operation, session, request, &mut stage).await?,
            // If the session had ended before, others may have had the lock since: the reply to its end alone would not tell.
            Stage::Held(mut session, _) => {
                if self.confirmed(&mut session, request, self.host.patience()).await {
                    self.end(operation, session, request, &mut stage).await?
                } else {
                    self.end_adrift(operation, session.identity(), request, &mut stage).await?
                }
            }
            Stage::Adrift(identity, _) => self.end_adrift(operation, identity, request, &mut stage).await?,
        };
        self.requests().remove(&request.id);
        Ok(ended)
    }
}

impl Pessimistic {
    /// Ends a session of ours, properly or by force.
    async fn end(
        &self,
        operation: Operation,
        session: Session,
        request: &Request,
        stage: &mut Stage,
    ) -> Result<Release> {
        let (identity, deadline) = (session.identity(), SystemClock.now() + self.host.patience());
        if !matches!(SystemClock.before(deadline, session.leave(&request.name)).await, Some(Ok(()))) {
            // Whether it was still there does not matter: it may have ended as it was asked to.
            self.end_adrift(operation, identity, request, stage).await?;
        }
        Ok(Release::Released)
    }

    /// Ends a session by force, and reports whether it was still there.
    async fn end_adrift(
        &self,
        operation: Operation,
        identity: Identity,
        request: &Request,
        stage: &mut Stage,
    ) -> Result<Release> {
        *stage = Stage::Adrift(identity, SystemClock.now() + request.ttl);
        let was_there = self.kill(operation, identity).await?;
        *stage = Stage::Out;
        self.clear(&request.name).await;
        Ok(if was_there { Release::Released } else { Release::Lost(LostReason::SessionEnded) })
    }
}

/// The waiter's own task tells when it is worth asking again; this is for the case that it dies.
fn queued() -> Standing {
    Standing::Queued(Place::new(None, Place::MAX_RECHECK))
}
