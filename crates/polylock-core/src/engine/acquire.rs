//! The acquisition of a lock as its caller sees it: begun, answered, or given up and undone. [`acquisition`](super::acquisition) is the
//! loop.
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
use tokio::sync::oneshot;
use tracing::{Span, span};

use super::{
    acquisition::{Acquired, Acquisition},
    first_claim::{FirstClaim, claim_here},
    local_queue::LocalPosition,
    pending::Ticket,
    shared::{Front, Running, Shared},
    tenure::Tenure,
};
use crate::{
    Error, Moment, NotAcquired, Operation, Progress, Request, Result, Standing, io, metrics::Measured,
};

/// The longest that a caller whose wait has ended waits for its withdrawal from the queue.
const WITHDRAWAL: Duration = Duration::from_millis(500);

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

/// What an acquisition that has failed leaves to be undone.
pub(super) struct Rollback {
    pub(super) needed: bool,
    pub(super) claim: Option<Running<Standing>>,
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
