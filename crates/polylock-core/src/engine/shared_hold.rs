//! The users' side of a store: its handle, and a hold that belongs to one guard or, reentrantly, to several.
//!
//! Reentrancy is by explicit owner: the owner that holds a lock may enter it again, and the lock is released with its last guard.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::sync::{OwnedMutexGuard, oneshot};

use super::{
    context::StoreContext,
    ended::Ended,
    foreground::Foreground,
    hold::Hold,
    hold_events::GuardEvent,
    hold_limits::HoldLimits,
    keeper::Keeper,
    known_semaphores::KnownSemaphores,
    pending::{AT_EXIT, WorkGuard},
};
use crate::{
    Backend, Error, Grant, Inspect, LockName, Moment, Operation, OwnerId, Request, Result,
    bug::Bug,
    io,
    process::{self, has_bug},
    sync::lock,
    time_limit,
};

/// The handle of the users: the drop of the last `Locks`, `Lock` and `Guard` waits a moment for their releases.
pub(crate) struct StoreHandle {
    pub(crate) context: Arc<StoreContext>,
    pub(crate) keeper: Arc<Keeper>,
    /// The operations that callers drive themselves.
    pub(crate) foreground: Arc<Foreground>,
    pub(crate) reentry: Reentry,
    pub(crate) semaphores: KnownSemaphores,
}

impl fmt::Debug for StoreHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreHandle").field("context", &self.context).finish_non_exhaustive()
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        self.context.pending.wait(AT_EXIT);
    }
}

impl StoreHandle {
    pub(crate) fn new(context: Arc<StoreContext>) -> Self {
        let keeper = Arc::new(Keeper::new(context.clone()));
        if let Some(alerts) = &context.store.alerts {
            let listener = Arc::downgrade(&keeper);
            alerts.listen(move |name| listener.upgrade().map(|keeper| keeper.check(name)).is_some());
        }
        let foreground = Arc::new(Foreground::new(context.clone()));
        Self {
            context,
            keeper,
            foreground,
            reentry: Reentry::default(),
            semaphores: KnownSemaphores::default(),
        }
    }

    /// Runs `call` on the store's interface for inspection.
    pub(crate) async fn inspect<T, F>(
        &self,
        operation: Operation,
        call: impl FnOnce(Arc<dyn Inspect>) -> F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let backend = self.context.backend();
        let Some(inspect) = self.context.store.inspect.clone() else {
            return Err(Error::Unsupported { backend, capability: "inspection" });
        };
        // The operation runs in another task, with the time limit of this one.
        let call = time_limit::until(Moment::NEVER, call(inspect));
        let inspecting = self.foreground.begin(operation, call)?;
        inspecting.await.map_err(|cause| io::failed(backend, operation, cause))?
    }
}

/// A hold, and its guards' reference to the store.
#[derive(Debug)]
pub(crate) struct SharedHold {
    hold: Arc<Hold>,
    handle: Arc<StoreHandle>,
    /// The slot in which reentrant attempts find this hold.
    _slot: Option<Slot>,
    /// The hold itself, until the first of several callers receives it; see [`granted`](super::granted).
    unreceived: Mutex<Option<Arc<Self>>>,
    /// True if an explicit release replaces that of the drop.
    released: bool,
}

impl SharedHold {
    /// Begins the hold of a grant with a claim that was sent at `sent`.
    pub(super) fn begin(
        handle: Arc<StoreHandle>,
        request: Arc<Request>,
        slot: Option<Slot>,
        grant: Grant,
        sent: Moment,
        limits: HoldLimits,
    ) -> Arc<Self> {
        let lease = grant.lease;
        let hold = Arc::new(Hold::new(handle.context.clone(), request, grant, sent, limits));
        handle.keeper.hold(&hold, sent, lease);
        Arc::new(Self { hold, handle, _slot: slot, unreceived: Mutex::default(), released: false })
    }

    /// Keeps the hold without a guard.
    pub(super) fn keep_until_received(self: Arc<Self>) {
        let kept = self.clone();
        *lock(&self.unreceived) = Some(kept);
    }

    /// From now on the hold lasts as long as its guards.
    pub(super) fn end_keeping(&self) {
        // A thread of the parent may have had the mutex at the fork.
        if self.handle.context.is_own_process() {
            let kept = lock(&self.unreceived).take();
            drop(kept);
        }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    pub(super) fn foreground(&self) -> &Arc<Foreground> {
        &self.handle.foreground
    }

    /// Ends the hold by its holder's request; see [`Hold::leave`].
    fn leave(&self) -> Result<Moment, Ended> {
        let until = self.hold.leave()?;
        self.handle.keeper.remove_hold(&self.hold);
        Ok(until)
    }

    pub(super) fn handle(&self) -> &Arc<StoreHandle> {
        &self.handle
    }

    /// From now on, the hold is renewed only by [`renew`](Self::renew).
    pub(crate) fn stop_renewals(&self) {
        self.handle.keeper.stop_renewals(&self.hold);
    }

    /// Renews the hold, and returns the new deadline.
    pub(crate) async fn renew(&self) -> Result<Moment> {
        self.handle.context.ensure_own_process()?;
        let mut events = self.hold.events();
        let lost = |ended: Ended| ended.into_lost(self.hold.name());
        let present = self.hold.check().map_err(lost)?;
        if self.hold.times().is_end(present) {
            return Ok(present);
        }
        self.handle.keeper.renew(&self.hold);
        while let Some(event) = events.next().await {
            if let GuardEvent::Renewed { deadline, .. } = event {
                return Ok(deadline);
            }
        }
        self.hold.check().map_err(lost)
    }

    /// Ends the hold without a release: the lease expires.
    pub(crate) fn leave_to_expire(&self) -> Result<()> {
        self.handle.context.ensure_own_process()?;
        let end = self.hold.deadline();
        if self.hold.kept_until().is_some_and(|kept| end.is_some_and(|end| kept > end)) {
            // The lease would end too early: the drop keeps the lock.
            return Ok(());
        }
        let under_way = self.handle.context.pending.begin();
        let until = match self.leave() {
            Ok(until) => until,
            Err(ended) => return ended.into_result(self.hold.name()),
        };
        let (hold, frees) = (&self.hold, self.handle.context.store.backend.capabilities().frees_dead_holders);
        let keeping = match end.filter(|_| frees) {
            None => {
                hold.left_to_expire();
                return Ok(());
            }
            // Otherwise the lock would be free as soon as this process has ended. Another process may have a longer lease: a renewal keeps it.
            Some(_) if hold.is_known_elsewhere() => {
                hold.clone().renew_last(until, under_way).map(drop).boxed()
            }
            Some(end) => hold.clone().park(until, end, under_way).map(drop).boxed(),
        };
        hold.context.spawn(Operation::Renew, keeping).ok();
        Ok(())
    }

    /// Releases the lock and waits until the store has confirmed it, or for `limit`: then the release continues in the background. It is
    /// delayed until the end of the shortest time of the hold.
    pub(crate) async fn release(self, limit: Option<Duration>) -> Result<()> {
        self.handle.context.ensure_own_process()?;
        let Some(end) = self.hold.kept_until() else { return self.release_now(limit).await };
        let (hold, foreground) = (self.hold.clone(), self.handle.foreground.clone());
        // It continues if the caller drops it.
        let releasing = wait_at_most(hold.clone(), limit, self.release_at(end).boxed());
        let failed = |cause| Err(io::failed(hold.context.backend(), Operation::Release, cause));
        foreground.begin(Operation::Release, releasing)?.await.unwrap_or_else(failed)
    }

    async fn release_now(mut self, limit: Option<Duration>) -> Result<()> {
        let hold = self.hold.clone();
        let context = hold.context.clone();
        let under_way = self.handle.context.pending.begin();
        let releasing = match self.leave() {
            Ok(until) => {
                self.released = true;
                let releasing = Releasing { hold: hold.clone(), until, limit, under_way };
                if let Some(store) = self.handle.foreground.store() {
                    return releasing.release_on_caller(&self.handle.foreground, store).await;
                }
                releasing.until_released(0).boxed()
            }
            Err(ended) if hold.is_kept_after_loss() => {
                self.released = true;
                let refused = ended.into_result(hold.name());
                let released = hold.clone().release_lost(under_way).map(|()| refused);
                wait_at_most(hold.clone(), limit, released.boxed()).boxed()
            }
            Err(ended) => return ended.into_result(hold.name()),
        };
        let releasing = self.handle.foreground.begin(Operation::Release, releasing)?;
        let failed = |cause| Err(io::failed(context.backend(), Operation::Release, cause));
        releasing.await.unwrap_or_else(failed)
    }

    /// Keeps the lock until `end`, or until the end of its shortest time if that is later: by a lease that ends then, as soon as the
    /// store can give it, otherwise by renewals and a release.
    pub(crate) async fn release_at(mut self, end: Moment) -> Result<()> {
        self.handle.context.ensure_own_process()?;
        let hold = self.hold.clone();
        // The end of the thread waits for it, and so does a shutdown.
        let _under_way = self.handle.context.pending.begin();
        let end = hold.kept_until().map_or(end, |kept| end.max(kept));
        let (shortest, longest) = hold.context.parking_times();
        let left = || end.since(hold.context.now());
        if left() > longest {
            self.keep_until(end - longest).await?;
        }
        if left() < shortest {
            self.keep_until(end).await?;
            return self.release_now(None).await;
        }
        self.park(end).await
    }

    /// Ends the hold in this process, and sets its lease to end at `end`.
    async fn park(&mut self, end: Moment) -> Result<()> {
        let hold = self.hold.clone();
        let under_way = self.handle.context.pending.begin();
        let until = match self.leave() {
            Ok(until) => until,
            Err(ended) => return ended.into_result(hold.name()),
        };
        self.released = true;
        let parking =
            self.handle.foreground.begin(Operation::Renew, hold.clone().park(until, end, under_way))?;
        parking.await.unwrap_or_else(|cause| Err(io::failed(hold.context.backend(), Operation::Renew, cause)))
    }

    /// Ends the hold in this process after a last renewal. Returns the lease.
    pub(super) async fn renew_last(&mut self) -> Result<Duration> {
        self.handle.context.ensure_own_process()?;
        let hold = self.hold.clone();
        let under_way = self.handle.context.pending.begin();
        let until = match self.leave() {
            Ok(until) => until,
            Err(ended) => return Err(ended.into_lost(hold.name())),
        };
        self.released = true;
        let renewing =
            self.handle.foreground.begin(Operation::Renew, hold.clone().renew_last(until, under_way))?;
        renewing
            .await
            .unwrap_or_else(|cause| Err(io::failed(hold.context.backend(), Operation::Renew, cause)))
    }

    /// Waits until `at` while the lock is renewed.
    ///
    /// # Errors
    /// If the lock is lost meanwhile.
    async fn keep_until(&self, at: Moment) -> Result<()> {
        let hold = self.hold.clone();
        let kept = self.handle.foreground.begin(Operation::Renew, async move {
            tokio::select! {
                biased;
                // The hold also ends if the caller drops its future.
                () = hold.phase_when(|phase| (!phase.is_held()).then_some(())) => {}
                () = hold.context.until(at) => {}
            }
        })?;
        kept.await.ok();
        self.hold.check().map(|_| ()).or_else(|ended| ended.into_result(self.hold.name()))
    }
}

/// The label of an explicit release in the metrics.
const EXPLICIT: &str = "explicit";

/// An explicit release.
struct Releasing {
    hold: Arc<Hold>,
    /// The time until which it is retried.
    until: Moment,
    /// The time that the holder waits for it; no limit if `None`.
    limit: Option<Duration>,
    under_way: WorkGuard,
}

impl Releasing {
    /// Releases on `store`, driven by the caller. After a temporary error or a take-over, the release continues on the I/O thread.
    async fn release_on_caller(self, foreground: &Arc<Foreground>, store: Arc<dyn Backend>) -> Result<()> {
        let (hold, context) = (self.hold.clone(), self.hold.context.clone());
        let release = {
            let request = hold.last_request();
            let release = async move { store.release(&request).await };
            time_limit::until(context.system_time(self.until), release)
        };
        let release = context.measured(Operation::Release, Some(hold.name()), release);
        let (sender, outcome) = oneshot::channel();
        let continue_on_thread = |(releasing, reply): (Self, oneshot::Sender<_>)| {
            let context = releasing.hold.context.clone();
            let attempts = u32::from(!has_bug(Bug::UncountedAttempt));
            let releasing = releasing.until_released(attempts).map(|outcome| drop(reply.send(outcome)));
            // An error means that there is no thread. The caller then receives an error instead of a reply.
            context.spawn(Operation::Release, releasing).ok();
        };
        match foreground.drive(Operation::Release, release, (self, sender), continue_on_thread).await {
            Some((Err(error), rest)) if error.is_temporary() => continue_on_thread(rest),
            Some((result, (releasing, _))) => return hold.released(result, EXPLICIT, releasing.under_way),
            None => {}
        }
        outcome.await.unwrap_or_else(|_| Err(io::without_result(context.backend(), Operation::Release)))
    }

    /// Returns the outcome for the holder; `attempts` have been made before.
    fn until_released(self, attempts: u32) -> impl Future<Output = Result<()>> + Send + use<> {
        let Self { hold, until, limit, under_way } = self;
        let releasing = hold.clone().release(until, EXPLICIT, attempts, under_way).boxed();
        wait_at_most(hold, limit, releasing)
    }
}

/// Returns the outcome of `releasing`, or `Ok` after `limit`; `releasing` continues in any case.
pub(super) async fn wait_at_most(
    hold: Arc<Hold>,
    limit: Option<Duration>,
    releasing: BoxFuture<'static, Result<()>>,
) -> Result<()> {
    let Some(limit) = limit else { return releasing.await };
    let releasing = process::spawn(releasing);
    tokio::select! {
        biased;
        outcome = releasing => outcome.unwrap_or(Ok(())),
        () = hold.context.until(hold.context.now() + limit) => Ok(()),
    }
}

impl Drop for SharedHold {
    fn drop(&mut self) {
        if !self.handle.context.is_own_process() {
            // A thread of the parent may have had any mutex at the fork, and nobody unlocks it here.
            std::mem::forget(self._slot.take());
            return;
        }
        if self.released {
            return;
        }
        if let Some(end) = self.hold.kept_until() {
            return self.keep_in_background(end);
        }
        // Counted before the hold ends: a shutdown at the same time does not find the hold any more, and waits for this release.
        let under_way = self.handle.context.pending.begin();
        let releasing = match self.leave() {
            Ok(until) => self.hold.clone().release(until, "drop", 0, under_way).map(drop).boxed(),
            Err(_) if self.hold.is_kept_after_loss() && !self.handle.context.holds_outlive_process => {
                self.hold.clone().release_lost(under_way).boxed()
            }
            // The hold was lost or released before. The client of a server may not have noticed its loss.
            Err(_) => return,
        };
        // An error means that there is no thread, and so there is no hold either.
        self.hold.context.spawn(Operation::Release, releasing).ok();
    }
}

impl SharedHold {
    /// Keeps the lock until `end` after the drop of its guard, and releases it then.
    fn keep_in_background(&mut self, end: Moment) {
        let under_way = self.handle.context.pending.begin();
        let (hold, handle) = (self.hold.clone(), self.handle.clone());
        // Without the thread, the task is dropped, and nothing is released.
        let (slot, unreceived) = (self._slot.take(), Mutex::default());
        let mut kept = Self { hold, handle, _slot: slot, unreceived, released: true };
        let keeping = async move {
            kept.released = false;
            // A failure has been logged; the lease expires in any case.
            kept.release_at(end).await.ok();
            drop(under_way);
        };
        self.hold.context.spawn(Operation::Release, keeping).ok();
    }
}

type Key = (LockName, OwnerId);
type Cell = Arc<tokio::sync::Mutex<Weak<SharedHold>>>;

/// Exclusive access to a slot; yields the owner's current hold, if any.
pub(crate) type Entered = OwnedMutexGuard<Weak<SharedHold>>;

/// The reentrant holds of the owners of this process.
#[derive(Debug, Default, Clone)]
pub(crate) struct Reentry {
    slots: Arc<Mutex<HashMap<Key, Cell>>>,
}

impl Reentry {
    /// Returns the slot that the attempts of one owner for one lock share.
    pub(crate) fn slot(&self, request: &Request) -> Slot {
        let key = (request.name.clone(), request.owner.clone());
        let cell = self.lock().entry(key.clone()).or_default().clone();
        Slot { reentry: self.clone(), key, cell }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Cell>> {
        lock(&self.slots)
    }
}

/// A reference to such a slot; the last one removes it.
#[derive(Debug)]
pub(crate) struct Slot {
    reentry: Reentry,
    key: Key,
    cell: Cell,
}

impl Slot {
    /// Waits until no other attempt of this owner is in progress, so that the second attempt finds the grant of the first.
    pub(crate) async fn enter(&self) -> Entered {
        self.cell.clone().lock_owned().await
    }

    /// Does not wait: returns `None` if another acquisition of this owner is in progress.
    pub(crate) fn try_enter(&self) -> Option<Entered> {
        self.cell.clone().try_lock_owned().ok()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut slots = self.reentry.lock();
        // The two references are those of the map and of this slot: under the map's lock, no other one can be created. (An
        // `Entered` has one, too, and ends before its slot does.)
        if Arc::strong_count(&self.cell) == 2 {
            slots.remove(&self.key);
        }
    }
}
