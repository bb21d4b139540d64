//! The store: requests and their transactions.

use std::{
    collections::HashMap,
    fmt, mem,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    Backend, BreakNotice, Capabilities, ClaimOutcome, Clock, FencingToken, Grant, KeepAlive, LostReason,
    Moment, Operation, QueuePosition, Release, Request, RequestId, Result, SystemClock, Wake, sync::lock,
};
use tokio::sync::Notify;

use super::{
    server::{Identity, LockServer, ReplyRow},
    session::{Entered, PinnedConnections, Session},
    waiter::Waiter,
};
use crate::engine::{
    background::Background,
    dialect::{SWEEP_EVERY, SWEEP_ROWS, bytes},
    server::literal::Arg,
};

/// The time that the server may take to notify a waiter that it has been granted a free lock.
const NOTIFICATION_WAIT: Duration = Duration::from_millis(100);
/// The pauses between the attempts to delete the rows of a session that has ended: those of the operation that ends it, and the longer
/// ones after it. A waiter on a dead machine uses the rows for a [`SLICE`](super::SLICE).
const CLEAR_PAUSES: [Duration; 3] = [Duration::from_millis(20); 3];
const LATER_CLEAR_PAUSES: [Duration; 7] = [
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
    Duration::from_millis(1600),
    Duration::from_millis(3200),
    Duration::from_millis(6400),
    Duration::from_millis(12_800),
];
/// The time that a release waits for a renewal in progress.
const RENEWAL_WAIT: Duration = Duration::from_millis(250);

/// The locks of one database, as row locks of open transactions.
pub(super) struct PessimisticBackend {
    capabilities: Capabilities,
    pub(super) server: Arc<dyn LockServer>,
    pinned: PinnedConnections,
    requests: Mutex<HashMap<RequestId, Arc<Slot>>>,
    claims: AtomicU32,
    sweeps: Background,
}

/// The state of one request. Core runs one operation on it at a time, except for renewals that hang.
#[derive(Default)]
struct Slot {
    stage: tokio::sync::Mutex<Stage>,
    /// Interrupts the renewal that has locked the stage.
    cancel: Notify,
    /// True if the rows of the name may appear or remain after the release. A claim, or a copy of it, had no reply, and may insert them later;
    /// or an earlier session of the request, which was killed or lost its connection, may have used them when the last one left.
    may_leave_rows: AtomicBool,
}

/// The stage of a request.
#[derive(Default)]
enum Stage {
    /// The request has no transaction.
    #[default]
    Idle,
    /// A task waits for the lock.
    Waiting(Waiter),
    /// The session holds the lock, but no token was drawn yet.
    Locked(Session),
    /// The session holds the lock and has a token.
    Held(Hold),
    /// The connection is closed or broken on this side. The server notices that, or ends the session at this time at the latest,
    /// after a whole lease of silence.
    Orphaned(Identity, Moment),
}

struct Hold {
    session: Session,
    token: FencingToken,
    /// The earliest time at which the server ends the transaction if it is silent.
    until: Moment,
    /// The notice with which the hold was marked as broken. A marked hold is not extended.
    broken: Option<BreakNotice>,
}

impl Hold {
    fn grant(&self) -> ClaimOutcome {
        ClaimOutcome::Granted(Grant::new(self.token, self.until.since(SystemClock.now())))
    }
}

/// The state of a session that holds a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionState {
    /// The session is alive, and may be silent for its lease from now on.
    Alive,
    /// The session is alive as with `Alive`, but the hold is marked as broken.
    Broken,
    Lost,
}

impl fmt::Debug for PessimisticBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let requests = self.requests().len();
        f.debug_struct("PessimisticBackend")
            .field("server", &self.server)
            .field("requests", &requests)
            .finish()
    }
}

impl PessimisticBackend {
    pub(crate) fn new(capabilities: Capabilities, server: Arc<dyn LockServer>, connections: u32) -> Self {
        let (pinned, claims) = (PinnedConnections::new(connections), AtomicU32::new(0));
        Self {
            capabilities,
            server,
            pinned,
            requests: Mutex::default(),
            claims,
            sweeps: Background::new("could not delete unused rows"),
        }
    }

    fn requests(&self) -> MutexGuard<'_, HashMap<RequestId, Arc<Slot>>> {
        lock(&self.requests)
    }

    fn find(&self, id: RequestId) -> Option<Arc<Slot>> {
        self.requests().get(&id).cloned()
    }

    /// Deletes unused rows: those of holders that died.
    pub(crate) async fn sweep(&self) {
        let arguments = [Arg::Int(SWEEP_ROWS)];
        let swept = self
            .server
            .on_side_connection(Operation::Claim, &self.server.statements().sweep, &arguments)
            .await;
        match swept {
            Ok(_) => self.sweeps.succeeded(),
            // The claim does not depend on it, and the next sweep repeats it.
            Err(failure) => self.sweeps.failed(&failure),
        }
    }

    /// Removes requests that are never released: their holds were left to expire, or the server was down for longer than a lease.
    ///
    /// Each of these holds has a connection, so they are removed as soon as another request may need it. A request that is in use is
    /// locked.
    fn remove_expired(&self) {
        let now = SystemClock.now();
        self.requests().retain(|_, slot| {
            let Ok(stage) = slot.stage.try_lock() else { return true };
            match *stage {
                Stage::Held(Hold { until, .. }) | Stage::Orphaned(_, until) => until > now,
                Stage::Idle | Stage::Waiting(_) | Stage::Locked(_) => true,
            }
        });
    }

    /// Deletes the rows that a session has left. They are locked as long as the server has not finished ending the session, which takes a
    /// while on a busy server, and as long as other sessions use the name. So the last attempts run in the background. A sweep deletes
    /// rows that remain.
    async fn clear(&self, request: &Request) {
        if !clear(&*self.server, request, &CLEAR_PAUSES).await {
            self.clear_later(request, false);
        }
    }

    /// Tries to delete the rows of a request in the background; again and again if they `may_appear` late.
    fn clear_later(&self, request: &Request, may_appear: bool) {
        let (server, request) = (self.server.clone(), request.clone());
        tokio::spawn(async move {
            for pause in LATER_CLEAR_PAUSES {
                SystemClock.sleep_until(SystemClock.now() + pause).await;
                if clear(&*server, &request, &[]).await && !may_appear {
                    break;
                }
            }
        });
    }

    /// Removes a request that has no session any more.
    fn remove(&self, request: &Request, slot: &Slot) {
        self.requests().remove(&request.id);
        if slot.may_leave_rows.load(Ordering::Relaxed) {
            self.clear_later(request, true);
        }
    }

    /// Ends a session that has no connection on this side any more. Returns true if there was one.
    pub(super) async fn kill(&self, operation: Operation, identity: Identity) -> Result<bool> {
        let killed = self
            .server
            .on_side_connection(operation, &self.server.statements().kill, &identity.arguments())
            .await?;
        Ok(!killed.is_empty())
    }

    /// Draws a token for a request that holds the lock.
    ///
    /// 1. A sends its draw while it holds the lock; an operator ends its session before the number is drawn.
    /// 2. B gets the lock and draws a number.
    /// 3. A's draw is carried out: its number is greater than B's.
    ///
    /// So a token is valid only if the transaction is still open after the draw: then no other session held the lock at the time
    /// of the draw. Returns `None` if it is not.
    async fn draw_token(&self, request: &Request, stage: &mut Stage) -> Result<Option<Grant>> {
        let Stage::Locked(session) = &*stage else { return Ok(None) };
        let token = self.server.token(request, session.identity()).await?;
        let Stage::Locked(mut session) = mem::take(stage) else { return Ok(None) };
        let until = SystemClock.now() + request.ttl;
        if self.confirm(&mut session, request, self.server.timeout()).await == SessionState::Lost {
            *stage = Stage::Orphaned(session.identity(), SystemClock.now() + request.ttl);
            return Ok(None);
        }
        // If the hold is marked already, its first renewal finds that.
        *stage = Stage::Held(Hold { session, token, until, broken: None });
        Ok(Some(Grant::new(token, request.ttl)))
    }

    /// Extends a hold, unless it was marked as broken. Returns false if its session has ended.
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
        match self.confirm(&mut hold.session, request, within).await {
            SessionState::Alive => hold.until = sent + request.ttl,
            SessionState::Broken => {
                // Restores the rest of the previous lease. If this fails the connection is broken, and the lock free.
                let left = hold.until.since(SystemClock.now());
                let deadline = SystemClock.now() + within;
                if !matches!(SystemClock.before(deadline, hold.session.limit(left)).await, Some(Ok(()))) {
                    return Ok(false);
                }
                hold.broken = Some(self.server.notice(operation, request).await?.unwrap_or_default());
            }
            SessionState::Lost => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the reason for the end of the session of `request`: it was broken by force, or the reason is unknown.
    async fn loss_reason(&self, operation: Operation, request: &Request) -> LostReason {
        match self.server.notice(operation, request).await {
            Ok(Some(notice)) => LostReason::Broken(notice),
            Ok(None) => LostReason::SessionEnded,
            Err(error) => {
                tracing::debug!(%error, "could not read the break notice");
                LostReason::SessionEnded
            }
        }
    }

    /// Checks if the transaction is still open, and allows it to be silent for the lease from now on.
    async fn confirm(&self, session: &mut Session, request: &Request, within: Duration) -> SessionState {
        let deadline = SystemClock.now() + within;
        let error = match SystemClock.before(deadline, session.confirm(request)).await {
            Some(Ok(broken)) => return if broken { SessionState::Broken } else { SessionState::Alive },
            Some(Err(error)) => self.server.failed(Operation::Renew, error),
            None => self.server.timed_out(Operation::Renew),
        };
        tracing::warn!(
            lock.name = %request.name, error = &error as &dyn std::error::Error,
            "the connection that held a lock is lost",
        );
        SessionState::Lost
    }

    /// Extends a hold with a statement on its own connection.
    async fn keep_hold_alive(&self, request: &Request) -> Result<KeepAlive> {
        let Some(slot) = self.find(request.id) else { return Ok(KeepAlive::Lost(LostReason::Gone)) };
        let mut stage = slot.stage.lock().await;
        let hold = match &mut *stage {
            Stage::Held(hold) => hold,
            Stage::Orphaned(..) => {
                return Ok(KeepAlive::Lost(self.loss_reason(Operation::Renew, request).await));
            }
            _ => return Ok(KeepAlive::Lost(LostReason::Gone)),
        };
        let extended = tokio::select! {
            biased;
            () = slot.cancel.notified() => false,
            // A server that is suspended for a while need not cost the lock: the renewal waits for as long as the lease lasts.
            extended = self.extend(Operation::Renew, hold, request, request.ttl) => extended?,
        };
        if extended {
            return Ok(match &hold.broken {
                None => KeepAlive::Held { lease: request.ttl, terms: None },
                Some(notice) => KeepAlive::Lost(LostReason::Broken(notice.clone())),
            });
        }
        *stage = Stage::Orphaned(hold.session.identity(), SystemClock.now() + request.ttl);
        Ok(KeepAlive::Lost(self.loss_reason(Operation::Renew, request).await))
    }
}

#[async_trait]
impl Backend for PessimisticBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        if self.claims.fetch_add(1, Ordering::Relaxed) % SWEEP_EVERY == SWEEP_EVERY - 1 {
            self.sweep().await;
        }
        let slot = self.requests().entry(request.id).or_default().clone();
        let mut stage = slot.stage.lock().await;
        self.remove_expired();
        loop {
            *stage = match mem::take(&mut *stage) {
                Stage::Idle => {
                    match Session::enter(&self.server, &self.pinned, request, &slot.may_leave_rows).await? {
                        Entered::Locked(session) => Stage::Locked(session),
                        Entered::Blocked(session) if request.queues => {
                            *stage = Stage::Waiting(Waiter::start(self.server.clone(), session, request));
                            return Ok(queued());
                        }
                        Entered::Blocked(session) => {
                            self.end(Operation::Claim, session, request, &mut stage).await?;
                            self.remove(request, &slot);
                            return Ok(queued());
                        }
                    }
                }
                Stage::Waiting(mut waiter) => {
                    // If it is the waiter's turn, the notification of the server may be on its way.
                    if SystemClock.before(SystemClock.now() + NOTIFICATION_WAIT, waiter.end()).await.is_none()
                    {
                        *stage = Stage::Waiting(waiter);
                        return Ok(queued());
                    }
                    let outcome = waiter.outcome().await;
                    slot.may_leave_rows.fetch_or(outcome.is_err(), Ordering::Relaxed);
                    Stage::Locked(outcome?)
                }
                Stage::Held(hold) => {
                    *stage = Stage::Held(hold);
                    let Stage::Held(hold) = &mut *stage else { continue };
                    if self.extend(Operation::Claim, hold, request, self.server.timeout()).await? {
                        return Ok(hold.grant());
                    }
                    Stage::Orphaned(hold.session.identity(), SystemClock.now() + request.ttl)
                }
                Stage::Orphaned(identity, until) => {
                    *stage = Stage::Orphaned(identity, until);
                    slot.may_leave_rows.store(true, Ordering::Relaxed);
                    self.kill(Operation::Claim, identity).await?;
                    Stage::Idle
                }
                locked @ Stage::Locked(_) => locked,
            };
            if matches!(*stage, Stage::Locked(_))
                && let Some(grant) = self.draw_token(request, &mut stage).await?
            {
                return Ok(ClaimOutcome::Granted(grant));
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
        let mut stage = match SystemClock.before(SystemClock.now() + RENEWAL_WAIT, slot.stage.lock()).await {
            Some(stage) => stage,
            None => {
                slot.cancel.notify_one();
                slot.stage.lock().await
            }
        };
        let operation = Operation::Release;
        let ended = match mem::take(&mut *stage) {
            Stage::Idle => {
                self.clear(request).await;
                gone
            }
            Stage::Waiting(mut waiter) => {
                let deadline = SystemClock.now() + self.server.timeout();
                match SystemClock.before(deadline, waiter.withdraw()).await {
                    Some(Ok(session)) => self.end(operation, session, request, &mut stage).await?,
                    Some(Err(_)) | None => {
                        self.end_orphaned(operation, waiter.identity(), request, &mut stage).await?
                    }
                }
            }
            Stage::Locked(session) => self.end(operation, session, request, &mut stage).await?,
            // If the session had ended before, others may have held the lock since: the reply to `leave` alone does not show
            // that.
            Stage::Held(Hold { mut session, .. }) => {
                if self.confirm(&mut session, request, self.server.timeout()).await == SessionState::Lost {
                    self.end_orphaned(operation, session.identity(), request, &mut stage).await?
                } else {
                    self.end(operation, session, request, &mut stage).await?
                }
            }
            Stage::Orphaned(identity, _) => {
                self.end_orphaned(operation, identity, request, &mut stage).await?
            }
        };
        self.remove(request, &slot);
        Ok(ended)
    }

    fn request_records(&self) -> Option<usize> {
        Some(self.requests().len())
    }
}

impl PessimisticBackend {
    /// Ends a session of this store: by a statement on its own connection, or else by force.
    async fn end(
        &self,
        operation: Operation,
        session: Session,
        request: &Request,
        stage: &mut Stage,
    ) -> Result<Release> {
        let (identity, deadline) = (session.identity(), SystemClock.now() + self.server.timeout());
        if !matches!(SystemClock.before(deadline, session.leave(request)).await, Some(Ok(()))) {
            // Either outcome is a success: the session may have ended as requested.
            self.end_orphaned(operation, identity, request, stage).await?;
        }
        Ok(Release::Released)
    }

    /// Ends a session by force, and reports if it still existed.
    async fn end_orphaned(
        &self,
        operation: Operation,
        identity: Identity,
        request: &Request,
        stage: &mut Stage,
    ) -> Result<Release> {
        *stage = Stage::Orphaned(identity, SystemClock.now() + request.ttl);
        let outcome = if self.kill(operation, identity).await? {
            Release::Released
        } else {
            Release::Lost(self.loss_reason(operation, request).await)
        };
        *stage = Stage::Idle;
        self.clear(request).await;
        Ok(outcome)
    }
}

/// Tries to delete the rows of `request`, with these pauses between the attempts. Returns false if they may remain.
async fn clear(server: &dyn LockServer, request: &Request, pauses: &[Duration]) -> bool {
    let id = request.id.to_bytes();
    let arguments = [Arg::Bytes(bytes(&request.name)), Arg::Bytes(&id)];
    let mut pauses = pauses.iter();
    loop {
        let clear = &server.statements().clear;
        match server.on_side_connection(Operation::Release, clear, &arguments).await {
            Ok(rows) if !rows.contains(&ReplyRow::InUse) => return true,
            Ok(_) => {}
            Err(failure) => tracing::debug!(error = %failure, "could not clear unused rows"),
        }
        let Some(pause) = pauses.next() else { return false };
        SystemClock.sleep_until(SystemClock.now() + *pause).await;
    }
}

/// Returns the reply for a waiter. Its task notifies the caller; the recheck covers a task that has died.
fn queued() -> ClaimOutcome {
    ClaimOutcome::Queued(QueuePosition::new(None, QueuePosition::MAX_RECHECK))
}
