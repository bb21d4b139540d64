//! A hold: its state, shared by its guards and the keeper, and its release.

use std::{
    future::Future,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use tracing::Span;

use super::{
    backoff::Backoff,
    context::StoreContext,
    ended::Ended,
    hold_events::{EventSender, GuardEvent, GuardEvents},
    hold_limits::{HoldLimits, HoldTimes},
    pending::WorkGuard,
    phase::{Phase, PhaseCell},
};
use crate::{
    Error, FencingToken, Grant, HoldTerms, LockName, LostReason, Mode, Moment, Operation, Request, RequestId,
    Result, io, metrics::Measured, observer, sync::lock,
};

/// One hold, shared by its guards and the keeper.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) context: Arc<StoreContext>,
    pub(crate) request: Arc<Request>,
    /// Its number in this process, which may adopt several holds of one request.
    number: u64,
    terms: Mutex<HoldTerms>,
    /// True if another process may know the request: it may then renew, convert or release the hold.
    known_elsewhere: AtomicBool,
    /// The number of callers that have received a guard of the hold. Its shortest time is kept only for them.
    receivers: AtomicU32,
    /// Locked by a conversion, so that there is one at a time.
    pub(super) conversion: Arc<tokio::sync::Mutex<()>>,
    /// True if a conversion was sent whose outcome is not known: the hold may have another token in the store.
    pub(super) has_unknown_token: AtomicBool,
    /// Shared with the futures that wait for changes, so that they do not keep the hold.
    phase: Arc<PhaseCell>,
    times: HoldTimes,
    events: EventSender,
    span: OnceLock<HoldSpan>,
}

/// The longest pause before an operation of a holder is repeated, before the jitter.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The span of a hold. The observer thread closes it, because closing calls the user's subscriber.
#[derive(Debug)]
struct HoldSpan(Span);

impl Drop for HoldSpan {
    fn drop(&mut self) {
        let span = std::mem::replace(&mut self.0, Span::none());
        if !span.is_disabled() {
            observer::report(move || drop(span));
        }
    }
}

impl Hold {
    /// Returns the hold of a grant with a claim that was sent at `sent`.
    pub(crate) fn new(
        context: Arc<StoreContext>,
        request: Arc<Request>,
        grant: Grant,
        sent: Moment,
        limits: HoldLimits,
    ) -> Self {
        let times = HoldTimes::new(limits, sent, context.now());
        let deadline = times.deadline(sent, grant.lease);
        let number = context.holds.fetch_add(1, Ordering::Relaxed) + 1;
        Self {
            context,
            number,
            terms: Mutex::new(HoldTerms::new(grant.token, request.mode)),
            known_elsewhere: AtomicBool::new(request.outlives_process),
            receivers: AtomicU32::new(0),
            conversion: Arc::default(),
            has_unknown_token: AtomicBool::new(false),
            request,
            phase: Arc::new(PhaseCell::new(Phase::Held { deadline, received: false })),
            times,
            events: EventSender::default(),
            span: OnceLock::new(),
        }
    }

    /// Records that the caller has received the guard, and opens the span of the hold, which follows from the caller's. Returns
    /// false if the hold was passed on before.
    pub(crate) fn receive(&self) -> bool {
        self.receivers.fetch_add(1, Ordering::Relaxed);
        let mut received_now = false;
        self.phase.change(|phase| {
            if let Phase::Held { received, .. } = phase {
                (received_now, *received) = (true, true);
            }
            false
        });
        if received_now {
            let span = tracing::info_span!(
                parent: None,
                "polylock.hold",
                lock.name = %self.request.name,
                lock.mode = %self.request.mode,
                lock.backend = self.context.backend(),
                lock.owner = %self.request.owner,
                lock.fencing_token = self.token().get(),
            );
            span.follows_from(Span::current());
            tracing::debug!(parent: &span, "acquired");
            self.span.set(HoldSpan(span)).ok();
        }
        // A hold that has been lost meanwhile still goes to the caller, which detects the loss by its guard.
        received_now || !self.has_left()
    }

    /// Takes back the [receipt](Self::receive) of a guard that is part of an acquisition in several steps: its caller has nothing before the
    /// last one.
    pub(crate) fn unreceive(&self) {
        self.receivers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Ends a hold if the caller has not received its guard. Returns false if the caller has, or if the hold has ended.
    pub(crate) fn pass_on(&self) -> bool {
        self.phase.change(|phase| {
            let unreceived = matches!(phase, Phase::Held { received: false, .. });
            if unreceived {
                *phase = Phase::Left;
            }
            unreceived
        })
    }

    /// Returns the span of the hold, for the work under it and its events.
    pub(crate) fn span(&self) -> Span {
        self.span.get().map_or_else(Span::none, |span| span.0.clone())
    }

    pub(super) fn span_id(&self) -> Option<tracing::span::Id> {
        self.span.get().and_then(|span| span.0.id())
    }

    /// Returns the deadline if the lock is held, or the reason for the end of the hold. Reads the clock: a deadline that has passed
    /// ends the hold immediately, even if its timer has not fired yet.
    pub(crate) fn check(&self) -> Result<Moment, Ended> {
        let deadline = self.phase.read(|phase| match phase {
            Phase::Held { deadline, .. } => Ok(*deadline),
            Phase::Left => Err(Ended::Left),
            Phase::Lost(reason) => Err(Ended::Lost(reason.clone())),
        })?;
        let now = self.context.now();
        if now < deadline {
            return Ok(deadline);
        }
        let reason = self.times.passed(now);
        self.lose(reason.clone());
        Err(Ended::Lost(reason))
    }

    /// Returns the events of the hold from now on.
    pub(crate) fn events(&self) -> GuardEvents {
        self.events.subscribe(&self.phase)
    }

    /// Reports an event to the readers of the hold's events.
    pub(super) fn report(&self, event: GuardEvent) {
        self.events.send(event);
    }

    /// Returns the limits of the hold.
    pub(super) const fn times(&self) -> HoldTimes {
        self.times
    }

    /// Returns the time until which the lock stays taken although its holder releases it; `None` if that is not later than now, or if the
    /// hold has ended or has no receiver.
    pub(crate) fn kept_until(&self) -> Option<Moment> {
        let end = self.times.keep_until;
        let is_kept = end != Moment::default()
            && end > self.context.now()
            && self.has_receiver()
            && self.check().is_ok();
        is_kept.then_some(end)
    }

    /// Returns the time at which the lease must end in the store after a shutdown, if the hold has a receiver and the store can do that.
    pub(super) fn parked_until(&self) -> Option<Moment> {
        let (end, (shortest, longest)) = (self.times.keep_until, self.context.parking_times());
        let left = end.since(self.context.now());
        (self.has_receiver() && !left.is_zero() && (shortest..=longest).contains(&left)).then_some(end)
    }

    fn has_receiver(&self) -> bool {
        self.receivers.load(Ordering::Relaxed) > 0
    }

    /// Checks that a reentrant holder may enter in the mode `wanted`.
    pub(crate) fn admits(&self, wanted: Mode) -> Result<()> {
        let held = self.mode();
        if held.covers(wanted) {
            return Ok(());
        }
        Err(Error::Reentry {
            name: self.request.name.clone(),
            owner: self.request.owner.clone(),
            held,
            wanted,
        })
    }

    pub(crate) fn name(&self) -> &LockName {
        &self.request.name
    }

    /// Returns the request and the number of this hold of it.
    pub(super) fn key(&self) -> (RequestId, u64) {
        (self.request.id, self.number)
    }

    /// Returns the present mode.
    pub(crate) fn mode(&self) -> Mode {
        lock(&self.terms).mode
    }

    /// Returns the present token.
    pub(crate) fn token(&self) -> FencingToken {
        lock(&self.terms).token
    }

    /// Records that another process may know the request from now on.
    pub(crate) fn share(&self) {
        self.known_elsewhere.store(true, Ordering::Relaxed);
    }

    /// Returns true if another process may know the request.
    pub(super) fn is_known_elsewhere(&self) -> bool {
        self.known_elsewhere.load(Ordering::Relaxed)
    }

    /// Returns the request for the operation that ends the hold.
    pub(super) fn last_request(&self) -> Arc<Request> {
        if self.is_known_elsewhere() { self.request.known_elsewhere() } else { self.request.clone() }
    }

    /// Returns true if these terms, which the store had at some time since the hold began, show that another process has converted it.
    ///
    /// Tokens grow with each conversion, so a smaller one is that of an earlier time. A greater one may be from a conversion of this process
    /// that has no reply yet.
    pub(super) fn is_superseded_by(&self, terms: HoldTerms) -> bool {
        self.is_known_elsewhere() && terms.token > self.token() && self.conversion.try_lock().is_ok()
    }

    /// Sets the mode in which the lock counts as held before the store confirms it.
    pub(super) fn set_mode(&self, mode: Mode) {
        lock(&self.terms).mode = mode;
    }

    /// Records a conversion that was carried out.
    pub(super) fn converted(&self, mode: Mode, token: FencingToken) {
        *lock(&self.terms) = HoldTerms::new(token, mode);
        tracing::debug!(
            parent: self.span_id(), lock.name = %self.request.name, lock.mode = %mode, lock.fencing_token = %token,
            "converted"
        );
    }

    /// Checks that the lock is held.
    pub(super) fn check_held(&self) -> Result<()> {
        self.check().map(drop).map_err(|ended| ended.into_lost(self.name()))
    }

    /// Repeats `attempt` after temporary errors, as long as the lock is held.
    pub(crate) async fn retry_while_held<T, F: Future<Output = Result<T>>>(
        &self,
        operation: Operation,
        attempt: impl Fn() -> F,
    ) -> Result<T> {
        let mut backoff = Backoff::up_to(LONGEST_PAUSE);
        loop {
            self.check_held()?;
            match attempt().await {
                Err(error) if error.is_temporary() => {
                    tracing::debug!(
                        parent: self.span_id(), lock.name = %self.request.name, %operation,
                        error = &error as &dyn std::error::Error, "store unavailable, retrying"
                    );
                }
                outcome => return outcome,
            }
            let context = self.context.clone();
            let again = context.now() + backoff.next();
            // The runtime of the caller may have no timers.
            io::run(context.backend(), async move { context.until(again).await }).await?;
        }
    }

    /// Waits until `read` returns `Some` for the phase at that time. The future does not keep the hold.
    pub(crate) fn phase_when<T>(
        &self,
        read: impl Fn(&Phase) -> Option<T> + Send + Sync + 'static,
    ) -> impl Future<Output = T> + Send + Sync + 'static {
        let phase = self.phase.clone();
        async move { phase.wait_until(read).await }
    }

    /// Ends the hold by its holder's request, and returns the time until which a release is worth retrying. Returns an error if the
    /// hold has ended before; a second call changes nothing.
    ///
    /// From here on the lock counts as not held, whatever the store has received, and no more renewals are sent.
    pub(crate) fn leave(&self) -> Result<Moment, Ended> {
        let deadline = self.check()?;
        if self.change(Phase::Left) {
            return Ok(self.release_by(deadline));
        }
        Err(self.check().err().unwrap_or(Ended::Left))
    }

    /// Ends the hold as lost because of the shutdown. Returns false if it has ended before.
    pub(super) fn shut_down(&self) -> bool {
        self.check().is_ok() && self.lose(LostReason::ShutDown)
    }

    /// Returns the time until which the release of a hold with this deadline is worth retrying.
    pub(super) fn release_by(&self, deadline: Moment) -> Moment {
        deadline.max(self.context.now() + self.request.ttl / 3)
    }

    /// Releases a hold that was lost and is still kept, in the background: the store excludes other requests until then. Has no effect on
    /// any other hold.
    pub(crate) async fn release_lost(self: Arc<Self>, under_way: WorkGuard) {
        self.context.release_until(&self.last_request(), self.context.now() + self.request.ttl, 0).await.ok();
        drop(under_way);
    }

    /// Returns true if the hold was lost and the store excludes other requests for the rest of the lease, so that the release by its
    /// holder lets them in.
    pub(crate) fn is_kept_after_loss(&self) -> bool {
        self.phase.read(|phase| matches!(phase, Phase::Lost(LostReason::Broken(_) | LostReason::MaxHold)))
    }

    pub(super) fn report_loss(&self, reason: &LostReason) {
        self.context.record(&self.request.name, Measured::Lost(reason.clone()));
        tracing::error!(
            parent: self.span_id(), lock.name = %self.request.name, lock.fencing_token = %self.token(), %reason, "lost"
        );
    }

    /// Returns the deadline, which may have passed; `None` if the hold has ended.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        self.phase.read(|phase| match phase {
            Phase::Held { deadline, .. } => Some(*deadline),
            Phase::Left | Phase::Lost(_) => None,
        })
    }

    /// Returns the phase.
    pub(super) fn phase(&self) -> Phase {
        self.phase.read(Phase::clone)
    }

    /// Returns true if the hold was released, left to expire, or passed on.
    pub(super) fn has_left(&self) -> bool {
        self.phase.read(|phase| matches!(phase, Phase::Left))
    }

    /// Returns true if the hold was lost. A deadline that has passed does not set this by itself.
    pub(super) fn is_lost(&self) -> bool {
        self.phase.read(|phase| matches!(phase, Phase::Lost(_)))
    }

    /// Returns true if the caller has received the guard.
    pub(super) fn is_received(&self) -> bool {
        !self.phase.read(|phase| matches!(phase, Phase::Held { received: false, .. }))
    }

    /// Sets a later deadline; returns false if the hold has ended.
    pub(super) fn extend(&self, deadline: Moment) -> bool {
        self.check().is_ok()
            && self.phase.change(|phase| {
                let Phase::Held { deadline: present, .. } = phase else { return false };
                *present = deadline;
                true
            })
    }

    /// Ends the hold as lost; returns false if it has ended before.
    pub(super) fn lose(&self, reason: LostReason) -> bool {
        self.change(Phase::Lost(reason))
    }

    /// Changes the phase if the hold has not ended; returns false if it has.
    fn change(&self, to: Phase) -> bool {
        self.phase.change(|phase| {
            let held = phase.is_held();
            if held {
                *phase = to;
            }
            held
        })
    }
}
