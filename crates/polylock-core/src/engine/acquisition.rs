//! The loop of an acquisition: claims, waits and claims again, until the lock is held or the acquisition has to end.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::sync::SemaphorePermit;
use tracing::span;

use super::{
    acquire::{Limits, Rollback},
    backoff::Backoff,
    first_claim::FirstClaim,
    gauges::Gauge,
    keeper::QueueEntry,
    local_queue::LocalPosition,
    reentry::{Entered, Slot},
    shared::{Running, Shared},
    tenure::Tenure,
};
use crate::{
    Error, Grant, Moment, NotAcquired, Operation, Order, Place, Progress, Request, Result, Standing, Wake,
    invariant,
};

/// The time the store has for its first answer, even if the caller would wait less: a wait of 5 ms means that long in the queue,
/// not that a store which takes 6 ms to answer has failed.
const FIRST_ANSWER: Duration = Duration::from_millis(500);

/// The longest pause before a failed claim is retried, more or less: a request that comes to its turn during an outage is not late
/// by more than a second when the store is back.
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

/// The shortest pause before the store is asked again without a notification.
const SHORTEST_CHECK: Duration = Duration::from_millis(1);

/// The longest pause before the next claim on a store that has stated a delay: it may end early, for instance because an
/// operator ends it.
const LONGEST_DELAY: Duration = Duration::from_secs(1);

/// How the caller came to hold the lock.
pub(super) enum Acquired {
    /// By a claim sent at `sent`.
    New { grant: Grant, sent: Moment },
    /// By entering what its owner held already.
    Reentered(Arc<Tenure>),
}

/// An acquisition under way.
pub(super) struct Acquisition<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) request: &'a Arc<Request>,
    pub(super) limits: Limits,
    pub(super) began: Moment,
    pub(super) give_up: Moment,
    /// The claim that the caller has driven, until it is taken into account.
    pub(super) first: FirstClaim,
    /// The claim in flight.
    pub(super) claim: Option<Running<Standing>>,
    /// Whether the store may hold an entry of this request.
    pub(super) may_have_entry: bool,
    /// Present once the request has had to wait.
    pub(super) waiting: Option<Arc<Waiting>>,
    /// The position among the waiters of this process.
    pub(super) local: Option<LocalPosition>,
    pub(super) position: &'a AtomicU32,
    pub(super) progress: Option<&'a Progress>,
    pub(super) span: Option<span::Id>,
}

impl<'a> Acquisition<'a> {
    pub(super) fn stop(self) -> Rollback {
        Rollback { needed: self.may_have_entry, claim: self.claim }
    }

    pub(super) async fn run(
        &mut self,
        slot: Option<&Slot>,
        entered: &mut Option<Entered>,
    ) -> Result<Acquired> {
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
            let (sent, answer) = match mem::replace(&mut self.first, FirstClaim::NotSent) {
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
pub(super) struct Waiting {
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
