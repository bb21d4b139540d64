//! The keeper of a store: the single task that keeps the leases of a process alive, and ends holds at their deadlines.
//!
//! It sends one batched operation for everything that is due soon, so it needs no timer and no round trip for each hold. Each batch
//! is an operation of its own, with a reply that counts from the time of its sending. A batch that hangs or fails delays neither
//! the next one nor a deadline: a hold is lost when the store reports it, or at its deadline, and not before.
//!
//! The keeper runs while there are holds or waiters, and lingers for a moment after that, so that a program which acquires and
//! releases locks in turn does not start it each time.

mod due;
mod waiter_lease;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use futures_util::FutureExt;
use tokio::sync::Notify;

use super::{
    backoff::Backoff,
    context::StoreContext,
    gauges::Gauge,
    hold::{Hold, Phase},
};
use crate::{
    KeepAlive, LockName, LostReason, Moment, Operation, Request, RequestId, Result, invariant, io,
    metrics::Measured,
};
use due::Due;
pub(crate) use waiter_lease::WaiterLease;

/// The time that the keeper stays without holds and waiters, and the longest time that it sleeps.
const LINGER: Duration = Duration::from_secs(1);

/// The time for which a break notice is kept for holds that are registered after it: longer than the reply to a claim may take.
const NOTICES_KEPT: Duration = Duration::from_secs(10);

/// The holds and waiters that one process keeps alive in one store.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    state: Mutex<State>,
    /// Wakes the task, because something is due earlier than it expects.
    wake: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    holds: HashMap<RequestId, Kept>,
    waiters: HashMap<RequestId, Waiter>,
    /// The times at which they are due.
    timers: BTreeSet<(Moment, RequestId)>,
    /// The break notices of the last seconds, and the times until which they are kept.
    notices: Vec<(LockName, Moment)>,
    /// The lease that all waiters share, if the store has a shared lease.
    queue: Option<QueueLease>,
    /// The time of the task's next check; `None` while there is no task.
    next_check: Option<Moment>,
}

/// The lease that all waiters of a process share.
#[derive(Debug)]
struct QueueLease {
    waiters: HashSet<RequestId>,
    ttl: Duration,
    /// The time at which it is to be extended.
    at: Moment,
}

/// The keeper's record of a hold.
#[derive(Debug)]
struct Kept {
    hold: Arc<Hold>,
    began: Moment,
    /// The time at which the hold was registered. A keep-alive that was sent before may have found the request in the queue.
    since: Moment,
    /// The time until which the caller must have received the guard.
    receive_by: Moment,
    /// The time at which the last successful claim or keep-alive was sent; it gave `lease`.
    sent: Moment,
    lease: Duration,
    /// The time at which the next keep-alive is due.
    renew_at: Moment,
    /// Its entry in the timers.
    timer: Moment,
    /// True while a keep-alive is in flight.
    in_flight: bool,
    /// The pauses after failed keep-alives.
    backoff: Option<Backoff>,
}

/// A request in the queue with an entry that has its own lease in the store.
#[derive(Debug)]
struct Waiter {
    request: Arc<Request>,
    entry: Weak<WaiterLease>,
    timer: Moment,
    in_flight: bool,
}

impl Waiter {
    /// Records that a keep-alive has been sent. Without a reply in time, another one is sent.
    fn sent(&mut self, now: Moment, timers: &mut BTreeSet<(Moment, RequestId)>) {
        self.in_flight = true;
        self.timer = now + self.request.queue_lease() / 3;
        timers.insert((self.timer, self.request.id));
    }
}

impl Keeper {
    /// Keeps `hold` alive until it ends. Its claim was sent at `sent` and gave `lease`.
    pub(super) fn hold(&self, hold: &Arc<Hold>, sent: Moment, lease: Duration) {
        let context = &hold.context;
        let now = context.now();
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
            renew_at: if is_broken { now } else { sent + lease / 3 },
            timer: Moment::NEVER,
            in_flight: false,
            backoff: None,
        };
        kept.set_timer(&mut state.timers);
        let at = kept.timer;
        state.holds.insert(hold.request.id, kept);
        context.gauges.change(context, Gauge::Holding, hold.name(), 1);
        self.schedule(state, context, at);
    }

    /// Keeps the queue entry of `request` alive until `entry` is dropped. The claim was sent at `sent`.
    pub(super) fn wait(
        &self,
        context: &Arc<StoreContext>,
        request: &Arc<Request>,
        entry: &Arc<WaiterLease>,
        sent: Moment,
    ) {
        let ttl = request.queue_lease();
        let at = sent + ttl / 3;
        let mut state = self.lock();
        match context.store.backend.capabilities().queue_lease {
            crate::QueueLease::Entry => {}
            crate::QueueLease::Shared => {
                let new = || QueueLease { waiters: HashSet::new(), ttl, at };
                let queue = state.queue.get_or_insert_with(new);
                queue.waiters.insert(request.id);
                (queue.ttl, queue.at) = (queue.ttl.min(ttl), queue.at.min(at));
                let at = queue.at;
                return self.schedule(state, context, at);
            }
            crate::QueueLease::Absent => return,
        }
        let waiter =
            Waiter { request: request.clone(), entry: Arc::downgrade(entry), timer: at, in_flight: false };
        if let Some(before) = state.waiters.insert(request.id, waiter) {
            state.timers.remove(&(before.timer, request.id));
        }
        state.timers.insert((at, request.id));
        self.schedule(state, context, at);
    }

    /// Removes `hold`, which was ended by its holder or passed on.
    pub(super) fn remove_hold(&self, hold: &Hold) {
        let mut state = self.lock();
        if let Some(kept) = state.holds.remove(&hold.request.id) {
            state.timers.remove(&(kept.timer, hold.request.id));
            drop(state);
            record_end(&kept);
        }
    }

    /// Removes `request`, which waits no more.
    pub(super) fn remove_waiter(&self, request: RequestId) {
        let mut state = self.lock();
        if let Some(waiter) = state.waiters.remove(&request) {
            state.timers.remove(&(waiter.timer, request));
        }
        if let Some(queue) = &mut state.queue {
            queue.waiters.remove(&request);
            if queue.waiters.is_empty() {
                state.queue = None;
            }
        }
    }

    /// Makes the task check all holds of `name` now, because the store has received a break notice.
    pub(crate) fn check(&self, context: &Arc<StoreContext>, name: &LockName) {
        let now = context.now();
        let mut state = self.lock();
        state.notices.push((name.clone(), now + NOTICES_KEPT));
        let State { holds, timers, .. } = &mut *state;
        for kept in holds.values_mut().filter(|kept| kept.hold.name() == name) {
            kept.renew_at = now;
            kept.set_timer(timers);
        }
        self.schedule(state, context, now);
    }

    /// Makes the task check the timers by `at`.
    fn schedule(&self, mut state: MutexGuard<'_, State>, context: &Arc<StoreContext>, at: Moment) {
        match state.next_check {
            Some(next_check) if next_check <= at => {}
            Some(_) => self.wake.notify_one(),
            None => {
                state.next_check = Some(at);
                drop(state);
                // Without the thread, there are no locks either.
                context.spawn(Operation::Renew, run(context.clone())).ok();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Returns the end of the lease, by the holder's clock.
    fn deadline(&self) -> Moment {
        invariant::deadline(self.sent, self.lease)
    }

    /// Returns the time at which the hold is passed on, unless the caller has received the guard.
    fn receive_by(&self) -> Moment {
        if self.hold.is_received() { Moment::NEVER } else { self.receive_by }
    }

    fn due(&self) -> Moment {
        self.renew_at.min(self.deadline()).min(self.receive_by())
    }

    /// Records that a keep-alive has been sent. Without a reply in time, another one is sent.
    fn sent(&mut self, now: Moment) {
        self.in_flight = true;
        self.renew_at = now + self.lease / 6;
    }

    fn set_timer(&mut self, timers: &mut BTreeSet<(Moment, RequestId)>) {
        let id = self.hold.request.id;
        timers.remove(&(self.timer, id));
        self.timer = self.due();
        timers.insert((self.timer, id));
    }
}

/// Records the metrics of a hold that has ended.
fn record_end(kept: &Kept) {
    let (context, name) = (&kept.hold.context, kept.hold.name());
    context.record(name, Measured::Hold { lasted: context.now().since(kept.began) });
    context.gauges.change(context, Gauge::Holding, name, -1);
}

/// Runs the task. If the task panics, the holds end with it.
async fn run(context: Arc<StoreContext>) {
    let store = Arc::downgrade(&context);
    let Err(panic) = AssertUnwindSafe(keep(context)).catch_unwind().await else { return };
    let Some(context) = store.upgrade() else { return };
    let cause = io::panicked(&*panic);
    tracing::error!(cause, "the task that renews the locks of a store has failed: its locks are lost");
    let state = std::mem::take(&mut *context.keeper.lock());
    for kept in state.holds.into_values().filter(|kept| !kept.hold.has_left()) {
        if kept.hold.lose(LostReason::WatchdogFailed) {
            kept.hold.report_loss(&LostReason::WatchdogFailed);
        }
        // The release is sent once, and without the clock, which may have failed. Otherwise the lease expires.
        let release = kept.hold.context.store.backend.release(&kept.hold.request);
        drop(AssertUnwindSafe(release).catch_unwind().await);
    }
}

/// Keeps holds and waiters alive until there are none. They keep the store open; this task does not.
async fn keep(context: Arc<StoreContext>) {
    let (store, clock, wake) = (Arc::downgrade(&context), context.clock.clone(), context.keeper.wake.clone());
    let mut open = Some(context);
    while let Some(context) = open.take() {
        let now = context.now();
        let Some((due, next)) = context.keeper.take_due(&context, now) else { return };
        for kept in due.ended {
            after_loss(&context, kept);
        }
        for batch in due.batches {
            keep_alive(&context, batch);
        }
        drop(context);
        let is_due = tokio::select! {
            () = clock.sleep_until(next) => true,
            () = wake.notified() => false,
        };
        open = store.upgrade();
        if let (Some(context), true) = (&open, is_due) {
            context.timer_fired(next);
        }
    }
}

impl Keeper {
    /// Returns everything that is due by `now` and the time of the next check; `None` if nothing is left to keep and the task must
    /// end.
    fn take_due(&self, context: &StoreContext, now: Moment) -> Option<(Due, Moment)> {
        let mut state = self.lock();
        if state.next() == Moment::NEVER && state.next_check.is_some_and(|next_check| next_check <= now) {
            state.next_check = None;
            return None;
        }
        let due = due::take(&mut state, now, context.store.backend.capabilities());
        let next = state.next().min(now + LINGER);
        state.next_check = Some(next);
        Some((due, next))
    }
}

/// Reports a hold that was lost, and releases the entry that the store may still have.
fn after_loss(context: &Arc<StoreContext>, kept: Kept) {
    record_end(&kept);
    let (context, hold) = (context.clone(), kept.hold);
    match hold.phase() {
        Phase::Lost(reason) => hold.report_loss(&reason),
        _ => tracing::warn!(lock.name = %hold.name(), "acquisition not polled: its grant is passed on"),
    }
    if hold.is_broken() {
        // The guard releases it when the holder has stopped.
        return;
    }
    let under_way = context.pending.begin();
    tokio::spawn(async move {
        // A keep-alive without a reply may have been carried out: the lease that it extended would block other requests for
        // nothing.
        context.release_until(&hold.request, context.now() + kept.lease, 0).await.ok();
        drop(under_way);
    });
}

/// Sends a batch, and applies its reply when it arrives.
fn keep_alive(context: &Arc<StoreContext>, batch: Vec<Arc<Request>>) {
    let (context, sent) = (context.clone(), context.now());
    let batch: Arc<[Arc<Request>]> = batch.into();
    let (name, requests) = (batch.first().map(|request| request.name.clone()), batch.clone());
    let mut sending = context
        .start(Operation::Renew, name.as_ref(), |store| async move { store.keep_alive(&requests).await });
    tokio::spawn(async move {
        let reply = sending.reply().await.and_then(|outcomes| context.complete(batch.len(), outcomes));
        context.keeper.apply(&context, sent, &batch, reply);
    });
}

impl Keeper {
    fn apply(
        &self,
        context: &Arc<StoreContext>,
        sent: Moment,
        batch: &[Arc<Request>],
        reply: Result<Vec<KeepAlive>>,
    ) {
        let now = context.now();
        let mut state = self.lock();
        let mut lost = Vec::new();
        match reply {
            Ok(outcomes) => {
                for (request, outcome) in batch.iter().zip(outcomes) {
                    lost.extend(state.apply(context, sent, now, request, outcome));
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
        self.schedule(state, context, next);
        for kept in lost {
            after_loss(context, kept);
        }
    }
}

impl State {
    /// Returns the time at which the next entry is due.
    fn next(&self) -> Moment {
        let timer = self.timers.first().map_or(Moment::NEVER, |(at, _)| *at);
        self.queue.as_ref().map_or(timer, |queue| timer.min(queue.at))
    }

    /// Applies the outcome for one request; returns the hold if the outcome has ended it.
    fn apply(
        &mut self,
        context: &StoreContext,
        sent: Moment,
        now: Moment,
        request: &Request,
        outcome: KeepAlive,
    ) -> Option<Kept> {
        if outcome == KeepAlive::Unknown {
            tracing::debug!(lock.name = %request.name, "renewal not confirmed, retrying");
            self.failed(context, now, request.id);
            return None;
        }
        let Self { holds, waiters, timers, .. } = self;
        if let Some(waiter) = waiters.get_mut(&request.id) {
            timers.remove(&(waiter.timer, request.id));
            (waiter.timer, waiter.in_flight) = (sent + request.queue_lease() / 3, false);
            timers.insert((waiter.timer, request.id));
            if let Some(entry) = waiter.entry.upgrade() {
                entry.apply(sent, &outcome);
            }
            return None;
        }
        let kept = holds.get_mut(&request.id)?;
        kept.in_flight = false;
        if kept.hold.has_left() {
            // The task that has ended it releases it, and is about to remove it here.
            return None;
        }
        if sent < kept.since && !matches!(outcome, KeepAlive::Held { .. }) {
            // The outcome is from before the grant. If the hold has ended since, the next keep-alive reports that.
            return None;
        }
        let reason = match outcome {
            KeepAlive::Held { lease } => {
                context.record(&request.name, Measured::Renewal("renewed"));
                if sent < kept.sent {
                    // This is the reply to an earlier keep-alive, which was overtaken.
                    return None;
                }
                context.record(&request.name, Measured::RenewSlack(kept.deadline().since(now)));
                let deadline = invariant::deadline(sent, lease);
                if deadline > now && kept.hold.extend(deadline) {
                    (kept.sent, kept.lease, kept.renew_at, kept.backoff) =
                        (sent, lease, sent + lease / 3, None);
                    kept.set_timer(timers);
                    return None;
                }
                LostReason::DeadlineReached
            }
            KeepAlive::Lost(reason) => {
                context.record(&request.name, Measured::Renewal("lost"));
                reason
            }
            // A holder is never in the queue.
            KeepAlive::Queued | KeepAlive::Unknown => LostReason::Gone,
        };
        if !kept.hold.lose(reason) && kept.hold.has_left() {
            return None;
        }
        let kept = holds.remove(&request.id)?;
        timers.remove(&(kept.timer, request.id));
        Some(kept)
    }

    /// Schedules the retry of a keep-alive of `request` that has failed, so that its effect is unknown.
    fn failed(&mut self, context: &StoreContext, now: Moment, request: RequestId) {
        let Self { holds, waiters, timers, .. } = self;
        if let Some(waiter) = waiters.get_mut(&request) {
            timers.remove(&(waiter.timer, request));
            (waiter.timer, waiter.in_flight) = (now + waiter.request.queue_lease() / 10, false);
            timers.insert((waiter.timer, request));
        } else if let Some(kept) = holds.get_mut(&request) {
            context.record(kept.hold.name(), Measured::Renewal("error"));
            let lease = kept.lease;
            let pause = kept.backoff.get_or_insert_with(|| Backoff::up_to(lease / 20)).next();
            (kept.renew_at, kept.in_flight) = (now + pause, false);
            kept.set_timer(timers);
        }
    }
}
