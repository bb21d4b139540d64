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
    Backend, BreakNotice, BreakOrder, Capabilities, Clock, Entry, FencingToken, Grant, Inspect, KeepAlive,
    LockName, LockStatus, LostReason, Moment, Operation, Place, Release, Request, RequestId, Result,
    Standing, SystemClock, Wake,
};
use tokio::sync::Notify;

use super::{
    host::{Host, Identity},
    session::{Entered, Places, Session},
    waiter::Waiter,
};
use crate::engine::{SWEEP_EVERY, SWEEP_ROWS, Which, background::Background, bytes, literal::Arg, notice};

/// How long the server may take to tell a waiter that it has been given a lock that is free.
const GRANTED: Duration = Duration::from_millis(100);
/// How long the server may take to end a session that it was told to end.
const ENDS: Duration = Duration::from_secs(1);
/// How often the rows of such a session are tried to be deleted, and the pause between two tries.
const CLEARINGS: u32 = 4;
const CLEARS: Duration = Duration::from_millis(20);
/// How long a release waits for a renewal that is under way.
const MOMENT: Duration = Duration::from_millis(250);

/// The locks of one database, as row locks of open transactions.
pub(crate) struct Pessimistic {
    capabilities: Capabilities,
    host: Arc<dyn Host>,
    places: Places,
    requests: Mutex<HashMap<RequestId, Arc<Slot>>>,
    claims: AtomicU32,
    sweeping: Background,
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
    Held(Hold),
    /// Its connection is closed or broken on this side. Whether it is so on the server's side shows there, or at this
    /// moment at the latest, when the server has not heard of it for its whole lease.
    Adrift(Identity, Moment),
}

struct Hold {
    session: Session,
    token: FencingToken,
    /// Until when the server keeps it though it is silent, at the earliest.
    until: Moment,
    /// The notice with which it was marked as broken. From then on it is not extended.
    broken: Option<BreakNotice>,
}

impl Hold {
    fn grant(&self) -> Standing {
        Standing::Held(Grant::new(self.token, self.until.since(SystemClock.now())))
    }
}

/// Whether a session that holds a lock is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Confirmed {
    /// It is, and may be silent for its lease from now on.
    Yes,
    /// The same, but the hold is marked as broken.
    Broken,
    No,
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
        Self {
            capabilities,
            host,
            places,
            requests: Mutex::default(),
            claims,
            sweeping: Background::new("could not delete unused rows"),
        }
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
        match swept {
            Ok(_) => self.sweeping.succeeded(),
            // The next sweep makes up for it, and the claim does not depend on it.
            Err(failure) => self.sweeping.failed(&failure),
        }
        // What nobody has released because the server was away for longer than a lease.
        let now = SystemClock.now();
        self.requests().retain(|_, slot| {
            let stage = slot.stage.try_lock();
            !stage.is_ok_and(|stage| matches!(*stage, Stage::Adrift(_, until) if until <= now))
        });
    }

    /// Deletes what a session has left that could not do it itself, if that is possible now: while a session that was ended is
    /// still on its way out, and as long as others use the name, its rows are locked.
    async fn clear(&self, request: &Request) {
        let id = request.id.to_bytes();
        let arguments = [Arg::Bytes(bytes(&request.name)), Arg::Bytes(&id)];
        for attempt in 1..=CLEARINGS {
            let cleared =
                self.host.aside(Operation::Release, &self.host.statements().clear, &arguments).await;
            let Err(failure) = cleared else { return };
            tracing::debug!(error = %failure, attempt, "could not clear unused rows");
            SystemClock.sleep_until(SystemClock.now() + CLEARS).await;
        }
    }

    /// Ends a session of which this side has no connection any more. Returns whether there was one.
    async fn kill(&self, operation: Operation, identity: Identity) -> Result<bool> {
        let killed = self.host.aside(operation, &self.host.statements().kill, &identity.arguments()).await?;
        Ok(!killed.is_empty())
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
        let Stage::Locked(session) = &*stage else { return Ok(None) };
        let token = self.host.token(request, session.identity()).await?;
        let Stage::Locked(mut session) = mem::take(stage) else { return Ok(None) };
        let until = SystemClock.now() + request.ttl;
        if self.confirmed(&mut session, request, self.host.patience()).await == Confirmed::No {
            *stage = Stage::Adrift(session.identity(), SystemClock.now() + request.ttl);
            return Ok(None);
        }
        // One that is marked already learns of it with its first renewal.
        *stage = Stage::Held(Hold { session, token, until, broken: None });
        Ok(Some(Grant::new(token, request.ttl)))
    }

    /// Extends a hold, unless it was marked as broken; false if its session has ended.
    async fn extend(
        &self,
        operation: Operation,
        hold: &mut Hold,
        request: &Request,
        within: Duration,
    ) -> Result<bool> {
        if hold.broken.is_some() {
            return Ok(true);
        }
        let sent = SystemClock.now();
        match self.confirmed(&mut hold.session, request, within).await {
            Confirmed::Yes => hold.until = sent + request.ttl,
            Confirmed::Broken => {
                // Back to the lease that it had. If this fails the connection is broken, and the lock free.
                let left = hold.until.since(SystemClock.now());
                let deadline = SystemClock.now() + within;
                if !matches!(SystemClock.before(deadline, hold.session.limit(left)).await, Some(Ok(()))) {
                    return Ok(false);
                }
                hold.broken = Some(self.host.notice(operation, request).await?.unwrap_or_default());
            }
            Confirmed::No => return Ok(false),
        }
        Ok(true)
    }

    /// Why the session of `request` has ended: it was broken by force, or nobody knows.
    async fn ended(&self, operation: Operation, request: &Request) -> LostReason {
        match self.host.notice(operation, request).await {
            Ok(Some(notice)) => LostReason::Broken(notice),
            Ok(None) => LostReason::SessionEnded,
            Err(error) => {
                tracing::debug!(%error, "could not look for a break notice");
                LostReason::SessionEnded
            }
        }
    }

    /// Whether the transaction is still there; from now on it may be silent for the lease.
    async fn confirmed(&self, session: &mut Session, request: &Request, within: Duration) -> Confirmed {
        let deadline = SystemClock.now() + within;
        let error = match SystemClock.before(deadline, session.confirm(request)).await {
            Some(Ok(broken)) => return if broken { Confirmed::Broken } else { Confirmed::Yes },
            Some(Err(error)) => self.host.failed(Operation::Renew, error),
            None => self.host.out_of_time(Operation::Renew),
        };
        tracing::warn!(
            lock.name = %request.name, error = &error as &dyn std::error::Error,
            "the connection that carried a lock is lost",
        );
        Confirmed::No
    }

    /// Extends a hold with a statement on its own connection.
    async fn keep_hold_alive(&self, request: &Request) -> Result<KeepAlive> {
        let Some(slot) = self.find(request.id) else { return Ok(KeepAlive::Lost(LostReason::Gone)) };
        let mut stage = slot.stage.lock().await;
        let hold = match &mut *stage {
            Stage::Held(hold) => hold,
            Stage::Adrift(..) => return Ok(KeepAlive::Lost(self.ended(Operation::Renew, request).await)),
            _ => return Ok(KeepAlive::Lost(LostReason::Gone)),
        };
        let extended = tokio::select! {
            biased;
            () = slot.cut.notified() => false,
            // A server that stands still for a while need not cost the lock: as long as the lease lasts, there is hope.
            extended = self.extend(Operation::Renew, hold, request, request.ttl) => extended?,
        };
        if extended {
            return Ok(match &hold.broken {
                None => KeepAlive::Held { lease: request.ttl },
                Some(notice) => KeepAlive::Lost(LostReason::Broken(notice.clone())),
            });
        }
        *stage = Stage::Adrift(hold.session.identity(), SystemClock.now() + request.ttl);
        Ok(KeepAlive::Lost(self.ended(Operation::Renew, request).await))
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
                Stage::Held(hold) => {
                    *stage = Stage::Held(hold);
                    let Stage::Held(hold) = &mut *stage else { continue };
                    if self.extend(Operation::Claim, hold, request, self.host.patience()).await? {
                        return Ok(hold.grant());
                    }
                    Stage::Adrift(hold.session.identity(), SystemClock.now() + request.ttl)
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

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        let [request] = requests else { return Ok(Vec::new()) };
        self.keep_hold_alive(request).await.map(|outcome| vec![outcome])
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
                self.clear(request).await;
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
            Stage::Held(Hold { mut session, .. }) => {
                if self.confirmed(&mut session, request, self.host.patience()).await == Confirmed::No {
                    self.end_adrift(operation, session.identity(), request, &mut stage).await?
                } else {
                    self.end(operation, session, request, &mut stage).await?
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
        if !matches!(SystemClock.before(deadline, session.leave(request)).await, Some(Ok(()))) {
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
        let outcome = if self.kill(operation, identity).await? {
            Release::Released
        } else {
            Release::Lost(self.ended(operation, request).await)
        };
        *stage = Stage::Out;
        self.clear(request).await;
        Ok(outcome)
    }
}

#[async_trait]
impl Inspect for Pessimistic {
    async fn inspect(&self, name: &LockName) -> Result<LockStatus> {
        let (locks, _) = self.host.holds(Operation::Inspect, Which::Named(name)).await?;
        let lock = locks.into_iter().next();
        Ok(lock.unwrap_or_else(|| LockStatus::new(name.clone(), Vec::new(), Vec::new())))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>> {
        self.host.holds(Operation::Inspect, Which::Under(prefix)).await.map(|(locks, _)| locks)
    }

    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        let (operation, which) = (Operation::Break, Which::Named(name));
        self.host.mark(name, &notice(order)).await?;
        let (locks, sessions) = self.host.holds(operation, which).await?;
        if order.force {
            for session in &sessions {
                self.kill(operation, *session).await?;
            }
            // The server ends them in a moment, and frees the lock then.
            let deadline = SystemClock.now() + ENDS;
            while SystemClock.now() < deadline {
                let (_, left) = self.host.holds(operation, which).await?;
                if !sessions.iter().any(|session| left.contains(session)) {
                    break;
                }
                SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(2)).await;
            }
        }
        Ok(locks.into_iter().flat_map(|lock| lock.holders).collect())
    }
}

/// The waiter's own task tells when it is worth asking again; this is for the case that it dies.
fn queued() -> Standing {
    Standing::Queued(Place::new(None, Place::MAX_RECHECK))
}
