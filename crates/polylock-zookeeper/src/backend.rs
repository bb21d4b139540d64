//! The `Backend` implementation: maps core's operations to nodes.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::{FutureExt, future::join_all};
use polylock_core::{
    Backend, Capabilities, ClaimOutcome, Clock, Executor, Grant, KeepAlive, LostReason, Moment, Operation,
    QueuePosition, Release, Request, Result, SystemClock, Wake,
};

use crate::{
    claims::{Claims, Slot, Stage},
    creation::{Created, Creation, Node},
    directory::{Position, Predecessor},
    error::{Cause, Outcome, outcome},
    nodes,
    session::Session,
    sessions::Sessions,
};

/// The retry interval for a lock with a directory that is about to be replaced.
const DIRECTORY_RETRY: Duration = Duration::from_millis(50);

/// The locks of one ensemble.
pub(crate) struct ZooKeeperBackend {
    capabilities: Capabilities,
    pub(crate) sessions: Arc<Sessions>,
    claims: Arc<Claims>,
}

impl fmt::Debug for ZooKeeperBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperBackend").field("sessions", &self.sessions).finish_non_exhaustive()
    }
}

impl Drop for ZooKeeperBackend {
    fn drop(&mut self) {
        self.claims.close();
    }
}

impl ZooKeeperBackend {
    /// Returns the locks of `sessions`, and starts the task that deletes expired requests.
    pub(crate) fn new(capabilities: Capabilities, sessions: Arc<Sessions>) -> Self {
        let claims: Arc<Claims> = Arc::default();
        let expiring = claims.clone();
        Executor::current().spawn(async move { expiring.expire_until_closed().await });
        Self { capabilities, sessions, claims }
    }

    pub(crate) async fn session(&self, operation: Operation) -> Result<Arc<Session>> {
        self.sessions.current().await.map_err(|cause| self.sessions.failed(operation, cause))
    }

    /// Returns the output of `reply`, or a timeout error if it is not ready by `deadline`.
    pub(crate) async fn by_deadline<T, E: Into<Cause>>(
        &self,
        operation: Operation,
        deadline: Moment,
        reply: impl Future<Output = Result<T, E>>,
    ) -> Result<T> {
        let began = SystemClock.now();
        let reply = SystemClock.before(deadline, reply).await.map(|reply| reply.map_err(Into::into));
        reply
            .unwrap_or_else(|| Err(Cause::TimedOut(SystemClock.now().since(began))))
            .map_err(|cause| self.sessions.failed(operation, cause))
    }

    /// Returns true if a conflicting request exists.
    async fn has_conflict(
        &self,
        session: &Arc<Session>,
        request: &Request,
        deadline: Moment,
    ) -> Result<bool> {
        let directory = nodes::directory(&self.sessions.config.root, &request.name);
        let children = self.by_deadline(Operation::Claim, deadline, session.children_now(&directory)).await?;
        let requests = nodes::requests(children);
        session.delete_orphans(&directory, &requests);
        Ok(requests.iter().any(|child| request.mode.conflicts_with(child.mode)))
    }

    /// Deletes the node of a request. The deletion continues in its own task after the deadline.
    async fn withdraw(&self, operation: Operation, slot: &Slot, deadline: Moment) -> Result<Release> {
        let Some(deletion) = slot.delete() else { return Ok(Release::Lost(LostReason::Gone)) };
        let outcome = self.by_deadline(operation, deadline, deletion.map(Ok::<_, Cause>)).await?;
        slot.set_stage(Stage::Idle);
        Ok(outcome)
    }

    /// Returns the node of a request, and true if a list that was sent since the start of the call has shown it. Creates a missing node;
    /// returns `None` for a try that finds a conflicting request.
    async fn node(&self, slot: &mut Arc<Slot>, request: &Request) -> Result<Option<(Arc<Node>, bool)>> {
        let operation = Operation::Claim;
        let mut is_new = false;
        loop {
            let session = self.session(operation).await?;
            let deadline = SystemClock.now() + session.operation_timeout();
            match slot.stage() {
                Stage::Idle => {
                    if !request.queues && self.has_conflict(&session, request, deadline).await? {
                        return Ok(None);
                    }
                    slot.set_stage(Stage::Creating(Creation::start(self.sessions.clone(), session, request)));
                    is_new = true;
                }
                Stage::Creating(creation) => {
                    let Some(created) = SystemClock.before(deadline, creation.outcome()).await else {
                        return Err(self
                            .sessions
                            .failed(operation, Cause::TimedOut(session.operation_timeout())));
                    };
                    let Created { node, is_listed } = match created {
                        Ok(created) => created,
                        Err(cause) => {
                            slot.set_stage(Stage::Idle);
                            return Err(self.sessions.failed(operation, cause));
                        }
                    };
                    if slot.set_unless_deleting(Stage::Waiting(node.clone(), None)) {
                        // The list of an earlier claim does not prove that the session still lives.
                        return Ok(Some((node, is_listed && is_new)));
                    }
                }
                Stage::Waiting(node, _) | Stage::Held(node) => {
                    if !node.session.has_ended() {
                        return Ok(Some((node, false)));
                    }
                    tracing::warn!(lock.name = %request.name, "the session has ended: the request rejoins at the end of the queue");
                    slot.set_stage(Stage::Idle);
                }
                // The request had expired, and was perhaps removed.
                Stage::Deleting(..) => {
                    self.withdraw(operation, slot, deadline).await?;
                    *slot = self.claims.enter(request);
                }
            }
        }
    }

    /// Returns the keep-alive outcome of a request if it is known without a read, else its hold.
    fn look_up_hold(&self, request: &Request) -> HoldLookup {
        let gone = HoldLookup::Known(KeepAlive::Lost(LostReason::Gone));
        let Some(slot) = self.claims.find(request.id) else { return gone };
        match slot.stage() {
            Stage::Deleting(..) => gone,
            Stage::Held(_) if slot.expires_at() <= SystemClock.now() => {
                slot.expire();
                gone
            }
            Stage::Held(node) => HoldLookup::Held(slot, node),
            _ => HoldLookup::Known(KeepAlive::Queued),
        }
    }

    /// Extends these holds, all of `session`, except for the lost ones.
    async fn extend(&self, session: &Session, holds: &[(&Request, &Slot, &Node)]) -> Vec<Result<KeepAlive>> {
        let began = SystemClock.now();
        let deadline = began + session.operation_timeout();
        let nodes: Vec<_> = holds.iter().map(|(_, _, node)| *node).collect();
        let losses = async {
            let paths: Vec<_> = nodes.iter().map(|node| node.path()).collect();
            let ttl = holds.iter().map(|(request, ..)| request.ttl).max().unwrap_or_default();
            let (lease, read) = futures_util::join!(session.lease_from(began, ttl), session.read(&paths));
            let losses = join_all(read.into_iter().zip(&nodes).map(|(read, node)| node.loss(read))).await;
            (lease, losses)
        };
        let failed = |cause: Cause| self.sessions.failed(Operation::Renew, cause);
        let Some((lease, losses)) = SystemClock.before(deadline, losses).await else {
            return nodes.iter().map(|_| Err(failed(Cause::TimedOut(session.operation_timeout())))).collect();
        };
        let extended = losses.into_iter().zip(holds).map(|(loss, (request, slot, _))| match loss {
            Err(error) => Err(failed(error.into())),
            Ok(Some(reason)) => Ok(KeepAlive::Lost(reason)),
            Ok(None) => {
                let lease = lease.clone().map_err(|error| failed(error.into()))?.min(request.ttl);
                slot.keep_for(lease);
                Ok(KeepAlive::Held { lease, terms: None })
            }
        });
        extended.collect()
    }
}

/// The outcome of a keep-alive, or a hold that must be read first.
enum HoldLookup {
    Known(KeepAlive),
    Held(Arc<Slot>, Arc<Node>),
}

#[async_trait]
impl Backend for ZooKeeperBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        let (mut slot, began) = (self.claims.enter(request), SystemClock.now());
        loop {
            let Some((node, is_shown)) = self.node(&mut slot, request).await? else {
                self.claims.remove(request.id);
                return Ok(ClaimOutcome::Queued(QueuePosition::new(None, QueuePosition::MAX_RECHECK)));
            };
            let session = &node.session;
            let deadline = SystemClock.now() + session.operation_timeout();
            let predecessor = slot.predecessor();
            let position = async {
                let position = node.position(predecessor.as_ref(), is_shown, request.wants_position).await?;
                let is_first = matches!(position, Position::First);
                let lease =
                    if is_first { session.lease_from(began, request.ttl).await? } else { Duration::ZERO };
                Ok::<_, zookeeper_client::Error>((position, lease))
            };
            let (position, lease) = match SystemClock.before(deadline, position).await {
                Some(Ok(found)) => found,
                Some(Err(error)) if outcome(&error) == Outcome::Ended => continue,
                Some(Err(error)) => return Err(self.sessions.failed(Operation::Claim, error)),
                None => {
                    return Err(self
                        .sessions
                        .failed(Operation::Claim, Cause::TimedOut(session.operation_timeout())));
                }
            };
            if node.is_beyond_last_sequence() && !matches!(position, Position::Gone) {
                self.withdraw(Operation::Claim, &slot, deadline).await?;
                return Ok(ClaimOutcome::Queued(QueuePosition::new(None, DIRECTORY_RETRY)));
            }
            match position {
                // The node was deleted by another client, or the session has ended and the driver has not reported it yet.
                Position::Gone => slot.set_stage(Stage::Idle),
                Position::First => {
                    slot.set_lease(lease);
                    if slot.set_unless_deleting(Stage::Held(node.clone())) {
                        return Ok(ClaimOutcome::Granted(Grant::new(node.token, lease)));
                    }
                }
                Position::Behind { ahead, .. } if !request.queues => {
                    self.withdraw(Operation::Claim, &slot, deadline).await?;
                    self.claims.remove(request.id);
                    return Ok(ClaimOutcome::Queued(QueuePosition::new(ahead, QueuePosition::MAX_RECHECK)));
                }
                Position::Behind { ahead, last } => {
                    let number = u64::try_from(node.child.sequence).ok();
                    if slot.set_unless_deleting(Stage::Waiting(node, Some(last))) {
                        let position = QueuePosition::new(ahead, QueuePosition::MAX_RECHECK);
                        return Ok(ClaimOutcome::Queued(position.number(number)));
                    }
                }
            }
        }
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        let Some(slot) = self.claims.find(request.id) else { return Ok(Wake::Stale) };
        match slot.stage() {
            Stage::Waiting(_, Some(Predecessor::Own(_, removed))) => drop(removed.await),
            Stage::Waiting(node, Some(Predecessor::Other(other))) => {
                let event = slot.wait_for_event(&node, &other).await;
                event.map_err(|error| self.sessions.failed(Operation::Wait, error))?;
            }
            // Its directory is about to be replaced, and no watch reports that.
            Stage::Idle => SystemClock.sleep_until(SystemClock.now() + DIRECTORY_RETRY).await,
            _ => {}
        }
        Ok(Wake::Stale)
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        self.claims.keep_waiters();
        let lookups: Vec<_> = requests.iter().map(|request| self.look_up_hold(request)).collect();
        let holds = requests.iter().zip(&lookups).filter_map(|(request, lookup)| match lookup {
            HoldLookup::Held(slot, node) => Some((&**request, &**slot, &**node)),
            HoldLookup::Known(_) => None,
        });
        // There is nearly always one session; right after the end of a session, some holds may belong to it and others to the next one.
        let mut sessions: Vec<(&Session, Vec<_>)> = Vec::new();
        for hold in holds {
            let session = &*hold.2.session;
            match sessions.iter_mut().find(|(other, _)| std::ptr::eq(*other, session)) {
                Some((_, holds)) => holds.push(hold),
                None => sessions.push((session, vec![hold])),
            }
        }
        let extended = sessions.iter().map(async |(session, holds)| {
            let outcomes = self.extend(session, holds).await;
            holds.iter().map(|(request, ..)| request.id).zip(outcomes).collect::<Vec<_>>()
        });
        let mut extended: HashMap<_, _> = join_all(extended).await.into_iter().flatten().collect();
        let replies: Vec<Result<KeepAlive>> = requests
            .iter()
            .zip(lookups)
            .map(|(request, lookup)| match lookup {
                HoldLookup::Known(outcome) => Ok(outcome),
                HoldLookup::Held(..) => extended.remove(&request.id).unwrap_or(Ok(KeepAlive::Unknown)),
            })
            .collect();
        if replies.iter().all(Result::is_err) {
            return replies.into_iter().collect();
        }
        Ok(replies.into_iter().map(|reply| reply.unwrap_or(KeepAlive::Unknown)).collect())
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        let Some(slot) = self.claims.find(request.id) else { return Ok(Release::Lost(LostReason::Gone)) };
        let timeout = Session::operation_timeout_of(self.sessions.config.session_timeout);
        let outcome = self.withdraw(Operation::Release, &slot, SystemClock.now() + timeout).await?;
        self.claims.remove(request.id);
        Ok(outcome)
    }

    fn request_records(&self) -> Option<usize> {
        Some(self.claims.len())
    }
}
