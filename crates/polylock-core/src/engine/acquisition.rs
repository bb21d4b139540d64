//! The loop of an acquisition: claims, waits and claims again, until the lock is held or the acquisition must end.

use std::{
    mem,
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::sync::SemaphorePermit;
use tracing::span;

use super::{
    backoff::Backoff,
    context::{Running, StoreContext},
    failing::FailingSince,
    gauges::Gauge,
    hold_limits::HoldLimits,
    keeper::{Keeper, WaiterLease},
    local_queue::LocalPosition,
    queue_reader::QueueReader,
    shared_hold::{Entered, SharedHold, Slot},
};
use crate::{
    ClaimOutcome, Error, Grant, Moment, NotAcquired, Operation, Order, Progress, QueuePosition, Request,
    Result, Wake, bug::Bug, deadline, process::has_bug,
};

/// The time limit for the store's first reply, even if the caller would wait less: a wait of 5 ms limits the time in the queue, and
/// does not mean that a store has failed that takes 6 ms to reply.
pub(super) const FIRST_REPLY: Duration = Duration::from_millis(500);

/// The longest pause before a failed claim is retried, before the jitter: a request that reaches the head of the queue during an
/// outage is at most a second late when the store is back.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_millis(400);

/// The shortest pause before the next claim without a notification.
const SHORTEST_CHECK: Duration = Duration::from_millis(1);

/// The longest pause before the next claim on a store that has stated a delay: the delay may end early, for example because an
/// operator ends it.
pub(super) const LONGEST_DELAY: Duration = Duration::from_secs(1);

/// The time limits of an acquisition.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    pub(crate) wait: Option<Duration>,
    /// The longest outage; zero if the request fails with its first error.
    pub(crate) outage: Duration,
    /// The outage so far. The steps of one acquisition share it.
    pub(crate) failing: FailingSince,
    pub(crate) deadlock_check: Option<Duration>,
    /// The limits of the hold that begins.
    pub(crate) hold: HoldLimits,
}

/// The state of the claim that the caller has driven.
#[derive(Debug)]
pub(super) enum FirstClaim {
    NotSent,
    /// The claim may have reached the store, and its outcome is unknown.
    Unknown,
    /// The claim was sent at that time, and the store has replied.
    Replied(Moment, Result<ClaimOutcome>),
}

/// The outcome of an acquisition that has succeeded.
pub(super) enum Acquired {
    /// The lock was granted to a claim sent at `sent`.
    New { grant: Grant, sent: Moment },
    /// The request has entered the hold that its owner already had.
    Reentered(Weak<SharedHold>),
}

/// An acquisition in progress.
pub(super) struct Acquisition<'a> {
    pub(super) context: &'a Arc<StoreContext>,
    pub(super) keeper: &'a Arc<Keeper>,
    pub(super) request: &'a Arc<Request>,
    pub(super) limits: Limits,
    pub(super) began: Moment,
    pub(super) give_up: Moment,
    /// The claim that the caller has driven, until it is taken into account.
    pub(super) first: FirstClaim,
    /// The claim in flight.
    pub(super) claim: Option<Running<ClaimOutcome>>,
    /// True if the store may have an entry of this request.
    pub(super) may_have_entry: bool,
    /// `Some` once the request has had to wait.
    pub(super) waiting: Option<Arc<Waiting>>,
    /// The position among the waiters of this process.
    pub(super) local: Option<LocalPosition>,
    pub(super) position: &'a AtomicU32,
    pub(super) progress: Option<&'a Progress>,
    /// Reads the queue for `progress`, once the request waits.
    pub(super) reader: Option<QueueReader>,
    pub(super) span: Option<span::Id>,
}

impl<'a> Acquisition<'a> {
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
                    () = self.context.until(self.give_up) => return Err(self.timed_out()),
                }
            } else {
                // Another acquisition of this owner is in progress, and a try does not wait for it.
                slot.try_enter().ok_or_else(|| self.not_acquired(NotAcquired::Busy))?
            };
            if let Some(shared_hold) = cell.upgrade().filter(|shared_hold| shared_hold.hold().check().is_ok())
            {
                return shared_hold
                    .hold()
                    .admits(self.request.mode)
                    .map(|()| Acquired::Reentered(Arc::downgrade(&shared_hold)));
            }
            *entered = Some(cell);
        }
        self.claim_until_held().await
    }

    async fn claim_until_held(&mut self) -> Result<Acquired> {
        let ordered = self.context.store.backend.capabilities().order == Order::Fifo;
        if !ordered && self.request.queues {
            self.wait_until_first().await?;
        }
        let is_first_unknown = matches!(self.first, FirstClaim::Unknown) && !has_bug(Bug::UnreleasedTry);
        let mut backoff = Backoff::up_to(LONGEST_PAUSE.min(self.request.queue_lease() / 4));
        let mut failing: Option<Error> = None;
        loop {
            let (sent, reply) = match mem::replace(&mut self.first, FirstClaim::NotSent) {
                FirstClaim::Replied(sent, reply) => (sent, reply),
                FirstClaim::NotSent | FirstClaim::Unknown => match self.claim(failing.is_some()).await {
                    Ok(reply) => reply,
                    // The store's last error states more than the end of the wait.
                    Err(ended) => return Err(failing.unwrap_or(ended)),
                },
            };
            let (sent, error) = match reply {
                Ok(ClaimOutcome::Granted(grant)) if deadline::of(sent, grant.lease) > self.context.now() => {
                    self.limits.failing.replied();
                    return Ok(Acquired::New { grant, sent });
                }
                Ok(ClaimOutcome::Granted(_)) => (sent, self.context.reply_timed_out(Operation::Claim)),
                Ok(ClaimOutcome::Queued(position)) if !self.request.queues => {
                    self.limits.failing.replied();
                    // A first claim with an unknown outcome may still be delivered, and be granted.
                    self.may_have_entry = is_first_unknown || position.may_be_granted_late;
                    return Err(self.not_acquired(NotAcquired::Busy));
                }
                Ok(ClaimOutcome::Queued(position)) => {
                    failing = None;
                    self.limits.failing.replied();
                    if let Some(progress) = self.progress {
                        progress.queued(position.ahead);
                    }
                    match self.wait(&position, sent).await? {
                        Ok(Woken::Stale) => {
                            backoff.reset();
                            continue;
                        }
                        Ok(Woken::Granted { grant, sent })
                            if deadline::of(sent, grant.lease) > self.context.now() =>
                        {
                            return Ok(Acquired::New { grant, sent });
                        }
                        Ok(Woken::Granted { .. }) => continue,
                        // The store may have replied to a claim long ago.
                        Err(error) => (self.context.now(), error),
                    }
                }
                Err(error) => (sent, error),
            };
            // A delay that the store states is no outage: it ends an outage, and is waited out within the caller's limit.
            let delay = error.retry_after().map(|delay| delay.min(LONGEST_DELAY));
            let since = self.limits.failing.failed(&error, sent);
            let within_outage = delay.is_some() || self.context.now().since(since) < self.limits.outage;
            if !error.is_temporary() || self.limits.outage.is_zero() || !within_outage {
                return Err(error);
            }
            tracing::debug!(
                parent: self.span.clone(), lock.name = %self.request.name, error = &error as &dyn std::error::Error,
                "store unavailable, retrying",
            );
            if let (Some(progress), None) = (self.progress, delay) {
                progress.failing(since, self.give_up.min(since + self.limits.outage), &error);
            }
            failing = Some(error);
            let pause = delay.unwrap_or_else(|| backoff.next());
            let again = (self.context.now() + pause).min(self.give_up);
            self.context.until(again).await;
            if again == self.give_up {
                return Err(failing.unwrap_or_else(|| self.timed_out()));
            }
        }
    }

    /// Waits until no other request of this process is ahead, for a store without a queue.
    async fn wait_until_first(&mut self) -> Result<()> {
        let join = || self.context.local_queues.join(&self.request.name, None);
        let position = self.local.take().unwrap_or_else(join);
        if !position.is_first() {
            self.begin_waiting(None);
            tokio::select! {
                biased;
                () = position.first() => {}
                () = self.context.until(self.give_up) => return Err(self.timed_out()),
            }
        }
        self.local = Some(position);
        Ok(())
    }

    /// Claims, and returns the time at which the claim was sent with the reply. The outer error ends the acquisition, the inner one
    /// is the store's.
    async fn claim(&mut self, failing: bool) -> Result<(Moment, Result<ClaimOutcome>)> {
        // Until the first reply of the store, it is unknown if another request holds the lock.
        let known = self.waiting.is_some() && !failing;
        let _permit = self.permit(known).await?;
        let sent = self.context.now();
        let by = if known { self.give_up } else { self.give_up.max(sent + FIRST_REPLY) };
        self.may_have_entry = true;
        let request = self.request.clone();
        let claim = self.claim.insert(self.context.start(
            Operation::Claim,
            Some(&self.request.name),
            |store| async move { store.claim(&request).await },
        ));
        let reply = tokio::select! {
            biased;
            reply = claim.reply() => reply,
            () = self.context.until(by) => {
                return Err(if known { self.timed_out() } else { self.context.reply_timed_out(Operation::Claim) });
            }
        };
        self.claim = None;
        Ok((sent, reply))
    }

    /// Waits for a permit for one more claim in flight. If that takes too long although the store replies, the claims ahead are
    /// those of this process, and the store is not unavailable: the caller's wait has expired.
    async fn permit(&mut self, known: bool) -> Result<Option<SemaphorePermit<'a>>> {
        let context = self.context;
        let replies = || context.replies.load(Ordering::Relaxed);
        let (seen, first_reply) = (replies(), context.now() + FIRST_REPLY);
        let by = if known { self.give_up } else { self.give_up.max(first_reply) };
        tokio::select! {
            biased;
            permit = context.claims.acquire() => Ok(permit.ok()),
            () = context.until(by) => {
                let is_available = known || replies() != seen;
                Err(if is_available { self.timed_out() } else { context.reply_timed_out(Operation::Claim) })
            }
        }
    }

    /// Waits for a wake-up after a claim that was sent at `sent`. The outer error ends the acquisition, the inner one is the
    /// store's.
    async fn wait(&mut self, position: &QueuePosition, sent: Moment) -> Result<Result<Woken>> {
        let waiting = self.begin_waiting(position.ahead);
        if let Some(ahead) = position.ahead {
            self.position.store(ahead.saturating_add(1), Ordering::Relaxed);
        }
        let (context, request) = (self.context, self.request);
        self.keeper.wait(request, &waiting.entry, sent);
        let join = || context.local_queues.join(&request.name, position.number);
        let local = self.local.get_or_insert_with(join);
        if let Some(number) = position.number {
            local.move_to(number);
        }
        let bound = QueuePosition::MAX_RECHECK.min(request.queue_lease() / 3).max(SHORTEST_CHECK);
        let check = async {
            let mut pause = position.recheck_after.clamp(SHORTEST_CHECK, bound);
            if !local.is_first() {
                local.first().await;
                // The hint is out of date.
                pause = bound;
            }
            context.until(context.now() + pause).await;
        };
        tokio::select! {
            biased;
            woken = context.store.backend.wait(request) => Ok(woken.map(|wake| match wake {
                Wake::Stale => Woken::Stale,
                Wake::Granted(grant) => Woken::Granted { grant, sent: waiting.entry.granted_after(sent) },
            }).map_err(|error| context.revoked(Operation::Wait, error))),
            () = waiting.entry.left_queue() => Ok(Ok(Woken::Stale)),
            () = check => Ok(Ok(Woken::Stale)),
            () = context.until(self.give_up) => Err(self.timed_out()),
        }
    }

    fn begin_waiting(&mut self, ahead: Option<u32>) -> Arc<Waiting> {
        let (keeper, request, span) = (self.keeper, self.request, &self.span);
        if let (None, Some(progress)) = (&self.waiting, self.progress) {
            self.reader = QueueReader::start(self.context, &request.name, progress);
        }
        let waiting = self.waiting.get_or_insert_with(|| {
            tracing::debug!(parent: span.clone(), lock.name = %request.name, ahead, "queued");
            Waiting::begin(keeper, request)
        });
        waiting.clone()
    }

    fn timed_out(&self) -> Error {
        self.not_acquired(NotAcquired::TimedOut { waited: self.context.now().since(self.began) })
    }

    fn not_acquired(&self, reason: NotAcquired) -> Error {
        Error::NotAcquired { name: self.request.name.clone(), reason }
    }
}

/// The result of a wait.
enum Woken {
    /// The reply to the last claim may be stale.
    Stale,
    /// The lock was granted after the store received a claim or keep-alive that was sent at `sent`.
    Granted { grant: Grant, sent: Moment },
}

/// A waiter: counted in the metrics, and kept alive in the queue.
pub(super) struct Waiting {
    keeper: Arc<Keeper>,
    request: Arc<Request>,
    entry: Arc<WaiterLease>,
}

impl Waiting {
    fn begin(keeper: &Arc<Keeper>, request: &Arc<Request>) -> Arc<Self> {
        keeper.context().change_gauge(Gauge::Waiting, &request.name, 1);
        Arc::new(Self { keeper: keeper.clone(), request: request.clone(), entry: Arc::default() })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.keeper.remove_waiter(self.request.id);
        self.keeper.context().change_gauge(Gauge::Waiting, &self.request.name, -1);
    }
}
