//! A hold and its watchdog: renewal every third of the lease, and the lost deadline.
//!
//! The deadline is armed as a timer of its own. A renewal that hangs, fails or panics can't delay it, because every
//! renewal is a task of its own that is raced with the deadline. A failed renewal means *unknown*: it is tried again,
//! and only the store's definite word or the deadline means *lost*.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::sync::watch;
use tracing::Instrument;

use super::{
    backoff::Backoff,
    pending::Ticket,
    shared::{Running, Shared},
};
use crate::{
    Error, FencingToken, Grant, LockName, LostReason, Mode, Moment, Operation, Release, Renewal, Request,
    Result, hold_alerts::HoldAlert, invariant, metrics::Measured,
};

/// The state of a hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Held until the deadline, unless a renewal moves it.
    Held { deadline: Moment },
    /// Released by its holder, or left to expire.
    Left,
    /// Ended without that.
    Lost(LostReason),
}

/// One hold, shared by its guards and its watchdog.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) shared: Arc<Shared>,
    pub(crate) request: Arc<Request>,
    pub(crate) token: FencingToken,
    phase: watch::Sender<Phase>,
}

impl Hold {
    /// Starts the watchdog of a grant whose claim was sent at `sent`.
    pub(crate) fn start(shared: Arc<Shared>, request: Arc<Request>, grant: Grant, sent: Moment) -> Arc<Self> {
        let deadline = invariant::deadline(sent, grant.lease);
        let hold = Arc::new(Self {
            shared,
            request,
            token: grant.token,
            phase: watch::Sender::new(Phase::Held { deadline }),
        });
        let span = tracing::info_span!("polylock.hold", lock.name = %hold.request.name, lock.fencing_token = %hold.token);
        let alert = hold.shared.store.alerts.as_ref().map(|alerts| alerts.register(hold.name()));
        let watchdog = Watchdog { hold: hold.clone(), sent, lease: grant.lease, alert };
        tokio::spawn(watchdog.run().instrument(span));
        hold
    }

    /// The deadline if the lock is held, else why it is not. Reads the clock: a deadline that has passed ends the hold
    /// here and now, though its timer may not have fired yet.
    pub(crate) fn check(&self) -> Result<Moment, Ended> {
        match &*self.phase.borrow() {
            Phase::Held { deadline } if self.shared.now() < *deadline => return Ok(*deadline),
            Phase::Held { .. } => {}
            Phase::Left => return Err(Ended::Left),
            Phase::Lost(reason) => return Err(Ended::Lost(reason.clone())),
        }
        self.lose(LostReason::DeadlineReached);
        Err(Ended::Lost(LostReason::DeadlineReached))
    }

    /// Whether a reentrant holder may enter as `wanted`.
    pub(crate) fn admits(&self, wanted: Mode) -> Result<()> {
        if self.request.mode.covers(wanted) {
            return Ok(());
        }
        Err(Error::Reentry {
            name: self.request.name.clone(),
            owner: self.request.owner.clone(),
            held: self.request.mode,
            wanted,
        })
    }

    pub(crate) fn name(&self) -> &LockName {
        &self.request.name
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Ends the hold by its holder's will: until when a release is worth retrying. An error if it was lost before; a second
    /// call is a no-op.
    ///
    /// From here on the lock counts as not held, whatever the store has received, and no renewal is sent any more.
    pub(crate) fn leave(&self) -> Result<Moment, Ended> {
        let deadline = self.check()?;
        if self.change(Phase::Left) {
            return Ok(deadline.max(self.shared.now() + self.request.ttl / 3));
        }
        Err(self.check().err().unwrap_or(Ended::Left))
    }

    /// As [`leave`](Self::leave), and leaves the release to the end of the lease.
    pub(crate) fn leave_to_expire(&self) -> Result<()> {
        self.leave().map(|_| ()).or_else(|ended| ended.into_result(self.name()))?;
        self.shared.record(&self.request.name, Measured::Release { outcome: "expired", via: "expiry" });
        tracing::info!(lock.name = %self.request.name, "left to expire");
        Ok(())
    }

    /// Releases a hold that its holder has ended, and retries until `until`.
    pub(crate) async fn release(
        self: Arc<Self>,
        until: Moment,
        via: &'static str,
        under_way: Ticket,
    ) -> Result<()> {
        let answer = self.shared.release_until(&self.request, until).await;
        let outcome = match &answer {
            Ok(Release::Released) => "released",
            Ok(Release::Lost(_)) => "lost",
            Err(_) => "error",
        };
        self.shared.record(&self.request.name, Measured::Release { outcome, via });
        tracing::info!(lock.name = %self.request.name, lock.fencing_token = %self.token, via, outcome, "released");
        let answer = answer.and_then(|release| match release {
            Release::Released => Ok(()),
            // The holder may have worked beside another: it learns of it here, not from a renewal.
            Release::Lost(reason) => {
                self.report_loss(&reason);
                Ended::Lost(reason).into_result(self.name())
            }
        });
        drop(under_way);
        answer
    }

    /// Releases in the background a hold that was broken cooperatively: the store keeps others out until then. Does nothing on
    /// any other.
    pub(crate) async fn release_broken(self: Arc<Self>, under_way: Ticket) {
        self.shared.release_until(&self.request, self.shared.now() + self.request.ttl).await.ok();
        drop(under_way);
    }

    /// Whether the hold was broken, so that its holder's release is what lets others in.
    pub(crate) fn is_broken(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Lost(LostReason::Broken(_)))
    }

    fn report_loss(&self, reason: &LostReason) {
        self.shared.record(&self.request.name, Measured::Lost(reason.clone()));
        tracing::error!(lock.name = %self.request.name, lock.fencing_token = %self.token, %reason, "lost");
    }

    /// Starts a renewal, unless the hold has ended: who ends it waits until the renewal has been sent, so that a release
    /// never overtakes one.
    fn renew(&self) -> Option<Running<Renewal>> {
        let phase = self.phase.borrow();
        matches!(*phase, Phase::Held { .. }).then(|| {
            self.shared.start(Operation::Renew, &self.request, |store, request| async move {
                store.renew(&request).await
            })
        })
    }

    /// Sets a later deadline; false if the hold has ended.
    fn extend(&self, deadline: Moment) -> bool {
        self.check().is_ok() && self.change(Phase::Held { deadline })
    }

    fn lose(&self, reason: LostReason) {
        self.change(Phase::Lost(reason));
    }

    /// Changes the phase if the hold has not ended; false if it has.
    fn change(&self, to: Phase) -> bool {
        self.phase.send_if_modified(|phase| {
            let held = matches!(phase, Phase::Held { .. });
            if held {
                *phase = to;
            }
            held
        })
    }
}

/// Why a hold ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    Left,
    Lost(LostReason),
}

impl Ended {
    pub(crate) fn into_result(self, name: &LockName) -> Result<()> {
        match self {
            Self::Left => Ok(()),
            Self::Lost(reason) => Err(Error::Lost { name: name.clone(), reason }),
        }
    }
}

async fn raised(alert: Option<&HoldAlert>) {
    match alert {
        Some(alert) => alert.raised().await,
        None => std::future::pending().await,
    }
}

/// The task that keeps a hold alive, and ends it.
struct Watchdog {
    hold: Arc<Hold>,
    /// When the last claim or renewal that succeeded was sent.
    sent: Moment,
    /// What it gave.
    lease: Duration,
    /// Raised when the store has received a break notice.
    alert: Option<HoldAlert>,
}

impl Watchdog {
    async fn run(mut self) {
        let (hold, began) = (self.hold.clone(), self.sent);
        let (shared, request) = (&hold.shared, &hold.request);
        let mut phase = hold.watch();
        shared.record(&request.name, Measured::Holding(1));
        tracing::info!(lock.name = %request.name, lock.fencing_token = %hold.token, "acquired");
        tokio::select! {
            biased;
            _ = phase.wait_for(|phase| !matches!(phase, Phase::Held { .. })) => {}
            reason = self.keep() => hold.lose(reason),
        }
        shared.record(&request.name, Measured::Hold { lasted: shared.now().since(began) });
        shared.record(&request.name, Measured::Holding(-1));
        let Phase::Lost(reason) = phase.borrow().clone() else { return };
        hold.report_loss(&reason);
        if hold.is_broken() {
            // The guard's end releases it, when the holder has stopped.
            return;
        }
        // A renewal without an answer may have been carried out: what it extended blocks others for nothing.
        let _under_way = shared.pending.begin();
        shared.release_until(request, shared.now() + self.lease).await.ok();
    }

    /// Renews until the hold is lost: every third of the lease, and when the store raises an alert. Dropping it leaves a
    /// renewal in flight to its end: it never creates anything.
    async fn keep(&mut self) -> LostReason {
        let hold = self.hold.clone();
        let shared = &hold.shared;
        loop {
            let deadline = invariant::deadline(self.sent, self.lease);
            let renew_at = self.sent + self.lease / 3;
            tokio::select! {
                () = shared.until(renew_at.min(deadline)) => {}
                () = raised(self.alert.as_ref()) => {}
            }
            match self.renew(deadline).await {
                Ok((sent, lease)) => {
                    let renewed = invariant::deadline(sent, lease);
                    shared.record(&hold.request.name, Measured::RenewSlack(deadline.since(shared.now())));
                    (self.sent, self.lease) = (sent, lease);
                    if renewed <= shared.now() || !hold.extend(renewed) {
                        return LostReason::DeadlineReached;
                    }
                }
                Err(reason) => return reason,
            }
        }
    }

    /// Renews by `deadline`, with as many attempts as there is time for: when it was sent and what it gave.
    async fn renew(&self, deadline: Moment) -> Result<(Moment, Duration), LostReason> {
        let (shared, request) = (&self.hold.shared, &self.hold.request);
        let outcome = |outcome| shared.record(&request.name, Measured::Renewal(outcome));
        let mut backoff = Backoff::up_to(self.lease / 20);
        // One that hangs does not keep another from being sent, and its late answer still counts from its own sending.
        let patience = self.lease / 6;
        let mut flying = FuturesUnordered::new();
        let mut during_pause = None;
        loop {
            let sent = shared.now();
            if sent >= deadline {
                return Err(LostReason::DeadlineReached);
            }
            let answer = if let Some(answer) = during_pause.take() {
                answer
            } else {
                let Some(mut renewal) = self.hold.renew() else {
                    // It has just ended, which `run` hears next.
                    return std::future::pending().await;
                };
                flying.push(async move { (sent, renewal.answer().await) });
                tokio::select! {
                    biased;
                    () = shared.until(deadline) => return Err(LostReason::DeadlineReached),
                    Some(answer) = flying.next() => answer,
                    () = shared.until(sent + patience) => (sent, Err(shared.silent(Operation::Renew))),
                }
            };
            let error = match answer {
                (sent, Ok(Renewal::Renewed { lease })) => {
                    outcome("renewed");
                    return Ok((sent, lease));
                }
                (_, Ok(Renewal::Lost(reason))) => {
                    outcome("lost");
                    return Err(reason);
                }
                (_, Err(error)) => error,
            };
            outcome("error");
            let left = deadline.since(shared.now());
            tracing::warn!(
                lock.name = %request.name, ?left, error = &error as &dyn std::error::Error,
                "renewal failed, trying again",
            );
            let again = (shared.now() + backoff.next()).min(deadline);
            during_pause = tokio::select! {
                biased;
                // The reply to an earlier renewal, which may say that the lock is lost.
                Some(answer) = flying.next() => Some(answer),
                () = shared.until(again) => None,
            };
        }
    }
}
