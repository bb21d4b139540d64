//! The keeper of a store: the one task that keeps the leases of a process alive, and ends them at their deadlines.
//!
//! It sends one batched operation for everything that is due soon, so its cost does not grow with one timer and one round trip for
//! each hold. Each batch is an operation of its own, whose reply counts from the time of its sending. A batch that hangs or fails
//! delays neither the next one nor a deadline: a hold is lost when the store says so, or at its deadline, and not before.
//!
//! The keeper runs while there is something to keep, and lingers for a moment after that, so that a program which takes and
//! releases locks in turn does not start it each time.

mod due;
mod queue_entry;

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
    gauges::Gauge,
    hold::{Hold, Phase},
    shared::Shared,
};
use crate::{
    KeepAlive, LockName, LostReason, Moment, Operation, Request, RequestId, Result, invariant, io,
    metrics::Measured,
};
use due::Due;
pub(crate) use queue_entry::QueueEntry;

/// How long the keeper stays when it has nothing to keep, and the longest that it sleeps.
const LINGER: Duration = Duration::from_secs(1);

/// For how long a break notice is kept for holds that are registered after it: longer than the reply to a claim may take.
const NOTICES_KEPT: Duration = Duration::from_secs(10);

/// What one process keeps alive in one store.
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
    /// When each of them is due.
    timers: BTreeSet<(Moment, RequestId)>,
    /// Break notices of the last seconds, and until when they are kept.
    notices: Vec<(LockName, Moment)>,
    /// The lease that all waiters share, in a store where they do.
    queue: Option<QueueLease>,
    /// When the task looks again by itself; `None` while there is no task.
    looks_at: Option<Moment>,
}

/// The lease that all waiters of a process share.
#[derive(Debug)]
struct QueueLease {
    waiters: HashSet<RequestId>,
    ttl: Duration,
    /// When it is to be extended.
    at: Moment,
}

/// A hold, as the keeper knows it.
#[derive(Debug)]
struct Kept {
    hold: Arc<Hold>,
    began: Moment,
    /// When the keeper was given the hold. A keep-alive that was sent before may have found the request in the queue.
    since: Moment,
    /// Until when the caller must have received the guard.
    receive_by: Moment,
    /// When the last claim or keep-alive that succeeded was sent, and what it gave.
    sent: Moment,
    lease: Duration,
    /// When the next keep-alive is due.
    renew_at: Moment,
    /// Its entry in the timers.
    timer: Moment,
    /// Whether a keep-alive is on its way.
    in_flight: bool,
    /// The pauses after keep-alives that failed.
    backoff: Option<Backoff>,
}

/// A request in the queue whose entry in the store has a lease of its own.
#[derive(Debug)]
struct Waiter {
    request: Arc<Request>,
    entry: Weak<QueueEntry>,
    timer: Moment,
    in_flight: bool,
}

impl Waiter {
    /// A keep-alive has been sent. Without a reply in time, another one is.
    fn sent(&mut self, now: Moment, timers: &mut BTreeSet<(Moment, RequestId)>) {
        self.in_flight = true;
        self.timer = now + self.request.place_ttl() / 3;
        timers.insert((self.timer, self.request.id));
    }
}

impl Keeper {
    /// Keeps `hold`, whose claim was sent at `sent` and gave `lease`, until it ends.
    pub(super) fn hold(&self, hold: &Arc<Hold>, sent: Moment, lease: Duration) {
        let shared = &hold.shared;
        let now = shared.now();
        let mut state = self.lock();
        state.notices.retain(|(_, until)| *until > now);
        let is_broken = state.notices.iter().any(|(name, _)| name == hold.name());
        let mut kept = Kept {
            hold: hold.clone(),
            began: sent,
            since: now,
            receive_by: now + hold.request.place_ttl(),
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
        shared.gauges.change(shared, Gauge::Holding, hold.name(), 1);
        self.look_by(state, shared, at);
    }

    /// Keeps the queue entry of `request`, whose claim was sent at `sent`, until `entry` is dropped.
    pub(super) fn wait(
        &self,
        shared: &Arc<Shared>,
        request: &Arc<Request>,
        entry: &Arc<QueueEntry>,
        sent: Moment,
    ) {
        let ttl = request.place_ttl();
        let at = sent + ttl / 3;
        let mut state = self.lock();
        match shared.store.backend.capabilities().queue_lease {
            crate::QueueLease::Entry => {}
            crate::QueueLease::Shared => {
                let new = || QueueLease { waiters: HashSet::new(), ttl, at };
                let queue = state.queue.get_or_insert_with(new);
                queue.waiters.insert(request.id);
                (queue.ttl, queue.at) = (queue.ttl.min(ttl), queue.at.min(at));
                let at = queue.at;
                return self.look_by(state, shared, at);
            }
            crate::QueueLease::Absent => return,
        }
        let waiter =
            Waiter { request: request.clone(), entry: Arc::downgrade(entry), timer: at, in_flight: false };
        if let Some(before) = state.waiters.insert(request.id, waiter) {
            state.timers.remove(&(before.timer, request.id));
        }
        state.timers.insert((at, request.id));
        self.look_by(state, shared, at);
    }

    /// `hold` has ended by its holder's will, or was passed on.
    pub(super) fn forget_hold(&self, hold: &Hold) {
        let mut state = self.lock();
        if let Some(kept) = state.holds.remove(&hold.request.id) {
            state.timers.remove(&(kept.timer, hold.request.id));
            drop(state);
            ended(&kept);
        }
    }

    /// `request` waits no more.
    pub(super) fn forget_waiter(&self, request: RequestId) {
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

    /// Has all holds of `name` checked now: the store has received a break notice.
    pub(crate) fn check(&self, shared: &Arc<Shared>, name: &LockName) {
        let now = shared.now();
        let mut state = self.lock();
        state.notices.push((name.clone(), now + NOTICES_KEPT));
        let State { holds, timers, .. } = &mut *state;
        for kept in holds.values_mut().filter(|kept| kept.hold.name() == name) {
            kept.renew_at = now;
            kept.set_timer(timers);
        }
        self.look_by(state, shared, now);
    }

    /// Sees to it that the task looks at the timers by `at`.
    fn look_by(&self, mut state: MutexGuard<'_, State>, shared: &Arc<Shared>, at: Moment) {
        match state.looks_at {
            Some(looks_at) if looks_at <= at => {}
            Some(_) => self.wake.notify_one(),
            None => {
                state.looks_at = Some(at);
                drop(state);
                // Without the thread there are no locks either.
                shared.spawn(Operation::Renew, run(shared.clone())).ok();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// The end of its lease, by the holder's clock.
    fn deadline(&self) -> Moment {
        invariant::deadline(self.sent, self.lease)
    }

    /// When the hold is passed on, unless the caller has received the guard.
    fn receive_by(&self) -> Moment {
        if self.hold.is_received() { Moment::NEVER } else { self.receive_by }
    }

    fn due(&self) -> Moment {
        self.renew_at.min(self.deadline()).min(self.receive_by())
    }

    /// A keep-alive has been sent. Without a reply in time, another one is.
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

/// Measures the end of a hold.
fn ended(kept: &Kept) {
    let (shared, name) = (&kept.hold.shared, kept.hold.name());
    shared.record(name, Measured::Hold { lasted: shared.now().since(kept.began) });
    shared.gauges.change(shared, Gauge::Holding, name, -1);
}

/// The task: however it ends, the holds end with it.
async fn run(shared: Arc<Shared>) {
    let store = Arc::downgrade(&shared);
    let Err(panic) = AssertUnwindSafe(keep(shared)).catch_unwind().await else { return };
    let Some(shared) = store.upgrade() else { return };
    let cause = io::panicked(&*panic);
    tracing::error!(cause, "the task that renews the locks of a store has failed: they are lost");
    let state = std::mem::take(&mut *shared.keeper.lock());
    for kept in state.holds.into_values().filter(|kept| !kept.hold.has_left()) {
        if kept.hold.lose(LostReason::WatchdogFailed) {
            kept.hold.report_loss(&LostReason::WatchdogFailed);
        }
        // Once, and without a clock, which may be what has failed: the lease ends it otherwise.
        let release = kept.hold.shared.store.backend.release(&kept.hold.request);
        drop(AssertUnwindSafe(release).catch_unwind().await);
    }
}

/// Keeps what there is. Holds and waiters keep the store open; this task does not.
async fn keep(shared: Arc<Shared>) {
    let (store, clock, wake) = (Arc::downgrade(&shared), shared.clock.clone(), shared.keeper.wake.clone());
    let mut open = Some(shared);
    while let Some(shared) = open.take() {
        let now = shared.now();
        let Some((due, next)) = shared.keeper.take_due(&shared, now) else { return };
        for kept in due.ended {
            after_loss(&shared, kept);
        }
        for batch in due.batches {
            keep_alive(&shared, batch);
        }
        drop(shared);
        let is_due = tokio::select! {
            () = clock.sleep_until(next) => true,
            () = wake.notified() => false,
        };
        open = store.upgrade();
        if let (Some(shared), true) = (&open, is_due) {
            shared.woken(next);
        }
    }
}

impl Keeper {
    /// What is due by `now`, and when to look next; `None` if there is nothing to keep any more, and the task has to end.
    fn take_due(&self, shared: &Shared, now: Moment) -> Option<(Due, Moment)> {
        let mut state = self.lock();
        if state.next() == Moment::NEVER && state.looks_at.is_some_and(|looks_at| looks_at <= now) {
            state.looks_at = None;
            return None;
        }
        let due = due::take(&mut state, now, shared.store.backend.capabilities());
        let next = state.next().min(now + LINGER);
        state.looks_at = Some(next);
        Some((due, next))
    }
}

/// Reports a hold that was lost, and releases what the store may still keep of it.
fn after_loss(shared: &Arc<Shared>, kept: Kept) {
    ended(&kept);
    let (shared, hold) = (shared.clone(), kept.hold);
    match hold.phase() {
        Phase::Lost(reason) => hold.report_loss(&reason),
        _ => tracing::warn!(lock.name = %hold.name(), "granted to an acquire that is not polled: passed on"),
    }
    if hold.is_broken() {
        // The guard's end releases it, when the holder has stopped.
        return;
    }
    let under_way = shared.pending.begin();
    tokio::spawn(async move {
        // A keep-alive without a reply may have been carried out: what it extended blocks others for nothing.
        shared.release_until(&hold.request, shared.now() + kept.lease, 0).await.ok();
        drop(under_way);
    });
}

/// Sends a batch, and applies its reply whenever that comes.
fn keep_alive(shared: &Arc<Shared>, batch: Vec<Arc<Request>>) {
    let (shared, sent) = (shared.clone(), shared.now());
    let batch: Arc<[Arc<Request>]> = batch.into();
    let (name, requests) = (batch.first().map(|request| request.name.clone()), batch.clone());
    let mut sending = shared
        .start(Operation::Renew, name.as_ref(), |store| async move { store.keep_alive(&requests).await });
    tokio::spawn(async move {
        let reply = sending.answer().await.and_then(|outcomes| shared.complete(batch.len(), outcomes));
        shared.keeper.apply(&shared, sent, &batch, reply);
    });
}

impl Keeper {
    fn apply(
        &self,
        shared: &Arc<Shared>,
        sent: Moment,
        batch: &[Arc<Request>],
        reply: Result<Vec<KeepAlive>>,
    ) {
        let now = shared.now();
        let mut state = self.lock();
        let mut lost = Vec::new();
        match reply {
            Ok(outcomes) => {
                for (request, outcome) in batch.iter().zip(outcomes) {
                    lost.extend(state.apply(shared, sent, now, request, outcome));
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
                    state.failed(shared, now, request.id);
                }
            }
        }
        let next = state.next();
        self.look_by(state, shared, next);
        for kept in lost {
            after_loss(shared, kept);
        }
    }
}

impl State {
    /// When the next one is due.
    fn next(&self) -> Moment {
        let timer = self.timers.first().map_or(Moment::NEVER, |(at, _)| *at);
        self.queue.as_ref().map_or(timer, |queue| timer.min(queue.at))
    }

    /// Applies the outcome for one request; the hold if that has ended it.
    fn apply(
        &mut self,
        shared: &Shared,
        sent: Moment,
        now: Moment,
        request: &Request,
        outcome: KeepAlive,
    ) -> Option<Kept> {
        if outcome == KeepAlive::Unknown {
            tracing::debug!(lock.name = %request.name, "renewal not confirmed, retrying");
            self.failed(shared, now, request.id);
            return None;
        }
        let Self { holds, waiters, timers, .. } = self;
        if let Some(waiter) = waiters.get_mut(&request.id) {
            timers.remove(&(waiter.timer, request.id));
            (waiter.timer, waiter.in_flight) = (sent + request.place_ttl() / 3, false);
            timers.insert((waiter.timer, request.id));
            if let Some(entry) = waiter.entry.upgrade() {
                entry.apply(sent, &outcome);
            }
            return None;
        }
        let kept = holds.get_mut(&request.id)?;
        kept.in_flight = false;
        if kept.hold.has_left() {
            // Whoever has ended it releases it, and is about to have it forgotten.
            return None;
        }
        if sent < kept.since && !matches!(outcome, KeepAlive::Held { .. }) {
            // From before the grant. If the hold has ended since, the next keep-alive finds that out.
            return None;
        }
        let reason = match outcome {
            KeepAlive::Held { lease } => {
                shared.record(&request.name, Measured::Renewal("renewed"));
                if sent < kept.sent {
                    // An earlier one, whose reply was overtaken.
                    return None;
                }
                shared.record(&request.name, Measured::RenewSlack(kept.deadline().since(now)));
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
                shared.record(&request.name, Measured::Renewal("lost"));
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

    /// A keep-alive of `request` has failed, so its effect is unknown: it is retried soon.
    fn failed(&mut self, shared: &Shared, now: Moment, request: RequestId) {
        let Self { holds, waiters, timers, .. } = self;
        if let Some(waiter) = waiters.get_mut(&request) {
            timers.remove(&(waiter.timer, request));
            (waiter.timer, waiter.in_flight) = (now + waiter.request.place_ttl() / 10, false);
            timers.insert((waiter.timer, request));
        } else if let Some(kept) = holds.get_mut(&request) {
            shared.record(kept.hold.name(), Measured::Renewal("error"));
            let lease = kept.lease;
            let pause = kept.backoff.get_or_insert_with(|| Backoff::up_to(lease / 20)).next();
            (kept.renew_at, kept.in_flight) = (now + pause, false);
            kept.set_timer(timers);
        }
    }
}
