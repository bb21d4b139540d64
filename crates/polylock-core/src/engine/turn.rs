//! The one waiting loop: from the first claim until the lock is held or the attempt is given up.
//!
//! An attempt belongs to the `polylock-io` thread (the caller takes its first step), so that dropping the caller's future at
//! any point stops nothing half-way. Why that matters, step by step:
//! 1. `acquire` sends a claim;
//! 2. the caller drops its future;
//! 3. a release is sent on another connection and overtakes the claim: it finds nothing to undo;
//! 4. the claim arrives and takes a lock that nobody owns: it blocks everybody for a lease.
//!
//! Here the release is sent only after the claim has answered.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::FutureExt;
use tokio::sync::oneshot;
use tracing::Instrument;

use super::{
    backoff::Backoff,
    pending::Ticket,
    reentry::{Entered, Slot},
    shared::{Front, Running, Shared},
    tenure::Tenure,
};
use crate::{
    Error, Grant, Moment, NotAcquired, Operation, Place, Request, Result, Standing, Wake, invariant, io,
    metrics::Measured,
};

/// What the store has for its first answer, though the caller would wait less: a wait of 5 ms means that long in the
/// queue, not that a store which takes 6 ms to answer has failed.
const FIRST_ANSWER: Duration = Duration::from_millis(500);

/// The longest pause before a claim that failed is sent again, or so: who comes to its turn during an outage is not late by
/// more than a second when the store is back.
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

/// The longest pause before the next claim on a store that has stated a delay: it may end early, for instance because an
/// operator ends it.
const LONGEST_DELAY: Duration = Duration::from_secs(1);

/// How long an attempt may last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) wait: Option<Duration>,
    pub(crate) outage: Duration,
}

/// Acquires `request`'s lock; where `reentrant`, by re-entering what its owner holds already.
pub(crate) async fn acquire(
    front: Arc<Front>,
    request: Request,
    reentrant: bool,
    limits: Limits,
) -> Result<Arc<Tenure>> {
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
    let (reply, answer) = oneshot::channel();
    let given_up = Arc::new(OnceLock::new());
    let caller = Caller { front: front.clone(), given_up: given_up.clone(), answered: false };
    let backend = front.0.backend();
    let shared = front.0.clone();
    let attempt = attempt(front, Arc::new(request), reentrant, limits, reply, given_up);
    shared.begin(attempt.instrument(span))?;
    caller.hears(backend, answer).await
}

/// The caller's end of an attempt. Dropped before the answer, it counts what is still to be undone as pending.
struct Caller {
    front: Arc<Front>,
    given_up: Arc<OnceLock<Ticket>>,
    answered: bool,
}

impl Caller {
    async fn hears(
        mut self,
        backend: &'static str,
        answer: oneshot::Receiver<Result<Arc<Tenure>>>,
    ) -> Result<Arc<Tenure>> {
        let answer = answer.await;
        self.answered = true;
        answer.unwrap_or_else(|_| {
            Err(io::failed(backend, Operation::Claim, "the attempt ended unanswered".to_owned()))
        })
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if !self.answered {
            // The attempt holds the other end of this cell until it has undone everything.
            self.given_up.get_or_init(|| self.front.0.pending.begin());
        }
    }
}

async fn attempt(
    front: Arc<Front>,
    request: Arc<Request>,
    reentrant: bool,
    limits: Limits,
    mut reply: oneshot::Sender<Result<Arc<Tenure>>>,
    given_up: Arc<OnceLock<Ticket>>,
) {
    let shared = front.0.clone();
    let began = shared.now();
    let slot = reentrant.then(|| shared.reentry.slot(&request));
    let mut turn = Turn {
        shared: &shared,
        request: &request,
        limits,
        began,
        give_up: limits.wait.map_or(Moment::NEVER, |wait| began + wait),
        claim: None,
        traces: false,
        waiting: None,
    };
    let mut entered = None;
    let outcome = tokio::select! {
        biased;
        // First: whom nobody waits for any more does not claim again.
        () = reply.closed() => Ok(None),
        outcome = AssertUnwindSafe(turn.comes(slot.as_ref(), &mut entered)).catch_unwind() => match outcome {
            Ok(outcome) => outcome.map(Some),
            Err(panic) => Err(io::failed(shared.backend(), Operation::Wait, io::panicked(&*panic))),
        },
    };
    shared.record(
        &request.name,
        Measured::Acquire { took: shared.now().since(began), outcome: word(&outcome) },
    );
    let undo = turn.stop();
    let answer = match outcome {
        Ok(Some(Mine::Again(tenure))) => Ok(tenure),
        Ok(Some(Mine::Granted { grant, sent })) => {
            let waited = u64::try_from(shared.now().since(began).as_millis()).unwrap_or(u64::MAX);
            tracing::Span::current()
                .record("lock.fencing_token", grant.token.get())
                .record("lock.wait_ms", waited)
                .record("otel.status_code", "OK");
            let tenure = Tenure::begin(front, request, slot, grant, sent);
            if let Some(entered) = &mut entered {
                **entered = Arc::downgrade(&tenure);
            }
            Ok(tenure)
        }
        Ok(None) => {
            tracing::debug!("given up by the caller");
            drop(entered);
            undo.run(&shared, &request).await;
            return drop(given_up);
        }
        Err(error) => {
            tracing::Span::current()
                .record("otel.status_code", if error.is_not_acquired() { "OK" } else { "ERROR" });
            let undoing = undo.needed.then(|| shared.pending.begin());
            drop(entered);
            drop(reply.send(Err(error)));
            undo.run(&shared, &request).await;
            return drop((undoing, given_up));
        }
    };
    drop(entered);
    // What nobody wants any more is dropped here, and dropping it releases the lock.
    drop(reply.send(answer));
    drop(given_up);
}

fn word(outcome: &Result<Option<Mine>>) -> &'static str {
    match outcome {
        Ok(Some(_)) => "acquired",
        Ok(None) => "cancelled",
        Err(Error::NotAcquired { reason: NotAcquired::Busy, .. }) => "busy",
        Err(Error::NotAcquired { .. }) => "timeout",
        Err(_) => "error",
    }
}

/// How the lock became the caller's.
enum Mine {
    /// By a claim sent at `sent`.
    Granted { grant: Grant, sent: Moment },
    /// Its owner held it already.
    Again(Arc<Tenure>),
}

/// An attempt under way.
struct Turn<'a> {
    shared: &'a Arc<Shared>,
    request: &'a Arc<Request>,
    limits: Limits,
    began: Moment,
    give_up: Moment,
    /// The claim in flight.
    claim: Option<Running<Standing>>,
    /// Whether the store may hold anything of this request.
    traces: bool,
    /// Counts this one among the waiters of the metrics.
    waiting: Option<Waiting>,
}

/// What is to be done about an attempt that came to nothing.
struct Undo {
    needed: bool,
    claim: Option<Running<Standing>>,
}

impl Undo {
    async fn run(self, shared: &Arc<Shared>, request: &Arc<Request>) {
        if let Some(mut claim) = self.claim {
            // Its answer does not matter, its end does: see the module.
            drop(claim.answer().await);
        }
        if self.needed {
            // Already told in the log; the lease ends it in any case.
            shared.release_until(request, shared.now() + request.ttl).await.ok();
        }
    }
}

impl Turn<'_> {
    fn stop(self) -> Undo {
        Undo { needed: self.traces, claim: self.claim }
    }

    async fn comes(&mut self, slot: Option<&Slot>, mine: &mut Option<Entered>) -> Result<Mine> {
        if let Some(slot) = slot {
            let entered = tokio::select! {
                biased;
                entered = slot.enter() => entered,
                () = self.shared.until(self.give_up) => return Err(self.too_late()),
            };
            if let Some(tenure) = entered.upgrade().filter(|tenure| tenure.hold().check().is_ok()) {
                return tenure.hold().admits(self.request.mode).map(|()| Mine::Again(tenure));
            }
            *mine = Some(entered);
        }
        self.claim_until_held().await
    }

    async fn claim_until_held(&mut self) -> Result<Mine> {
        let mut backoff = Backoff::up_to(LONGEST_PAUSE.min(self.request.place_ttl() / 4));
        let mut failing: Option<(Moment, Error)> = None;
        loop {
            let sent = self.shared.now();
            let error = match self.claim(&failing).await? {
                Ok(Standing::Held(grant)) if invariant::deadline(sent, grant.lease) > self.shared.now() => {
                    return Ok(Mine::Granted { grant, sent });
                }
                Ok(Standing::Held(_)) => self.shared.silent(Operation::Claim),
                Ok(Standing::Queued(_)) if !self.request.queues => {
                    self.traces = false;
                    return Err(self.not_acquired(NotAcquired::Busy));
                }
                Ok(Standing::Queued(place)) => {
                    failing = None;
                    match self.wait(&place).await? {
                        Ok(Wake::Stale) => {
                            backoff.reset();
                            continue;
                        }
                        Ok(Wake::Granted(grant))
                            if invariant::deadline(sent, grant.lease) > self.shared.now() =>
                        {
                            return Ok(Mine::Granted { grant, sent });
                        }
                        Ok(Wake::Granted(_)) => continue,
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
            tracing::debug!(error = &error as &dyn std::error::Error, "store unavailable, trying again");
            failing = Some((since, error));
            let pause = delay.unwrap_or_else(|| backoff.next());
            let again = (self.shared.now() + pause).min(self.give_up);
            self.shared.until(again).await;
            if again == self.give_up {
                return Err(failing.map_or_else(|| self.too_late(), |(_, error)| error));
            }
        }
    }

    /// Claims. The outer error ends the attempt, the inner one is the store's.
    async fn claim(&mut self, failing: &Option<(Moment, Error)>) -> Result<Result<Standing>> {
        self.traces = true;
        // As long as nobody knows whether it is held by another, only the store can tell.
        let known = self.waiting.is_some() && failing.is_none();
        let by = if known { self.give_up } else { self.give_up.max(self.shared.now() + FIRST_ANSWER) };
        let claim = self.claim.insert(self.shared.start(
            Operation::Claim,
            self.request,
            |store, request| async move { store.claim(&request).await },
        ));
        let answer = tokio::select! {
            biased;
            answer = claim.answer() => answer,
            () = self.shared.until(by) => {
                return Err(if known { self.too_late() } else { self.shared.silent(Operation::Claim) });
            }
        };
        self.claim = None;
        Ok(answer)
    }

    /// Waits for the place to change. The outer error ends the attempt, the inner one is the store's.
    async fn wait(&mut self, place: &Place) -> Result<Result<Wake>> {
        self.waiting.get_or_insert_with(|| {
            tracing::debug!(ahead = place.ahead, "queued");
            Waiting::begin(self.shared, self.request)
        });
        if let Some(ahead) = place.ahead {
            tracing::Span::current().record("lock.queue_position", ahead);
        }
        let bound = Place::MAX_RECHECK.min(self.request.place_ttl() / 3);
        let recheck =
            place.recheck_after.clamp(Duration::from_millis(1), bound.max(Duration::from_millis(1)));
        let recheck = self.shared.now() + recheck;
        tokio::select! {
            biased;
            woken = self.shared.store.backend.wait(self.request) => Ok(woken),
            () = self.shared.until(recheck.min(self.give_up)) => {
                if recheck < self.give_up { Ok(Ok(Wake::Stale)) } else { Err(self.too_late()) }
            }
        }
    }

    fn too_late(&self) -> Error {
        self.not_acquired(NotAcquired::TimedOut { waited: self.shared.now().since(self.began) })
    }

    fn not_acquired(&self, reason: NotAcquired) -> Error {
        Error::NotAcquired { name: self.request.name.clone(), reason }
    }
}

/// One waiter in the metrics.
struct Waiting {
    shared: Arc<Shared>,
    request: Arc<Request>,
}

impl Waiting {
    fn begin(shared: &Arc<Shared>, request: &Arc<Request>) -> Self {
        shared.record(&request.name, Measured::Waiting(1));
        Self { shared: shared.clone(), request: request.clone() }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.shared.record(&self.request.name, Measured::Waiting(-1));
    }
}
