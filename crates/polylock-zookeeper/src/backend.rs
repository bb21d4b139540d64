//! The store: what core asks, put to nodes.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::{FutureExt, future::join_all};
use polylock_core::{
    Backend, Capabilities, Carrier, Clock, FirstStep, Grant, KeepAlive, LostReason, Moment, Operation, Place,
    QueueLease, Reach, Release, Request, Result, Standing, Store, SystemClock, Wake, WakeUp,
};

use crate::{
    NAME,
    claims::{Claims, Slot, Stage},
    config::Config,
    directory::{Position, Predecessor},
    error::{Outcome, outcome},
    making::{Made, Making, Node},
    nodes,
    session::{Session, Sessions, Trouble},
};

/// The shortest lease. The longest one is what the session allows.
const SHORTEST: Duration = Duration::from_millis(100);

/// When to ask again for a lock whose directory is about to be renewed.
const RENEWING: Duration = Duration::from_millis(50);

/// Opens the store: a session, and the node below which the locks are.
///
/// # Errors
/// [`polylock_core::Error::Config`] if the configuration makes no sense, [`polylock_core::Error::Unavailable`] if there is no
/// session within [`Config::connect_timeout`], or the user may not use the node.
///
/// # Cancel safety
/// Yes: nothing is left behind.
pub async fn connect(config: Config) -> Result<Store> {
    polylock_core::io::run(NAME, open(config)).await?
}

async fn open(config: Config) -> Result<Store> {
    config.check()?;
    let sessions = Sessions::new(config)?;
    let session = sessions.current().await.map_err(|trouble| sessions.failed(Operation::Connect, trouble))?;
    let deadline = SystemClock.now() + sessions.config.connect_timeout;
    let looked = SystemClock.before(deadline, async {
        session.make_root(&sessions.config).await?;
        // Whoever may not read it is told now, not with the first lock.
        session.client.list_children(&sessions.config.root).await
    });
    let looked = looked.await.unwrap_or(Err(zookeeper_client::Error::Timeout));
    looked.map_err(|error| sessions.failed(Operation::Connect, error))?;
    let mut capabilities = Capabilities::new(NAME, SHORTEST..=session.lease().max(SHORTEST));
    capabilities.reach = Reach::Machines;
    capabilities.wake = WakeUp::Pushed;
    capabilities.carrier = Carrier::Connection;
    capabilities.first_step = FirstStep::Thread;
    capabilities.queue_lease = QueueLease::Shared;
    let claims: Arc<Claims> = Arc::default();
    let looked_after = claims.clone();
    tokio::spawn(async move { looked_after.look_after().await });
    let alerts = sessions.alerts.clone();
    Ok(Store::inspectable(Arc::new(Ensemble { capabilities, sessions, claims })).alerting(alerts))
}

/// The locks of one ensemble.
pub(crate) struct Ensemble {
    capabilities: Capabilities,
    pub(crate) sessions: Arc<Sessions>,
    claims: Arc<Claims>,
}

impl fmt::Debug for Ensemble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeper").field("sessions", &self.sessions).finish_non_exhaustive()
    }
}

impl Drop for Ensemble {
    fn drop(&mut self) {
        self.claims.close();
    }
}

impl Ensemble {
    pub(crate) async fn session(&self, operation: Operation) -> Result<Arc<Session>> {
        self.sessions.current().await.map_err(|trouble| self.sessions.failed(operation, trouble))
    }

    /// What `answer` is, if it is there by `deadline`.
    pub(crate) async fn answer<T, E: Into<Trouble>>(
        &self,
        operation: Operation,
        deadline: Moment,
        answer: impl Future<Output = Result<T, E>>,
    ) -> Result<T> {
        let began = SystemClock.now();
        let answer = SystemClock.before(deadline, answer).await.map(|answer| answer.map_err(Into::into));
        answer
            .unwrap_or_else(|| Err(Trouble::Silent(SystemClock.now().since(began))))
            .map_err(|trouble| self.sessions.failed(operation, trouble))
    }

    /// Whether somebody is in the way of a request that would be the last.
    async fn is_taken(&self, session: &Arc<Session>, request: &Request, deadline: Moment) -> Result<bool> {
        let directory = nodes::directory(&self.sessions.config.root, &request.name);
        let children = self.answer(Operation::Claim, deadline, session.children_now(&directory)).await?;
        let requests = nodes::requests(children);
        session.delete_orphans(&directory, &requests);
        Ok(requests.iter().any(|child| request.mode.conflicts_with(child.mode)))
    }

    /// Deletes the node of a request. If that lasts longer, it goes on by itself.
    async fn withdraw(&self, operation: Operation, slot: &Slot, deadline: Moment) -> Result<Release> {
        let Some(gone) = slot.leave() else { return Ok(Release::Lost(LostReason::Gone)) };
        let outcome = self.answer(operation, deadline, gone.map(Ok::<_, Trouble>)).await?;
        slot.goes_to(Stage::Out);
        Ok(outcome)
    }

    /// The node of a request, made if there is none, and whether a list that was sent since has shown it.
    async fn node(&self, slot: &Slot, request: &Request) -> Result<Option<(Arc<Node>, bool)>> {
        let operation = Operation::Claim;
        let mut began = false;
        loop {
            let session = self.session(operation).await?;
            let deadline = SystemClock.now() + session.patience();
            match slot.at() {
                Stage::Out => {
                    if !request.queues && self.is_taken(&session, request, deadline).await? {
                        return Ok(None);
                    }
                    slot.goes_to(Stage::Making(Making::begin(self.sessions.clone(), session, request)));
                    began = true;
                }
                Stage::Making(making) => {
                    let Some(made) = SystemClock.before(deadline, making.end()).await else {
                        return Err(self.sessions.failed(operation, Trouble::Silent(session.patience())));
                    };
                    let Made { node, is_listed } = match made {
                        Ok(made) => made,
                        Err(trouble) => {
                            slot.goes_to(Stage::Out);
                            return Err(self.sessions.failed(operation, trouble));
                        }
                    };
                    if slot.stays_as(Stage::Waiting(node.clone(), None)) {
                        // The list of an earlier claim says nothing about the session now.
                        return Ok(Some((node, is_listed && began)));
                    }
                }
                Stage::Waiting(node, _) | Stage::Holding(node) => {
                    if !node.session.is_over() {
                        return Ok(Some((node, false)));
                    }
                    tracing::warn!(lock.name = %request.name, "the session has ended, and with it a place in the queue");
                    slot.goes_to(Stage::Out);
                }
                // It was given up for abandoned.
                Stage::Leaving(_) => {
                    self.withdraw(operation, slot, deadline).await?;
                }
            }
        }
    }

    /// The outcome of a keep-alive for a request, or the hold that is to be read first.
    fn kept(&self, request: &Request) -> Kept {
        let gone = Kept::Known(KeepAlive::Lost(LostReason::Gone));
        let Some(slot) = self.claims.find(request.id) else { return gone };
        match slot.at() {
            Stage::Leaving(_) => gone,
            Stage::Holding(_) if slot.until() <= SystemClock.now() => {
                slot.expire();
                gone
            }
            Stage::Holding(node) => Kept::Hold(slot, node),
            _ => Kept::Known(KeepAlive::Queued),
        }
    }

    /// Extends those of these holds that are not lost. All are in `session`.
    async fn extend(&self, session: &Session, holds: &[(&Request, &Slot, &Node)]) -> Vec<Result<KeepAlive>> {
        let deadline = SystemClock.now() + session.patience();
        let nodes: Vec<_> = holds.iter().map(|(_, _, node)| *node).collect();
        let losses = async {
            let read = session.read(&nodes).await;
            join_all(read.into_iter().zip(&nodes).map(|(read, node)| node.loss(read))).await
        };
        let failed = |trouble: Trouble| self.sessions.failed(Operation::Renew, trouble);
        let Some(losses) = SystemClock.before(deadline, losses).await else {
            return nodes.iter().map(|_| Err(failed(Trouble::Silent(session.patience())))).collect();
        };
        let extended = losses.into_iter().zip(holds).map(|(loss, (request, slot, _))| match loss {
            Err(error) => Err(failed(error.into())),
            Ok(Some(reason)) => Ok(KeepAlive::Lost(reason)),
            Ok(None) => {
                let lease = request.ttl.min(session.lease());
                slot.lasts(lease);
                Ok(KeepAlive::Held { lease })
            }
        });
        extended.collect()
    }
}

/// What is known of a request that is to be kept alive.
enum Kept {
    Known(KeepAlive),
    Hold(Arc<Slot>, Arc<Node>),
}

#[async_trait]
impl Backend for Ensemble {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn claim(&self, request: &Request) -> Result<Standing> {
        let slot = self.claims.enter(request);
        loop {
            let Some((node, is_shown)) = self.node(&slot, request).await? else {
                self.claims.forget(request.id);
                return Ok(Standing::Queued(Place::new(None, Place::MAX_RECHECK)));
            };
            let session = &node.session;
            let deadline = SystemClock.now() + session.patience();
            let before = slot.waits_for();
            let position = node.position(before.as_ref(), is_shown, request.wants_position);
            let position = match SystemClock.before(deadline, position).await {
                Some(Ok(position)) => position,
                Some(Err(error)) if outcome(&error) == Outcome::Ended => continue,
                Some(Err(error)) => return Err(self.sessions.failed(Operation::Claim, error)),
                None => {
                    return Err(self.sessions.failed(Operation::Claim, Trouble::Silent(session.patience())));
                }
            };
            if node.is_used_up() && !matches!(position, Position::Gone) {
                self.withdraw(Operation::Claim, &slot, deadline).await?;
                return Ok(Standing::Queued(Place::new(None, RENEWING)));
            }
            match position {
                // Somebody has deleted it, or its session has ended and that was not told yet.
                Position::Gone => slot.goes_to(Stage::Out),
                Position::First => {
                    let lease = request.ttl.min(session.lease());
                    slot.granted(lease);
                    if slot.stays_as(Stage::Holding(node.clone())) {
                        return Ok(Standing::Held(Grant::new(node.token, lease)));
                    }
                }
                Position::Behind { ahead, .. } if !request.queues => {
                    self.withdraw(Operation::Claim, &slot, deadline).await?;
                    self.claims.forget(request.id);
                    return Ok(Standing::Queued(Place::new(ahead, Place::MAX_RECHECK)));
                }
                Position::Behind { ahead, last } => {
                    if slot.stays_as(Stage::Waiting(node, Some(last))) {
                        return Ok(Standing::Queued(Place::new(ahead, Place::MAX_RECHECK)));
                    }
                }
            }
        }
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        let Some(slot) = self.claims.find(request.id) else { return Ok(Wake::Stale) };
        match slot.at() {
            Stage::Waiting(_, Some(Predecessor::Own(_, mut gone))) => drop(gone.changed().await),
            Stage::Waiting(node, Some(Predecessor::Other(other))) => {
                let watched = slot.watched(&node, &other).await;
                watched.map_err(|error| self.sessions.failed(Operation::Wait, error))?;
            }
            // Its directory is about to be renewed, and no watch can tell when.
            Stage::Out => SystemClock.sleep_until(SystemClock.now() + RENEWING).await,
            _ => {}
        }
        Ok(Wake::Stale)
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        self.claims.keep_waiters();
        let kept: Vec<_> = requests.iter().map(|request| self.kept(request)).collect();
        let holds = requests.iter().zip(&kept).filter_map(|(request, kept)| match kept {
            Kept::Hold(slot, node) => Some((&**request, &**slot, &**node)),
            Kept::Known(_) => None,
        });
        // Nearly always there is one session; when it has just ended, there may be a hold of it beside those of the next one.
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
            .zip(kept)
            .map(|(request, kept)| match kept {
                Kept::Known(outcome) => Ok(outcome),
                Kept::Hold(..) => extended.remove(&request.id).unwrap_or(Ok(KeepAlive::Unknown)),
            })
            .collect();
        if replies.iter().all(Result::is_err) {
            return replies.into_iter().collect();
        }
        Ok(replies.into_iter().map(|reply| reply.unwrap_or(KeepAlive::Unknown)).collect())
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        let Some(slot) = self.claims.find(request.id) else { return Ok(Release::Lost(LostReason::Gone)) };
        let patience = Session::patience_of(self.sessions.config.session_timeout);
        let outcome = self.withdraw(Operation::Release, &slot, SystemClock.now() + patience).await?;
        self.claims.forget(request.id);
        Ok(outcome)
    }
}
