//! The acquisition of a lock: from the first claim until the lock is held or the acquisition is given up.
//!
//! An acquisition belongs to the store's I/O thread, so that dropping the caller's future at any point stops nothing half-way. Why
//! that matters, step by step:
//! 1. `acquire` sends a claim;
//! 2. the caller drops its future;
//! 3. a release is sent on another connection and overtakes the claim: it finds nothing to undo;
//! 4. the claim arrives and takes a lock that nobody owns: it blocks everybody for a lease.
//!
//! Here the release is sent only after the claim has answered. The exception is the first claim on a store that lets the caller drive
//! it (see [`foreground`](super::foreground)): if the caller drops that one, the release makes the store refuse it from then on.

use std::{
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use tokio::sync::{SemaphorePermit, oneshot};
use tracing::{Span, span};

use super::{
    backoff::Backoff,
    first_claim::{FirstClaim, claim_here},
    gauges::Gauge,
    keeper::QueueEntry,
    local_queue::LocalPosition,
    pending::Ticket,
    reentry::{Entered, Slot},
    shared::{Front, Running, Shared},
    tenure::Tenure,
};
use crate::{
    Error, Grant, Moment, NotAcquired, Operation, Order, Place, Progress, Request, Result, Standing, Wake,
    invariant, io, metrics::Measured,
};

/// The time the store has for its first answer, even if the caller would wait less: a wait of 5 ms means that long in the queue,
/// not that a store which takes 6 ms to answer has failed.
const FIRST_ANSWER: Duration = Duration::from_millis(500);

/// The longest that a caller whose wait has ended waits for its withdrawal from the queue.
const WITHDRAWAL: Duration = Duration::from_millis(500);

/// The longest pause before a failed claim is retried, more or less: a request that comes to its turn during an outage is not late
/// by more than a second when the store is back.
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

/// The shortest pause before the store is asked again without a notification.
const SHORTEST_CHECK: Duration = Duration::from_millis(1);

/// The longest pause before the next claim on a store that has stated a delay: it may end early, for instance because an
/// operator ends it.
const LONGEST_DELAY: Duration = Duration::from_secs(1);

/// How long an acquisition may last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) wait: Option<Duration>,
    pub(crate) outage: Duration,
}

/// Acquires the lock of `request`; where `reentrant`, by re-entering what its owner holds already.
pub(crate) async fn acquire(
    front: Arc<Front>,
    mut request: Request,
    reentrant: bool,
    mut limits: Limits,
    progress: Option<Progress>,
) -> Result<Arc<Tenure>> {
    let began = front.0.now();
    let span = tracing::info_span!(
        "polylock.acquire",
        lock.name = %request.name,
        lock.mode = %request.mode,
        lock.backend = front.0.backend(),
        lock.owner = %request.owner,
        lock.fencing_token = tracing::field::Empty,
        lock.wait_ms = tracing::field::Empty,
        lock.queue_position = tracing::field::Empty,
        otel.kind = "client",
        otel.status_code = tracing::field::Empty,
    );
    request.wants_position = progress.is_some() || tracing::enabled!(tracing::Level::DEBUG);
    loop {
        let outcome = once(&front, request.clone(), reentrant, limits, progress.clone(), &span).await;
        if let Ok(tenure) = &outcome
            && !span.in_scope(|| tenure.hold().receive())
        {
            // Granted while this future was not polled, and passed on: back to the end of the queue.
            request = request.again();
            limits.wait = limits.wait.map(|wait| (began + wait).since(front.0.now()));
            continue;
        }
        let waited = u64::try_from(front.0.now().since(began).as_millis()).unwrap_or(u64::MAX);
        span.record("lock.wait_ms", waited);
        let failed = outcome.as_ref().is_err_and(|error| !error.is_not_acquired());
        span.record("otel.status_code", if failed { "ERROR" } else { "OK" });
        if let Ok(tenure) = &outcome {
            span.record("lock.fencing_token", tenure.hold().token.get());
        }
        return outcome;
    }
}

async fn once(
    front: &Arc<Front>,
    request: Request,
    reentrant: bool,
    limits: Limits,
    progress: Option<Progress>,
    span: &Span,
) -> Result<Arc<Tenure>> {
    let (reply, answer) = oneshot::channel();
    let (given_up, position) = (Arc::new(OnceLock::new()), Arc::new(AtomicU32::new(0)));
    let caller = Caller { front: front.clone(), given_up: given_up.clone(), answered: false };
    let mut parts = Parts {
        front: front.clone(),
        request: Arc::new(request),
        reentrant,
        limits,
        began: front.0.now(),
        first: FirstClaim::NotSent,
        local: None,
        reply,
        given_up,
        position: position.clone(),
        progress,
        span: span.id(),
    };
    let outcome = match parts.claims_here() {
        Some((store, permit)) => match claim_here(parts, store, permit).await {
            Some(outcome) => caller.receives(outcome),
            None => caller.receive(answer).await,
        },
        None => {
            let mut acquisition = front.0.begin(Operation::Claim, run(parts))?;
            let polled = async { drop((&mut acquisition).await) };
            caller.receive(polled_beside(answer, polled)).await
        }
    };
    match position.load(Ordering::Relaxed) {
        0 => {}
        position => drop(span.record("lock.queue_position", position)),
    }
    outcome
}

/// The output of `answer`, while `work` that brings it is polled.
async fn polled_beside<T>(answer: impl Future<Output = T>, work: impl Future<Output = ()>) -> T {
    let mut answer = pin!(answer);
    tokio::select! {
        biased;
        answer = &mut answer => return answer,
        () = work => {}
    }
    answer.await
}

/// The caller's end of an acquisition. Dropped before the answer, it counts what is still to be undone as pending.
struct Caller {
    front: Arc<Front>,
    given_up: Arc<OnceLock<Ticket>>,
    answered: bool,
}

impl Caller {
    async fn receive<E>(
        self,
        answer: impl Future<Output = Result<Result<Arc<Tenure>>, E>>,
    ) -> Result<Arc<Tenure>> {
        let outcome = answer.await.unwrap_or_else(|_| {
            let cause = "the acquisition ended without an answer".to_owned();
            Err(io::failed(self.front.0.backend(), Operation::Claim, cause))
        });
        self.receives(outcome)
    }

    fn receives(mut self, outcome: Result<Arc<Tenure>>) -> Result<Arc<Tenure>> {
        self.answered = true;
        outcome
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if !self.answered {
            // The acquisition holds the other end of this cell until it has undone everything.
            self.given_up.get_or_init(|| self.front.0.pending.begin());
        }
    }
}

/// What an acquisition is made from.
pub(super) struct Parts {
    pub(super) front: Arc<Front>,
    pub(super) request: Arc<Request>,
    pub(super) reentrant: bool,
    limits: Limits,
    pub(super) began: Moment,
    pub(super) first: FirstClaim,
    /// The position among the waiters of this process, where it is joined before the first claim.
    pub(super) local: Option<LocalPosition>,
    reply: oneshot::Sender<Result<Arc<Tenure>>>,
    given_up: Arc<OnceLock<Ticket>>,
    /// The last queue position that the store has reported, counted from 1; 0 for none.
    position: Arc<AtomicU32>,
    /// Where the caller reads how far it is.
    progress: Option<Progress>,
    /// The parent of what is logged.
    span: Option<span::Id>,
}

/// Runs an acquisition to its end, on the I/O thread or in its context.
pub(super) async fn run(parts: Parts) {
    let Parts {
        front,
        request,
        reentrant,
        limits,
        began,
        first,
        local,
        mut reply,
        given_up,
        position,
        progress,
        span,
    } = parts;
    let shared = front.0.clone();
    let slot = reentrant.then(|| shared.reentry.slot(&request));
    let mut acquisition = Acquisition {
        shared: &shared,
        request: &request,
        limits,
        began,
        give_up: limits.wait.map_or(Moment::NEVER, |wait| began + wait),
        claim: None,
        may_have_entry: !matches!(first, FirstClaim::NotSent),
        first,
        waiting: None,
        local,
        position: &position,
        progress: progress.as_ref(),
        span: span.clone(),
    };
    let mut entered = None;
    let outcome = tokio::select! {
        biased;
        // Checked first, so that an abandoned acquisition does not claim again.
        () = reply.closed() => Ok(None),
        outcome = AssertUnwindSafe(acquisition.run(slot.as_ref(), &mut entered)).catch_unwind() => match outcome {
            Ok(outcome) => outcome.map(Some),
            Err(panic) => Err(io::failed(shared.backend(), Operation::Wait, io::panicked(&*panic))),
        },
    };
    record_acquire(&shared, &request, began, outcome_label(&outcome));
    let rollback = acquisition.stop();
    let answer = match outcome {
        Ok(Some(Acquired::Reentered(tenure))) => Ok(tenure),
        Ok(Some(Acquired::New { grant, sent })) => {
            let tenure = Tenure::begin(front, request, slot, grant, sent);
            if let Some(entered) = &mut entered {
                **entered = Arc::downgrade(&tenure);
            }
            Ok(tenure)
        }
        Ok(None) => {
            tracing::debug!(parent: span, lock.name = %request.name, "given up by the caller");
            drop(entered);
            rollback.run(&shared, &request).await;
            return drop(given_up);
        }
        Err(error) => {
            let undoing = rollback.needed.then(|| shared.pending.begin());
            drop(entered);
            let mut rollback = pin!(rollback.run(&shared, &request));
            if error.is_not_acquired() {
                // A caller that has waited long enough is out of the queue when it learns that, if the store answers.
                tokio::select! {
                    () = &mut rollback => {
                        drop(reply.send(Err(error)));
                        return drop((undoing, given_up));
                    }
                    () = shared.until(shared.now() + WITHDRAWAL) => {}
                }
            }
            drop(reply.send(Err(error)));
            rollback.await;
            return drop((undoing, given_up));
        }
    };
    drop(entered);
    // A guard that the caller does not want any more is dropped here, and dropping it releases the lock.
    drop(reply.send(answer));
    drop(given_up);
}

/// Measures an acquisition that has ended.
pub(super) fn record_acquire(shared: &Arc<Shared>, request: &Request, began: Moment, outcome: &'static str) {
    shared.record(&request.name, Measured::Acquire { took: shared.now().since(began), outcome });
}

fn outcome_label(outcome: &Result<Option<Acquired>>) -> &'static str {
    match outcome {
        Ok(Some(_)) => "acquired",
        Ok(None) => "cancelled",
        Err(Error::NotAcquired { reason: NotAcquired::Busy, .. }) => "busy",
        Err(Error::NotAcquired { .. }) => "timeout",
        Err(_) => "error",
    }
}

/// How the caller came to hold the lock.
enum Acquired {
    /// By a claim sent at `sent`.
    New { grant: Grant, sent: Moment },
    /// By entering what its owner held already.
    Reentered(Arc<Tenure>),
}

/// An acquisition under way.
struct Acquisition<'a> {
    shared: &'a Arc<Shared>,
    request: &'a Arc<Request>,
    limits: Limits,
    began: Moment,
    give_up: Moment,
    /// The claim that the caller has driven, until it is taken into account.
    first: FirstClaim,
    /// The claim in flight.
    claim: Option<Running<Standing>>,
    /// Whether the store may hold an entry of this request.
    may_have_entry: bool,
    /// Present once the request has had to wait.
    waiting: Option<Arc<Waiting>>,
    /// The position among the waiters of this process.
    local: Option<LocalPosition>,
    position: &'a AtomicU32,
    progress: Option<&'a Progress>,
    span: Option<span::Id>,
}

/// What an acquisition that has failed leaves to be undone.
struct Rollback {
    needed: bool,
    claim: Option<Running<Standing>>,
}

impl Rollback {
    async fn run(self, shared: &Arc<Shared>, request: &Arc<Request>) {
        if let Some(mut claim) = self.claim {
            // Its answer does not matter, its end does: see the module.
            drop(claim.answer().await);
        }
        if self.needed {
            // A failure has been logged; the lease ends it in any case.
            shared.release_until(request, shared.now() + request.ttl, 0).await.ok();
        }
    }
}

impl<'a> Acquisition<'a> {
    fn stop(self) -> Rollback {
        Rollback { needed: self.may_have_entry, claim: self.claim }
    }

    async fn run(&mut self, slot: Option<&Slot>, entered: &mut Option<Entered>) -> Result<Acquired> {
        if let Some(slot) = slot {
            let cell = if self.request.queues {
                tokio::select! {
                    biased;
                    cell = slot.enter() => cell,
                    () = self.shared.until(self.give_up) => return Err(self.timed_out()),
                }
            } else {
                // Another acquisition of this owner is under way: a try does not wait for it.
                slot.try_enter().ok_or_else(|| self.not_acquired(NotAcquired::Busy))?
            };
            if let Some(tenure) = cell.upgrade().filter(|tenure| tenure.hold().check().is_ok()) {
                return tenure.hold().admits(self.request.mode).map(|()| Acquired::Reentered(tenure));
            }
            *entered = Some(cell);
        }
        self.claim_until_held().await
    }

    async fn claim_until_held(&mut self) -> Result<Acquired> {
        let ordered = self.shared.store.backend.capabilities().order == Order::Arrival;
        if !ordered && self.request.queues {
            self.first_in_line().await?;
        }
        let mut backoff = Backoff::up_to(LONGEST_PAUSE.min(self.request.place_ttl() / 4));
        let mut failing: Option<(Moment, Error)> = None;
        loop {
            let (sent, answer) = match std::mem::replace(&mut self.first, FirstClaim::NotSent) {
                FirstClaim::Answered(sent, answer) => (sent, answer),
                FirstClaim::NotSent | FirstClaim::Unknown => self.claim(failing.is_some()).await?,
            };
            let error = match answer {
                Ok(Standing::Held(grant)) if invariant::deadline(sent, grant.lease) > self.shared.now() => {
                    return Ok(Acquired::New { grant, sent });
                }
                Ok(Standing::Held(_)) => self.shared.silent(Operation::Claim),
                Ok(Standing::Queued(_)) if !self.request.queues => {
                    self.may_have_entry = false;
                    return Err(self.not_acquired(NotAcquired::Busy));
                }
                Ok(Standing::Queued(place)) => {
                    failing = None;
                    if let Some(progress) = self.progress {
                        progress.queued(place.ahead);
                    }
                    match self.wait(&place, sent).await? {
                        Ok(Woken::Stale) => {
                            backoff.reset();
                            continue;
                        }
                        Ok(Woken::Granted { grant, sent })
                            if invariant::deadline(sent, grant.lease) > self.shared.now() =>
                        {
                            return Ok(Acquired::New { grant, sent });
                        }
                        Ok(Woken::Granted { .. }) => continue,
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            // A delay that the store states is no outage: it ends an outage, and is waited out within the caller's limit.
            let delay = error.retry_after().map(|delay| delay.min(LONGEST_DELAY));
            let since = failing.as_ref().filter(|_| delay.is_none()).map_or(sent, |(since, _)| *since);
            let within_outage = delay.is_some() || self.shared.now().since(since) < self.limits.outage;
            if !error.is_temporary() || !self.request.queues || !within_outage {
                return Err(error);
            }
            tracing::debug!(
                parent: self.span.clone(), lock.name = %self.request.name, error = &error as &dyn std::error::Error,
                "store unavailable, retrying",
            );
            if let (Some(progress), None) = (self.progress, delay) {
                progress.failing(since, self.give_up.min(since + self.limits.outage), &error);
            }
            failing = Some((since, error));
            let pause = delay.unwrap_or_else(|| backoff.next());
            let again = (self.shared.now() + pause).min(self.give_up);
            self.shared.until(again).await;
            if again == self.give_up {
                return Err(failing.map_or_else(|| self.timed_out(), |(_, error)| error));
            }
        }
    }

    /// Waits until no other request of this process is ahead, for a store that keeps no queue.
    async fn first_in_line(&mut self) -> Result<()> {
        let join = || self.shared.local_queues.join(&self.request.name);
        let position = self.local.take().unwrap_or_else(join);
        if !position.is_first() {
            let waiting = self.begin_waiting(None);
            tokio::select! {
                biased;
                () = position.first() => {}
                () = waiting.shared.until(self.give_up) => return Err(self.timed_out()),
            }
        }
        self.local = Some(position);
        Ok(())
    }

    /// Claims; with the answer comes when the claim was sent. The outer error ends the acquisition, the inner one is the store's.
    async fn claim(&mut self, failing: bool) -> Result<(Moment, Result<Standing>)> {
        // Until the store has answered once, it is not known whether another holds the lock.
        let known = self.waiting.is_some() && !failing;
        let _permit = self.permit(known).await?;
        let sent = self.shared.now();
        let by = if known { self.give_up } else { self.give_up.max(sent + FIRST_ANSWER) };
        self.may_have_entry = true;
        let request = self.request.clone();
        let claim = self.claim.insert(self.shared.start(
            Operation::Claim,
            Some(&self.request.name),
            |store| async move { store.claim(&request).await },
        ));
        let answer = tokio::select! {
            biased;
            answer = claim.answer() => answer,
            () = self.shared.until(by) => {
                return Err(if known { self.timed_out() } else { self.shared.silent(Operation::Claim) });
            }
        };
        self.claim = None;
        Ok((sent, answer))
    }

    /// Waits until one more claim may be under way. If that takes too long although the store answers, the claims ahead are this
    /// process's own, and the store is not unavailable: the caller's wait has ended.
    async fn permit(&mut self, known: bool) -> Result<Option<SemaphorePermit<'a>>> {
        let shared = self.shared;
        let answers = || shared.answers.load(Ordering::Relaxed);
        let (seen, first_answer) = (answers(), shared.now() + FIRST_ANSWER);
        let by = if known { self.give_up } else { self.give_up.max(first_answer) };
        tokio::select! {
            biased;
            permit = shared.claims.acquire() => Ok(permit.ok()),
            () = shared.until(by) => {
                let is_available = known || answers() != seen;
                Err(if is_available { self.timed_out() } else { shared.silent(Operation::Claim) })
            }
        }
    }

    /// Waits for a wake-up after a claim that was sent at `sent`. The outer error ends the acquisition, the inner one is the store's.
    async fn wait(&mut self, place: &Place, sent: Moment) -> Result<Result<Woken>> {
        let waiting = self.begin_waiting(place.ahead);
        if let Some(ahead) = place.ahead {
            self.position.store(ahead.saturating_add(1), Ordering::Relaxed);
        }
        let (shared, request) = (self.shared, self.request);
        shared.keeper.wait(shared, request, &waiting.entry, sent);
        let local = self.local.get_or_insert_with(|| shared.local_queues.join(&request.name));
        let bound = Place::MAX_RECHECK.min(request.place_ttl() / 3).max(SHORTEST_CHECK);
        let check = async {
            let mut pause = place.recheck_after.clamp(SHORTEST_CHECK, bound);
            if !local.is_first() {
                local.first().await;
                // The hint was about another time.
                pause = bound;
            }
            shared.until(shared.now() + pause).await;
        };
        tokio::select! {
            biased;
            woken = shared.store.backend.wait(request) => Ok(woken.map(|wake| match wake {
                Wake::Stale => Woken::Stale,
                Wake::Granted(grant) => Woken::Granted { grant, sent: waiting.entry.granted_after(sent) },
            })),
            () = waiting.entry.left() => Ok(Ok(Woken::Stale)),
            () = check => Ok(Ok(Woken::Stale)),
            () = shared.until(self.give_up) => Err(self.timed_out()),
        }
    }

    fn begin_waiting(&mut self, ahead: Option<u32>) -> Arc<Waiting> {
        let (shared, request, span) = (self.shared, self.request, &self.span);
        let waiting = self.waiting.get_or_insert_with(|| {
            tracing::debug!(parent: span.clone(), lock.name = %request.name, ahead, "queued");
            Waiting::begin(shared, request)
        });
        waiting.clone()
    }

    fn timed_out(&self) -> Error {
        self.not_acquired(NotAcquired::TimedOut { waited: self.shared.now().since(self.began) })
    }

    fn not_acquired(&self, reason: NotAcquired) -> Error {
        Error::NotAcquired { name: self.request.name.clone(), reason }
    }
}

/// How a wait ended.
enum Woken {
    /// The last claim's answer may be stale.
    Stale,
    /// The lock was granted, in reply to what was sent at `sent` or later.
    Granted { grant: Grant, sent: Moment },
}

/// One waiter: counted in the metrics, and kept alive in the queue.
struct Waiting {
    shared: Arc<Shared>,
    request: Arc<Request>,
    entry: Arc<QueueEntry>,
}

impl Waiting {
    fn begin(shared: &Arc<Shared>, request: &Arc<Request>) -> Arc<Self> {
        shared.gauges.change(shared, Gauge::Waiting, &request.name, 1);
        Arc::new(Self { shared: shared.clone(), request: request.clone(), entry: Arc::default() })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.shared.keeper.forget_waiter(self.request.id);
        self.shared.gauges.change(&self.shared, Gauge::Waiting, &self.request.name, -1);
    }
}
