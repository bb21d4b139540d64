//! The requests of this store, and the state of each: creating its node, waiting, holding, or deleting its node.
//!
//! The recipe is ZooKeeper's own for [locks], with what it leaves out:
//!
//! 1. A node with a number is made in the lock's directory, and the directory listed right behind it, in one round trip.
//!    The node belongs to the session and goes with it.
//! 2. Whoever has no conflicting node before it holds the lock. Its token is the number of the transaction that made it.
//! 3. Everybody else waits for the last conflicting node before it: for one of another session with a watch, for one of this session
//!    without any request to the servers, and without a list; see [`directory`](crate::directory). One release wakes one waiter.
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
use polylock_core::{Clock, LostReason, Moment, Release, Request, RequestId, SystemClock};
use zookeeper_client::{Error as Failure, EventType};

use crate::{
    directory::Predecessor,
    making::{Making, Node},
    nodes::Child,
    session::none_if_missing,
};

/// How often requests are looked after, at the most and at the least.
const LOOK: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// All requests of this store.
#[derive(Default)]
pub(crate) struct Claims {
    slots: Mutex<HashMap<RequestId, Arc<Slot>>>,
    /// There is something to look after, or there will be nothing any more.
    some: tokio::sync::Notify,
    closed: AtomicBool,
    /// Until when those who wait are worth something to the process, in nanoseconds.
    waiters_until: AtomicU64,
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
    /// It has a node, and waits for this other one to go if that is known.
    Waiting(Arc<Node>, Option<Predecessor>),
    /// It holds the lock.
    Holding(Arc<Node>),
    /// Its node is being deleted. That goes on by itself.
    Leaving(Leaving),
}

/// Ready when a node is gone, with the outcome of the release.
pub(crate) type Leaving = Shared<BoxFuture<'static, Release>>;

/// A watch on the node of another request: ready when something has happened to it, and whether it is gone.
struct Watch {
    node: String,
    fired: BoxFuture<'static, Result<bool, Failure>>,
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

    /// The process is alive, and so are all its waiters.
    pub(crate) fn keep_waiters(&self) {
        let until = SystemClock.now() + Request::MAX_PLACE_TTL;
        self.waiters_until.fetch_max(until.as_nanos(), Ordering::Relaxed);
    }

    /// Takes away, for ever, what nobody is interested in any more: the session would keep it alive.
    ///
    /// A holder that does not release its lock, by its own will or because it hangs, is as good as dead when its lease has
    /// run out, and so are all waiters if none is kept alive. That also ends a hold that was marked as broken, whose lease is not
    /// extended any more, and whose holder does not stop.
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
        let waiters = Moment::from_nanos(self.waiters_until.load(Ordering::Relaxed));
        let until = |slot: &Slot| if slot.holds() { slot.until() } else { slot.until().max(waiters) };
        for slot in slots.values().filter(|slot| until(slot) <= now) {
            slot.expire();
        }
        slots.values().map(|slot| until(slot)).min()
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

    /// The same, unless its node is being deleted. Returns whether it is not.
    pub(crate) fn stays_as(&self, stage: Stage) -> bool {
        let mut now = self.stage();
        let stays = !matches!(*now, Stage::Leaving(_));
        if stays {
            *now = stage;
        }
        stays
    }

    /// The request that its last claim has found in its way.
    pub(crate) fn waits_for(&self) -> Option<Predecessor> {
        match &*self.stage() {
            Stage::Waiting(_, before) => before.clone(),
            _ => None,
        }
    }

    fn holds(&self) -> bool {
        matches!(&*self.stage(), Stage::Holding(_))
    }

    fn has_left(&self) -> bool {
        matches!(&*self.stage(), Stage::Leaving(gone) if gone.peek().is_some())
    }

    /// Until when it is worth something, if nothing is heard of it before.
    pub(crate) fn until(&self) -> Moment {
        Moment::from_nanos(self.until.load(Ordering::Relaxed))
    }

    /// It holds the lock for this time from now on, whatever time its place in the queue had left.
    pub(crate) fn granted(&self, lease: Duration) {
        let until = SystemClock.now() + lease;
        self.until.store(until.as_nanos(), Ordering::Relaxed);
    }

    /// Somebody is interested in it for this time from now on, at the least.
    pub(crate) fn lasts(&self, time: Duration) {
        let until = SystemClock.now() + time;
        self.until.fetch_max(until.as_nanos(), Ordering::Relaxed);
    }

    /// Waits until something has happened to the node of `other`, of the same lock as `node`.
    pub(crate) async fn watched(&self, node: &Node, other: &Child) -> Result<(), Failure> {
        let mut watch = self.watch.lock().await;
        let path = node.path_of(&other.name);
        if watch.as_ref().is_none_or(|watch| watch.node != path) {
            let (session, watched) = (node.session.clone(), path.clone());
            // Reads the data: of a node that is gone this leaves no watch behind, as a check for its existence would.
            let fired = async move {
                let read = session.client.get_and_watch_data(&watched).await;
                let Some((_, _, watcher)) = none_if_missing(read)? else { return Ok(true) };
                // A break changes the data, and the holder is still there.
                Ok(watcher.changed().await.event_type == EventType::NodeDeleted)
            };
            *watch = Some(Watch { node: path, fired: fired.boxed() });
        }
        let Some(current) = watch.as_mut() else { return Ok(()) };
        let fired = (&mut current.fired).await;
        *watch = None;
        if fired? {
            node.directory.remove(other.rank());
        }
        Ok(())
    }

    /// Starts to remove whatever the request has, and returns the outcome of that; `None` if it has nothing.
    pub(crate) fn leave(&self) -> Option<Leaving> {
        self.remove(|outcome| outcome)
    }

    /// The same for a request whose lease has run out: a release finds its hold ended.
    pub(crate) fn expire(&self) {
        self.remove(|_| Release::Lost(LostReason::Gone));
    }

    fn remove(&self, outcome: fn(Release) -> Release) -> Option<Leaving> {
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
            match node.await {
                Some(node) => outcome(node.delete().await),
                None => Release::Lost(LostReason::Gone),
            }
        });
        // A task that was cut off may have deleted it.
        let gone = leaving.map(|outcome| outcome.unwrap_or(Release::Released)).boxed().shared();
        *stage = Stage::Leaving(gone.clone());
        Some(gone)
    }
}
