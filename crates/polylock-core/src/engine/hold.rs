//! A hold: its state, shared by its guards and the keeper, and its release.

use std::sync::{Arc, OnceLock};

use tokio::sync::watch;
use tracing::Span;

use super::{pending::Ticket, shared::Shared};
use crate::{
    Error, FencingToken, Grant, KeepAlive, LockName, LostReason, Mode, Moment, Release, Request, Result,
    invariant, metrics::Measured, observer,
};

/// The state of a hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Held until the deadline, unless a renewal moves it.
    Held {
        deadline: Moment,
        /// Whether the caller has received the guard.
        received: bool,
    },
    /// Released by its holder, left to expire, or passed on because its caller did not receive it.
    Left,
    /// Ended without that.
    Lost(LostReason),
}

/// One hold, shared by its guards and the keeper.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) shared: Arc<Shared>,
    pub(crate) request: Arc<Request>,
    pub(crate) token: FencingToken,
    phase: watch::Sender<Phase>,
    span: OnceLock<HoldSpan>,
}

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
    /// Begins the hold of a grant whose claim was sent at `sent`.
    pub(crate) fn start(shared: Arc<Shared>, request: Arc<Request>, grant: Grant, sent: Moment) -> Arc<Self> {
        let deadline = invariant::deadline(sent, grant.lease);
        let hold = Arc::new(Self {
            shared,
            request,
            token: grant.token,
            phase: watch::Sender::new(Phase::Held { deadline, received: false }),
            span: OnceLock::new(),
        });
        hold.shared.keeper.hold(&hold, sent, grant.lease);
        hold
    }

    /// The caller has received the guard; false if the hold was passed on before. Opens the span of the hold, which follows from
    /// the caller's.
    pub(crate) fn receive(&self) -> bool {
        let mut received_now = false;
        self.phase.send_if_modified(|phase| {
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
                lock.backend = self.shared.backend(),
                lock.owner = %self.request.owner,
                lock.fencing_token = self.token.get(),
            );
            span.follows_from(Span::current());
            tracing::debug!(parent: &span, "acquired");
            self.span.set(HoldSpan(span)).ok();
        }
        // One that has been lost meanwhile is the caller's all the same: it sees the loss in its guard.
        received_now || !matches!(*self.phase.borrow(), Phase::Left)
    }

    /// Ends a hold whose guard the caller has not received; false if it has, or the hold has ended.
    pub(crate) fn pass_on(&self) -> bool {
        self.phase.send_if_modified(|phase| {
            let unreceived = matches!(phase, Phase::Held { received: false, .. });
            if unreceived {
                *phase = Phase::Left;
            }
            unreceived
        })
    }

    /// The span of the hold, for the work under it and its events.
    pub(crate) fn span(&self) -> Span {
        self.span.get().map_or_else(Span::none, |span| span.0.clone())
    }

    fn span_id(&self) -> Option<tracing::span::Id> {
        self.span.get().and_then(|span| span.0.id())
    }

    /// The deadline if the lock is held, else why it is not. Reads the clock: a deadline that has passed ends the hold
    /// here and now, though its timer may not have fired yet.
    pub(crate) fn check(&self) -> Result<Moment, Ended> {
        match &*self.phase.borrow() {
            Phase::Held { deadline, .. } if self.shared.now() < *deadline => return Ok(*deadline),
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
            self.shared.keeper.forget_hold(self);
            return Ok(deadline.max(self.shared.now() + self.request.ttl / 3));
        }
        Err(self.check().err().unwrap_or(Ended::Left))
    }

    /// As [`leave`](Self::leave), and leaves the release to the end of the lease.
    pub(crate) fn leave_to_expire(&self) -> Result<()> {
        self.leave().map(|_| ()).or_else(|ended| ended.into_result(self.name()))?;
        self.shared.record(&self.request.name, Measured::Release { outcome: "expired", via: "expiry" });
        tracing::debug!(parent: self.span_id(), lock.name = %self.request.name, "left to expire");
        Ok(())
    }

    /// Releases a hold that its holder has ended, and retries until `until`. `attempts` were made before.
    pub(crate) async fn release(
        self: Arc<Self>,
        until: Moment,
        via: &'static str,
        attempts: u32,
        under_way: Ticket,
    ) -> Result<()> {
        let answer = self.shared.release_until(&self.request, until, attempts).await;
        self.released(answer, via, under_way)
    }

    /// The outcome of a release for its holder.
    pub(crate) fn released(
        &self,
        answer: Result<Release>,
        via: &'static str,
        under_way: Ticket,
    ) -> Result<()> {
        let outcome = match &answer {
            Ok(Release::Released) => "released",
            Ok(Release::Lost(_)) => "lost",
            Err(_) => "error",
        };
        self.shared.record(&self.request.name, Measured::Release { outcome, via });
        tracing::debug!(
            parent: self.span_id(), lock.name = %self.request.name, lock.fencing_token = %self.token, via, outcome,
            "released"
        );
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

    /// Sets the lease of a hold that its holder has ended so that it runs out at `end`, and retries until `until`.
    pub(crate) async fn park(self: Arc<Self>, until: Moment, end: Moment, under_way: Ticket) -> Result<()> {
        let outcome = self.shared.renew_until(&self.request, until, end).await;
        let label = match &outcome {
            Ok(KeepAlive::Held { .. }) => "expired",
            Ok(_) => "lost",
            Err(_) => "error",
        };
        self.shared.record(&self.request.name, Measured::Release { outcome: label, via: "expiry" });
        tracing::debug!(parent: self.span_id(), lock.name = %self.request.name, outcome = label, "left to expire");
        let lost = match outcome? {
            KeepAlive::Held { .. } => return Ok(()),
            KeepAlive::Lost(reason) => reason,
            KeepAlive::Queued | KeepAlive::Unknown => LostReason::Gone,
        };
        self.report_loss(&lost);
        if let LostReason::Broken(_) = lost {
            // The store keeps others out until then.
            self.clone().release_broken(under_way).await;
        }
        Ended::Lost(lost).into_result(self.name())
    }

    /// Releases in the background a hold that was broken cooperatively: the store keeps others out until then. Does nothing on
    /// any other.
    pub(crate) async fn release_broken(self: Arc<Self>, under_way: Ticket) {
        self.shared.release_until(&self.request, self.shared.now() + self.request.ttl, 0).await.ok();
        drop(under_way);
    }

    /// Whether the hold was broken, so that its holder's release is what lets others in.
    pub(crate) fn is_broken(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Lost(LostReason::Broken(_)))
    }

    pub(super) fn report_loss(&self, reason: &LostReason) {
        self.shared.record(&self.request.name, Measured::Lost(reason.clone()));
        tracing::error!(
            parent: self.span_id(), lock.name = %self.request.name, lock.fencing_token = %self.token, %reason, "lost"
        );
    }

    /// Where it stands.
    pub(super) fn phase(&self) -> Phase {
        self.phase.borrow().clone()
    }

    /// Whether it was released, left to expire, or passed on.
    pub(super) fn has_left(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Left)
    }

    /// Whether it has ended without that. A deadline that has passed has not done that by itself.
    pub(super) fn is_lost(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Lost(_))
    }

    /// Whether the caller has received the guard.
    pub(super) fn is_received(&self) -> bool {
        !matches!(*self.phase.borrow(), Phase::Held { received: false, .. })
    }

    /// Sets a later deadline; false if the hold has ended.
    pub(super) fn extend(&self, deadline: Moment) -> bool {
        self.check().is_ok()
            && self.phase.send_if_modified(|phase| {
                let Phase::Held { deadline: present, .. } = phase else { return false };
                *present = deadline;
                true
            })
    }

    /// Ends the hold; false if it has ended before.
    pub(super) fn lose(&self, reason: LostReason) -> bool {
        self.change(Phase::Lost(reason))
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
