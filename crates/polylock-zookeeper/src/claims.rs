//! Requests and their nodes: how one comes into being, what it is worth, and how it goes.
//!
//! The recipe is ZooKeeper's own for [locks], with what it leaves out:
//!
//! 1. A node with a number is made in the lock's directory, and the directory listed right behind it, in one round trip.
//!    The node belongs to the session and goes with it.
//! 2. Whoever has no conflicting node before it holds the lock. Its token is the number of the transaction that made it.
//! 3. Everybody else watches the last conflicting node before it, and lists again when that has gone: one release wakes one
//!    waiter.
//!
//! [locks]: https://zookeeper.apache.org/doc/current/recipes.html#sc_recipes_Locks

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::{BoxFuture, FutureExt, Shared};
use polylock_core::{Clock, FencingToken, LockName, Mode, Moment, Request, RequestId, SystemClock, queue};
use zookeeper_client::{CreateMode, Error as Failure};

use crate::{
    config::Config,
    error::{Outcome, outcome},
    nodes::{self, Child, Guid, LAST, RENEWED_FROM},
    session::{Session, Sessions, Trouble, cut_off, none_if_missing, pause},
};

/// How often requests are looked after, at the most and at the least.
const LOOK: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// How often a directory that goes away just when it is needed is made again.
const AGAIN: usize = 16;

/// The node of a request.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) session: Arc<Session>,
    pub(crate) directory: String,
    pub(crate) child: Child,
    pub(crate) token: FencingToken,
}

impl Node {
    pub(crate) fn path(&self) -> String {
        format!("{}/{}", self.directory, self.child.name)
    }

    /// What the children of the directory mean for this one.
    pub(crate) fn position(&self, children: Vec<String>) -> Position {
        let requests = nodes::requests(children);
        let Some(at) = requests.iter().position(|child| child.name == self.child.name) else {
            return Position::Gone;
        };
        let (standpoints, mode) = (nodes::standpoints(&requests), self.child.mode);
        let Some(last) = queue::watched(&standpoints, at as u64, mode) else { return Position::First };
        let ahead = u32::try_from(queue::blockers(&standpoints, at as u64, mode).count()).unwrap_or(u32::MAX);
        let last = usize::try_from(last.seq).ok().and_then(|last| requests.get(last));
        last.map_or(Position::Gone, |last| Position::Behind {
            ahead,
            last: format!("{}/{}", self.directory, last.name),
        })
    }

    /// Whether the numbers of its directory are nearly used up, so that nobody may count on their order.
    pub(crate) const fn is_used_up(&self) -> bool {
        self.child.sequence < 0 || self.child.sequence > LAST
    }

    /// Deletes the node, however long that takes; see [`Session::delete`].
    pub(crate) async fn delete(&self) {
        self.session.delete(&self.path()).await;
        self.renew_directory().await;
    }

    /// What follows its deletion: a directory that has counted far is deleted if it is empty, so that it counts anew.
    pub(crate) async fn renew_directory(&self) {
        if self.child.sequence < 0 || self.child.sequence > RENEWED_FROM {
            // Not empty, or gone: the last one who leaves, or nobody, has to.
            self.session.client.delete(&self.directory, None).await.ok();
        }
    }
}

/// Where a node stands among the others of its lock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// It is not there any more.
    Gone,
    /// Nobody is in its way: it holds the lock.
    First,
    /// As many are in its way, of which this is the last.
    Behind { ahead: u32, last: String },
}

/// The making of a node. It goes on by itself, to a definite end, whoever waits for it.
#[derive(Clone)]
pub(crate) struct Making(Shared<BoxFuture<'static, Result<Made, Trouble>>>);

/// A node, and the children of its directory as they were then.
#[derive(Debug, Clone)]
pub(crate) struct Made {
    pub(crate) node: Arc<Node>,
    pub(crate) children: Option<Vec<String>>,
}

impl Making {
    pub(crate) fn begin(sessions: Arc<Sessions>, session: Arc<Session>, request: &Request) -> Self {
        let (name, mode, data) = (request.name.clone(), request.mode, nodes::data(request));
        let made = async move { make(&sessions.config, session, &name, mode, &data).await };
        let task = tokio::spawn(made);
        Self(task.map(|made| made.unwrap_or_else(|cut| Err(cut_off(&cut)))).boxed().shared())
    }

    /// How it ends. An error means that there is no node, and will be none.
    pub(crate) async fn end(&self) -> Result<Made, Trouble> {
        self.0.clone().await
    }
}

async fn make(
    config: &Config,
    session: Arc<Session>,
    name: &LockName,
    mode: Mode,
    data: &[u8],
) -> Result<Made, Trouble> {
    let directory = nodes::directory(&config.root, name);
    let options = CreateMode::EphemeralSequential.with_acls(config.access().acls());
    let container = CreateMode::Container.with_acls(config.access().acls());
    let mut missing = false;
    for _ in 0..AGAIN {
        let guid = Guid::random();
        let prefix = nodes::prefix(&directory, guid, mode);
        // All are sent at once, and the server takes them in this order: whoever deletes empty directories has no time to.
        let above = missing.then(|| session.client.create(&directory, &[], &container));
        let create = session.client.create(&prefix, data, &options);
        let list = session.client.list_children(&directory);
        let above = async {
            match above {
                Some(above) => above.await.map(drop),
                None => Ok(()),
            }
        };
        let (above, created, listed) = futures_util::join!(above, create, list);
        let error = match created {
            Ok((stat, sequence)) => {
                let child = Child {
                    name: format!("{guid}_{}_{sequence}", mode.code()),
                    mode,
                    sequence: sequence.into_i64(),
                };
                return made(session, directory, child, stat.czxid, listed.ok());
            }
            Err(error) => error,
        };
        match outcome(&error) {
            Outcome::Refused if error == Failure::NoNode => {
                missing = true;
                match above {
                    Ok(()) | Err(Failure::NodeExists) => {}
                    Err(Failure::NoNode) => session.make_root(config).await?,
                    Err(error) => return Err(error.into()),
                }
            }
            Outcome::Refused | Outcome::Ended => return Err(error.into()),
            Outcome::Unknown => match find(&session, &directory, guid).await? {
                Some((child, token)) => return made(session, directory, child, token, None),
                None => return Err(error.into()),
            },
        }
    }
    Err(Failure::NoNode.into())
}

fn made(
    session: Arc<Session>,
    directory: String,
    child: Child,
    token: i64,
    children: Option<Vec<String>>,
) -> Result<Made, Trouble> {
    let strange = || {
        let advice = "the server answers with what it never should: a negative transaction";
        Trouble::Ours(polylock_core::Fault::Permanent, advice.to_owned())
    };
    let token = FencingToken::new(token).ok_or_else(strange)?;
    Ok(Made { node: Arc::new(Node { session, directory, child, token }), children })
}

/// Looks for a node whose making was not answered, as often as it takes.
///
/// 1. A sends a create; the server it is connected to dies, or the connection does, before the answer comes.
/// 2. A's session goes on at another server. Had A looked there at once, the create might still be on its way through the
///    first one to the leader, or that server might not have heard of it yet: a ghost that blocks everybody.
/// 3. After a `sync` neither is so: the leader refuses what a session sends through a server that it has left, and this
///    server has caught up.
async fn find(session: &Session, directory: &str, guid: Guid) -> Result<Option<(Child, i64)>, Trouble> {
    loop {
        let error = match look(session, directory, guid).await {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        if outcome(&error) != Outcome::Unknown {
            return Err(error.into());
        }
        pause().await;
    }
}

async fn look(session: &Session, directory: &str, guid: Guid) -> Result<Option<(Child, i64)>, Failure> {
    let children = session.children_now(directory).await?;
    let Some(child) = nodes::requests(children).into_iter().find(|child| child.is_of(guid)) else {
        return Ok(None);
    };
    let stat = session.client.check_stat(&format!("{directory}/{}", child.name)).await?;
    Ok(stat.filter(|stat| session.owns(stat.ephemeral_owner)).map(|stat| (child, stat.czxid)))
}

/// All requests of this store.
#[derive(Default)]
pub(crate) struct Claims {
    slots: Mutex<HashMap<RequestId, Arc<Slot>>>,
    /// There is something to look after, or there will be nothing any more.
    some: tokio::sync::Notify,
    closed: AtomicBool,
}

/// One request. Core has one operation on it at a time, but for renewals that hang.
#[derive(Default)]
pub(crate) struct Slot {
    stage: Mutex<Stage>,
    /// Until when it is worth something to the one who asked for it, in nanoseconds.
    until: AtomicU64,
    /// What wakes it, kept from one look to the next.
    watch: tokio::sync::Mutex<Option<Watch>>,
}

/// Where a request stands.
#[derive(Clone, Default)]
pub(crate) enum Stage {
    /// It has no node.
    #[default]
    Out,
    /// Its node is being made.
    Making(Making),
    /// It waits for this other node to go.
    Waiting(Arc<Node>, String),
    /// It holds the lock.
    Holding(Arc<Node>),
    /// Its node is being deleted. That goes on by itself.
    Leaving(Leaving),
}

/// Ends when a node is gone.
pub(crate) type Leaving = Shared<BoxFuture<'static, ()>>;

/// A watch on the node of another request.
struct Watch {
    node: String,
    gone: BoxFuture<'static, Result<(), Failure>>,
}

impl Claims {
    pub(crate) fn find(&self, id: RequestId) -> Option<Arc<Slot>> {
        self.slots().get(&id).cloned()
    }

    /// The place of `request`, which is worth something for this time from now.
    pub(crate) fn enter(&self, request: &Request) -> Arc<Slot> {
        let mut slots = self.slots();
        if slots.is_empty() {
            self.some.notify_one();
        }
        let slot = slots.entry(request.id).or_default();
        slot.lasts(request.place_ttl());
        slot.clone()
    }

    pub(crate) fn forget(&self, id: RequestId) {
        self.slots().remove(&id);
    }

    /// Takes away, for ever, what nobody is interested in any more: the session would keep it alive.
    ///
    /// A holder that does not release its lock, by its own will or because it hangs, is as good as dead when its lease has
    /// run out, and so is a waiter that does not claim.
    ///
    /// When the store is closed, what is held still has been left to expire: the session lives on until then. If the program
    /// ends before, the servers end the session when they have not heard of it for its time-out.
    pub(crate) async fn look_after(&self) {
        while !self.closed.load(Ordering::Acquire) {
            self.some.notified().await;
            while let Some(next) = self.look() {
                let now = SystemClock.now();
                SystemClock.sleep_until(next.clamp(now + LOOK.0, now + LOOK.1)).await;
            }
        }
    }

    /// Looks once, and says when the next one may be abandoned; `None` if there are no requests.
    fn look(&self) -> Option<Moment> {
        let now = SystemClock.now();
        let mut slots = self.slots();
        slots.retain(|_, slot| !slot.has_left());
        for slot in slots.values().filter(|slot| slot.until() <= now) {
            slot.leave();
        }
        slots.values().map(|slot| slot.until()).min()
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.some.notify_one();
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<RequestId, Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn at(&self) -> Stage {
        self.stage().clone()
    }

    pub(crate) fn goes_to(&self, stage: Stage) {
        *self.stage() = stage;
    }

    fn has_left(&self) -> bool {
        matches!(&*self.stage(), Stage::Leaving(gone) if gone.peek().is_some())
    }

    /// Until when it is worth something, if nothing is heard of it before.
    pub(crate) fn until(&self) -> Moment {
        Moment::from_nanos(self.until.load(Ordering::Relaxed))
    }

    /// Somebody is interested in it for this time from now on, at the least.
    pub(crate) fn lasts(&self, time: Duration) {
        let until = SystemClock.now() + time;
        self.until.fetch_max(until.as_nanos(), Ordering::Relaxed);
    }

    /// Waits until the node is gone.
    pub(crate) async fn watched(&self, session: &Arc<Session>, node: &str) -> Result<(), Failure> {
        let mut watch = self.watch.lock().await;
        if watch.as_ref().is_none_or(|watch| watch.node != node) {
            let (session, path) = (session.clone(), node.to_owned());
            // Reads the data: of a node that is gone this leaves no watch behind, as asking whether it exists would.
            let gone = async move {
                let Some((_, _, watcher)) = none_if_missing(session.client.get_and_watch_data(&path).await)?
                else {
                    return Ok(());
                };
                watcher.changed().await;
                Ok(())
            };
            *watch = Some(Watch { node: node.to_owned(), gone: gone.boxed() });
        }
        let Some(current) = watch.as_mut() else { return Ok(()) };
        let gone = (&mut current.gone).await;
        *watch = None;
        gone
    }

    /// Begins to take away whatever the request has, and says what ends when nothing is left; `None` if there is nothing.
    pub(crate) fn leave(&self) -> Option<Leaving> {
        let mut stage = self.stage();
        let node = match &*stage {
            Stage::Out => return None,
            Stage::Leaving(gone) => return Some(gone.clone()),
            Stage::Waiting(node, _) | Stage::Holding(node) => {
                let node = node.clone();
                async move { Some(node) }.boxed()
            }
            Stage::Making(making) => {
                let making = making.clone();
                async move { making.end().await.ok().map(|made| made.node) }.boxed()
            }
        };
        let leaving = tokio::spawn(async move {
            if let Some(node) = node.await {
                node.delete().await;
            }
        });
        let gone = leaving.map(drop).boxed().shared();
        *stage = Stage::Leaving(gone.clone());
        Some(gone)
    }
}
