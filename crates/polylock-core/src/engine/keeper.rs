//! The keeper of a store: the single task that keeps the leases of a process alive, and ends holds at their deadlines.
//!
//! It sends one batched operation for everything that is due soon, so it needs no timer and no round trip for each hold. Each batch
//! is an operation of its own, with a reply that counts from the time of its sending. A batch that hangs or fails delays neither
//! the next one nor a deadline: a hold is lost when the store reports it, or at its deadline, and not before.
//!
//! The keeper runs while there are holds or waiters, and lingers for a moment after that, so that a program which acquires and
//! releases locks in turn does not start it each time.

mod due;
mod state;
mod waiter_lease;

use std::{
    collections::HashSet,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures_util::FutureExt;
use tokio::sync::Notify;

use super::{context::StoreContext, gauges::Gauge, hold::Hold, phase::Phase};
use crate::{
    KeepAlive, LockName, LostReason, Mode, Moment, Operation, OwnerId, Request, RequestId, Result,
    bug::Bug,
    io,
    process::{self, has_bug},
    sync::lock,
};
use due::Due;
use state::{Kept, QueueLease, State, Waiter};
pub(crate) use waiter_lease::WaiterLease;

/// The time that the keeper stays without holds and waiters, and the longest time that it sleeps.
const LINGER: Duration = Duration::from_secs(1);

/// The time for which a break notice is kept for holds that are registered after it: longer than the reply to a claim may take.
const NOTICES_KEPT: Duration = Duration::from_secs(10);

/// The holds and waiters that one process keeps alive in one store.
#[derive(Debug)]
pub(crate) struct Keeper {
    context: Arc<StoreContext>,
    state: Mutex<State>,
    /// Wakes the task, because something is due earlier than it expects.
    wake: Arc<Notify>,
}

impl Keeper {
    pub(super) fn new(context: Arc<StoreContext>) -> Self {
        Self { context, state: Mutex::default(), wake: Arc::default() }
    }

    pub(super) fn context(&self) -> &Arc<StoreContext> {
        &self.context
    }

    /// Keeps `hold` alive until it ends. Its claim was sent at `sent` and gave `lease`.
    pub(super) fn hold(self: &Arc<Self>, hold: &Arc<Hold>, sent: Moment, lease: Duration) {
        let now = self.context.now();
        let mut state = self.lock();
        state.notices.retain(|(_, until)| *until > now);
        let is_broken = state.notices.iter().any(|(name, _)| name == hold.name());
        let mut kept = Kept {
            hold: hold.clone(),
            began: sent,
            since: now,
            receive_by: now + hold.request.queue_lease(),
            sent,
            lease,
            renew_at: if is_broken { now } else { hold.times().renew_at(sent, lease) },
            on_request: false,
            timer: Moment::NEVER,
            in_flight: false,
            warned: false,
            backoff: None,
        };
        // Before the hold gets a timer, which may be due at the same time as that of the waiter.
        state.remove_waiter(hold.request.id);
        kept.set_timer(&mut state.timers);
        let at = kept.timer;
        state.holds.insert(hold.key(), kept);
        self.context.change_gauge(Gauge::Holding, hold.name(), 1);
        self.schedule(state, at);
    }

    /// Keeps the queue entry of `request` alive until `entry` is dropped. The claim was sent at `sent`.
    pub(super) fn wait(self: &Arc<Self>, request: &Arc<Request>, entry: &Arc<WaiterLease>, sent: Moment) {
        let ttl = request.queue_lease();
        let at = sent + ttl / 3;
        let mut state = self.lock();
        match self.context.store.backend.capabilities().queue_lease {
            crate::QueueLease::Entry => {}
            crate::QueueLease::Shared => {
                let new = || QueueLease { waiters: HashSet::new(), ttl, at };
                let queue = state.queue.get_or_insert_with(new);
                queue.waiters.insert(request.id);
                (queue.ttl, queue.at) = (queue.ttl.min(ttl), queue.at.min(at));
                let at = queue.at;
                return self.schedule(state, at);
            }
            crate::QueueLease::Absent => return,
        }
        let waiter = Waiter {
            request: request.clone(),
            entry: Arc::downgrade(entry),
            timer: at,
            sent,
            in_flight: false,
        };
        if let Some(before) = state.waiters.insert(request.id, waiter) {
            state.timers.remove(&(before.timer, (request.id, 0)));
        }
        state.timers.insert((at, (request.id, 0)));
        self.schedule(state, at);
    }

    /// Removes `hold`, which was ended by its holder or passed on.
    pub(super) fn remove_hold(&self, hold: &Hold) {
        let mut state = self.lock();
        if let Some(kept) = state.holds.remove(&hold.key()) {
            state.timers.remove(&(kept.timer, hold.key()));
            drop(state);
            kept.record_end();
        }
    }

    /// Returns the mode in which `owner` holds `name` here, if that is in conflict with `mode`.
    pub(crate) fn conflicting_hold(&self, name: &LockName, owner: &OwnerId, mode: Mode) -> Option<Mode> {
        let state = self.lock();
        let holds = state.holds.values().map(|kept| &kept.hold);
        let mut of_owner = holds.filter(|hold| hold.name() == name && hold.request.owner == *owner);
        of_owner.find_map(|hold| Some(hold.mode()).filter(|held| held.conflicts_with(mode)))
    }

    /// Ends all holds because of the shutdown, and returns them with the times until which their releases are worth retrying.
    pub(super) fn shut_down(&self) -> Vec<(Arc<Hold>, Moment)> {
        let mut state = self.lock();
        let State { holds, timers, .. } = &mut *state;
        let ended = holds.iter().filter(|(_, kept)| kept.hold.shut_down()).map(|(key, _)| *key);
        let ended: Vec<_> = ended.collect();
        let ended: Vec<Kept> = ended.iter().filter_map(|key| holds.remove(key)).collect();
        for kept in &ended {
            timers.remove(&(kept.timer, kept.hold.key()));
        }
        drop(state);
        let released = ended.into_iter().map(|kept| {
            kept.record_end();
            let until = kept.hold.release_by(kept.deadline());
            (kept.hold, until)
        });
        released.collect()
    }

    /// Removes `request`, which waits no more.
    pub(super) fn remove_waiter(&self, request: RequestId) {
        let mut state = self.lock();
        state.remove_waiter(request);
        if let Some(queue) = &mut state.queue {
            queue.waiters.remove(&request);
            if queue.waiters.is_empty() {
                state.queue = None;
            }
        }
    }

    /// Makes the task check all holds of `name` now, because the store has received a break notice.
    pub(super) fn check(self: &Arc<Self>, name: &LockName) {
        let now = self.context.now();
        let mut state = self.lock();
        if !has_bug(Bug::ForgottenNotice) {
            state.notices.push((name.clone(), now + NOTICES_KEPT));
        }
        let State { holds, timers, .. } = &mut *state;
        for kept in holds.values_mut().filter(|kept| kept.hold.name() == name) {
            kept.renew_now(now, timers);
        }
        self.schedule(state, now);
    }

    /// From now on, renews `hold` only at a request of its holder.
    pub(super) fn stop_renewals(&self, hold: &Hold) {
        let mut state = self.lock();
        let State { holds, timers, .. } = &mut *state;
        if let Some(kept) = holds.get_mut(&hold.key()) {
            (kept.on_request, kept.renew_at) = (true, Moment::NEVER);
            kept.set_timer(timers);
        }
    }

    /// Makes the task renew `hold` now.
    pub(super) fn renew(self: &Arc<Self>, hold: &Hold) {
        let now = self.context.now();
        let mut state = self.lock();
        let State { holds, timers, .. } = &mut *state;
        if let Some(kept) = holds.get_mut(&hold.key()) {
            kept.renew_now(now, timers);
            self.schedule(state, now);
        }
    }

    /// Makes the task check the timers by `at`.
    fn schedule(self: &Arc<Self>, mut state: MutexGuard<'_, State>, at: Moment) {
        match state.next_check {
            Some(next_check) if next_check <= at => {}
            Some(_) => self.wake.notify_one(),
            None => {
                state.next_check = Some(at);
                drop(state);
                // Without the thread, there are no locks either.
                self.context.spawn(Operation::Renew, run(self.clone())).ok();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Runs the task. If the task panics, the holds end with it.
async fn run(keeper: Arc<Keeper>) {
    let open = Arc::downgrade(&keeper);
    let Err(panic) = AssertUnwindSafe(keep(keeper)).catch_unwind().await else { return };
    let Some(keeper) = open.upgrade() else { return };
    let cause = io::panicked(&*panic);
    tracing::error!(cause, "the task that renews the locks of a store has failed: its locks are lost");
    let state = std::mem::take(&mut *keeper.lock());
    for kept in state.holds.into_values().filter(|kept| !kept.hold.has_left()) {
        if kept.hold.lose(LostReason::WatchdogFailed) {
            kept.hold.report_loss(&LostReason::WatchdogFailed);
        }
        // The release is sent once, and without the clock, which may have failed. Otherwise the lease expires.
        let release = keeper.context.store.backend.release(&kept.hold.request);
        drop(AssertUnwindSafe(release).catch_unwind().await);
    }
}

/// Keeps holds and waiters alive until there are none. Guards and acquisitions keep the store open; this task does not.
async fn keep(keeper: Arc<Keeper>) {
    let (store, clock, wake) = (Arc::downgrade(&keeper), keeper.context.clock.clone(), keeper.wake.clone());
    let mut open = Some(keeper);
    while let Some(keeper) = open.take() {
        let Some((batches, next)) = keeper.take_due() else { return };
        for batch in batches {
            keep_alive(&keeper, batch);
        }
        drop(keeper);
        let is_due = tokio::select! {
            biased;
            () = clock.sleep_until(next) => true,
            () = wake.notified() => false,
        };
        open = store.upgrade();
        if let (Some(keeper), true) = (&open, is_due) {
            keeper.context.timer_fired(next);
        }
    }
}

impl Keeper {
    /// Ends the holds that are due now. Returns the batches that are due, and the time of the next check; `None` if nothing is left to keep
    /// and the task must end.
    fn take_due(&self) -> Option<(Vec<Vec<Arc<Request>>>, Moment)> {
        let now = self.context.now();
        let mut state = self.lock();
        if state.next() == Moment::NEVER && state.next_check.is_some_and(|next_check| next_check <= now) {
            state.next_check = None;
            return None;
        }
        let Due { ended, batches } = due::take(&mut state, now, self.context.store.backend.capabilities());
        let next = state.next().min(now + LINGER);
        state.next_check = Some(next);
        // Under the lock: a shutdown at the same time finds either the hold, or the release that is counted here.
        for kept in ended {
            after_loss(&self.context, kept);
        }
        Some((batches, next))
    }
}

/// Reports a hold that was lost, and releases the entry that the store may still have.
fn after_loss(context: &Arc<StoreContext>, kept: Kept) {
    kept.record_end();
    let (context, hold) = (context.clone(), kept.hold);
    let is_lost = match hold.phase() {
        Phase::Lost(reason) => {
            hold.report_loss(&reason);
            true
        }
        _ => {
            tracing::warn!(lock.name = %hold.name(), "acquisition not polled: its grant is passed on");
            false
        }
    };
    if hold.is_kept_after_loss() {
        // The guard releases it when the holder has stopped.
        return;
    }
    if is_lost && hold.is_known_elsewhere() && !has_bug(Bug::ReleasedElsewhere) {
        // It may have been renewed elsewhere: by the client of this server, or with its handle.
        return;
    }
    if !is_lost && has_bug(Bug::UnreleasedGrant) {
        return;
    }
    let under_way = context.pending.begin();
    process::spawn(async move {
        // A keep-alive without a reply may have been carried out: the lease that it extended would block other requests for
        // nothing.
        context.release_until(&hold.request, context.now() + kept.lease, 0).await.ok();
        drop(under_way);
    });
}

/// Sends a batch, and applies its reply when it arrives.
fn keep_alive(keeper: &Arc<Keeper>, batch: Vec<Arc<Request>>) {
    let (keeper, context) = (keeper.clone(), keeper.context.clone());
    let sent = context.now();
    let batch: Arc<[Arc<Request>]> = batch.into();
    let (name, requests) = (batch.first().map(|request| request.name.clone()), batch.clone());
    let mut sending = context
        .start(Operation::Renew, name.as_ref(), |store| async move { store.keep_alive(&requests).await });
    process::spawn(async move {
        let reply = sending.reply().await.and_then(|outcomes| context.complete(batch.len(), outcomes));
        keeper.apply(sent, &batch, reply);
    });
}

impl Keeper {
    fn apply(self: &Arc<Self>, sent: Moment, batch: &[Arc<Request>], reply: Result<Vec<KeepAlive>>) {
        let context = &self.context;
        let now = context.now();
        let mut state = self.lock();
        let mut lost = Vec::new();
        match reply {
            Ok(outcomes) => {
                for (request, outcome) in batch.iter().zip(outcomes) {
                    lost.extend(state.apply(context, sent, now, request, &outcome));
                }
            }
            Err(error) => {
                let (count, name) = (batch.len(), batch.first().map(|request| request.name.clone()));
                if let Some(name) = name {
                    tracing::warn!(
                        lock.name = %name, count, error = &error as &dyn std::error::Error,
                        "renewal failed, retrying",
                    );
                }
                for request in batch {
                    state.failed(context, now, request.id);
                }
            }
        }
        let next = state.next();
        self.schedule(state, next);
        for kept in lost {
            after_loss(context, kept);
        }
    }
}
