//! The requests of this store, and the state of each: creating its node, waiting, holding, or deleting its node.
//!
//! The algorithm is ZooKeeper's recipe for [locks], completed:
//!
//! 1. A client creates a sequential node in the lock's directory, and lists the directory in the same round trip. The node belongs to the
//!    session and is deleted with it.
//! 2. A request holds the lock if no conflicting node precedes its own. Its token is the id of the transaction that created its node.
//! 3. Every other request waits for the last conflicting node ahead of it: with a watch if that belongs to another session; without any
//!    request to the servers, and without a list, if it belongs to this session; see [`directory`](crate::directory). One release wakes
//!    one waiter.
//!
//! [locks]: https://zookeeper.apache.org/doc/current/recipes.html#sc_recipes_Locks

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::{BoxFuture, FutureExt, Shared};
use polylock_core::{
    Clock, Executor, LostReason, Moment, Release, Request, RequestId, SystemClock, sync::lock,
};
use tokio::task::AbortHandle;
use zookeeper_client::{Error as Failure, EventType};

use crate::{
    creation::{Creation, Node},
    directory::Predecessor,
    nodes::Child,
    session::none_if_missing,
};

/// The shortest and the longest interval between two searches for expired requests.
const EXPIRY_CHECKS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// All requests of this store.
#[derive(Default)]
pub(crate) struct Claims {
    slots: Mutex<BTreeMap<RequestId, Arc<Slot>>>,
    /// Notified when the first request is added, and when the store is closed.
    changed: tokio::sync::Notify,
    closed: AtomicBool,
    /// The time until which all waiters are kept, in nanoseconds.
    waiters_until: AtomicU64,
}

/// One request. Core runs one operation on it at a time, except for renewals that hang.
#[derive(Default)]
pub(crate) struct Slot {
    stage: Mutex<Stage>,
    /// The time until which the caller has kept the request alive, in nanoseconds.
    expires_at: AtomicU64,
    /// The watch that wakes it, kept across calls of `wait`.
    watch: tokio::sync::Mutex<Option<Watch>>,
}

/// The state of a request.
#[derive(Clone, Default)]
pub(crate) enum Stage {
    /// The request has no node.
    #[default]
    Idle,
    /// Its node is being created.
    Creating(Creation),
    /// It has a node, and waits until this other request is gone, if that is known.
    Waiting(Arc<Node>, Option<Predecessor>),
    /// It holds the lock.
    Held(Arc<Node>),
    /// Its node is being deleted, in a task of its own.
    Deleting(Deletion, AbortHandle),
}

/// Completes when the node is gone, and returns the outcome of the release.
pub(crate) type Deletion = Shared<BoxFuture<'static, Release>>;

/// A watch on the node of another request. `fired` completes after an event on the node, and returns true if the node is gone.
struct Watch {
    node: String,
    fired: BoxFuture<'static, Result<bool, Failure>>,
}

impl Claims {
    pub(crate) fn find(&self, id: RequestId) -> Option<Arc<Slot>> {
        self.slots().get(&id).cloned()
    }

    /// Returns the slot of `request`, and keeps it alive for the request's time to live in the queue.
    pub(crate) fn enter(&self, request: &Request) -> Arc<Slot> {
        let mut slots = self.slots();
        if slots.is_empty() {
            self.changed.notify_one();
        }
        let slot = slots.entry(request.id).or_default();
        slot.keep_for(request.queue_lease());
        slot.clone()
    }

    pub(crate) fn remove(&self, id: RequestId) {
        self.slots().remove(&id);
    }

    pub(crate) fn len(&self) -> usize {
        self.slots().len()
    }

    /// Keeps all waiters: the process is alive.
    pub(crate) fn keep_waiters(&self) {
        let until = SystemClock.now() + Request::MAX_QUEUE_LEASE;
        self.waiters_until.fetch_max(until.as_nanos(), Ordering::Relaxed);
    }

    /// Removes expired requests until the store is closed: the session would keep their nodes.
    ///
    /// A holder that does not release its lock, deliberately or because it hangs, is treated as dead at the end of its lease; all waiters
    /// are treated as dead if no request is kept alive. That also ends a hold that was marked as broken, if its holder does not stop: its
    /// lease is not extended any more.
    ///
    /// When the store is closed, the remaining holds have been left to expire: the session lives until then. If the program ends before,
    /// the servers end the session after its timeout.
    pub(crate) async fn expire_until_closed(&self) {
        while !self.closed.load(Ordering::Acquire) {
            self.changed.notified().await;
            while let Some(next) = self.expire_due() {
                let now = SystemClock.now();
                SystemClock.sleep_until(next.clamp(now + EXPIRY_CHECKS.0, now + EXPIRY_CHECKS.1)).await;
            }
        }
    }

    /// Removes the requests that have expired, and returns the time at which the next one may expire; `None` if there are no requests.
    fn expire_due(&self) -> Option<Moment> {
        let now = SystemClock.now();
        let mut slots = self.slots();
        slots.retain(|_, slot| !slot.is_deleted());
        let waiters = Moment::from_nanos(self.waiters_until.load(Ordering::Relaxed));
        let until =
            |slot: &Slot| if slot.is_held() { slot.expires_at() } else { slot.expires_at().max(waiters) };
        for slot in slots.values().filter(|slot| until(slot) <= now) {
            slot.expire();
        }
        slots.values().map(|slot| until(slot)).min()
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    fn slots(&self) -> MutexGuard<'_, BTreeMap<RequestId, Arc<Slot>>> {
        lock(&self.slots)
    }
}

impl Slot {
    fn lock_stage(&self) -> MutexGuard<'_, Stage> {
        lock(&self.stage)
    }

    pub(crate) fn stage(&self) -> Stage {
        self.lock_stage().clone()
    }

    pub(crate) fn set_stage(&self, stage: Stage) {
        *self.lock_stage() = stage;
    }

    /// Sets the stage, unless the node is being deleted. Returns true if it was set.
    pub(crate) fn set_unless_deleting(&self, stage: Stage) -> bool {
        let mut current = self.lock_stage();
        let is_kept = !matches!(*current, Stage::Deleting(..));
        if is_kept {
            *current = stage;
        }
        is_kept
    }

    /// Returns the request that blocked the last claim.
    pub(crate) fn predecessor(&self) -> Option<Predecessor> {
        match &*self.lock_stage() {
            Stage::Waiting(_, predecessor) => predecessor.clone(),
            _ => None,
        }
    }

    fn is_held(&self) -> bool {
        matches!(&*self.lock_stage(), Stage::Held(_))
    }

    fn is_deleted(&self) -> bool {
        matches!(&*self.lock_stage(), Stage::Deleting(_, task) if task.is_finished())
    }

    /// The time at which the request expires if it is not kept alive before.
    pub(crate) fn expires_at(&self) -> Moment {
        Moment::from_nanos(self.expires_at.load(Ordering::Relaxed))
    }

    /// Sets the end of the lease, counted from now. It replaces the remaining time of the queue entry.
    pub(crate) fn set_lease(&self, lease: Duration) {
        let until = SystemClock.now() + lease;
        self.expires_at.store(until.as_nanos(), Ordering::Relaxed);
    }

    /// Keeps the request alive for at least this time from now.
    pub(crate) fn keep_for(&self, time: Duration) {
        let until = SystemClock.now() + time;
        self.expires_at.fetch_max(until.as_nanos(), Ordering::Relaxed);
    }

    /// Waits for an event on the node of `other`, a request of the same lock as `node`.
    pub(crate) async fn wait_for_event(&self, node: &Node, other: &Child) -> Result<(), Failure> {
        let mut watch = self.watch.lock().await;
        let path = node.path_of(&other.name);
        if watch.as_ref().is_none_or(|watch| watch.node != path) {
            let (session, watched_path) = (node.session.clone(), path.clone());
            // It reads the data because a read of a missing node leaves no watch behind, while an existence check does.
            let fired = async move {
                let read = session.client.get_and_watch_data(&watched_path).await;
                let Some((_, _, watcher)) = none_if_missing(read)? else { return Ok(true) };
                // A break changes the data while the holder remains.
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

    /// Starts to delete the node of the request, and returns the outcome of the deletion; `None` if there is no node.
    pub(crate) fn delete(&self) -> Option<Deletion> {
        self.start_deletion(|outcome| outcome)
    }

    /// Starts to delete the node of a request whose lease has run out. A later release reports the hold as lost.
    pub(crate) fn expire(&self) {
        self.start_deletion(|_| Release::Lost(LostReason::Gone));
    }

    fn start_deletion(&self, outcome: fn(Release) -> Release) -> Option<Deletion> {
        let mut stage = self.lock_stage();
        let node = match &*stage {
            Stage::Idle => return None,
            Stage::Deleting(deletion, _) => return Some(deletion.clone()),
            Stage::Waiting(node, _) | Stage::Held(node) => {
                let node = node.clone();
                async move { Some(node) }.boxed()
            }
            Stage::Creating(creation) => {
                let creation = creation.clone();
                async move { creation.outcome().await.ok().map(|created| created.node) }.boxed()
            }
        };
        let task = Executor::current().spawn(async move {
            match node.await {
                Some(node) => outcome(node.delete().await),
                None => Release::Lost(LostReason::Gone),
            }
        });
        // Nobody may wait for the outcome, so the task itself shows its end.
        let handle = task.abort_handle();
        // An aborted task may have deleted the node.
        let deletion = task.map(|outcome| outcome.unwrap_or(Release::Released)).boxed().shared();
        *stage = Stage::Deleting(deletion.clone(), handle);
        Some(deletion)
    }
}
