//! A hold and its watchdog: renewal every third of the lease, and the lost deadline.
//!
//! The deadline is armed as a timer of its own. A renewal that hangs, fails or panics can't delay it, because every
//! renewal is a task of its own that is raced with the deadline. A failed renewal means *unknown*: it is tried again,
//! and only the store's definite word or the deadline means *lost*.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::sync::{oneshot, watch};
use tracing::Instrument;

use super::{backoff::Backoff, pending::Ticket, shared::Shared};
use crate::{
    Error, FencingToken, Grant, LostReason, Mode, Moment, Operation, Renewal, Request, Result, invariant,
    metrics::Measured,
};

/// Where a hold stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Held until the deadline, if nothing is heard before.
    Held { deadline: Moment },
    /// Given back by its holder.
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
    farewell: Mutex<Option<oneshot::Sender<Farewell>>>,
}

/// How a holder leaves.
#[derive(Debug)]
pub(crate) enum Farewell {
    /// Release, and tell `reply` how it went.
    Release { reply: Option<oneshot::Sender<Result<()>>>, under_way: Ticket },
    /// Only renew no more.
    LeaveToExpire,
}

impl Hold {
    /// Starts the watchdog of a grant whose claim was sent at `sent`.
    pub(crate) fn start(shared: Arc<Shared>, request: Arc<Request>, grant: Grant, sent: Moment) -> Arc<Self> {
        let deadline = invariant::deadline(sent, grant.lease);
        let (farewell, left) = oneshot::channel();
        let hold = Arc::new(Self {
            shared,
            request,
            token: grant.token,
            phase: watch::Sender::new(Phase::Held { deadline }),
            farewell: Mutex::new(Some(farewell)),
        });
        let span = tracing::info_span!("polylock.hold", lock.name = %hold.request.name, lock.fencing_token = %hold.token);
        let watchdog = Watchdog { hold: hold.clone(), sent, lease: grant.lease };
        tokio::spawn(watchdog.run(left).instrument(span));
        hold
    }

    /// The deadline if the lock is held, else why it is not. Reads the clock: a deadline that has passed ends the hold
    /// here and now, though its timer may not have fired yet.
    pub(crate) fn check(&self) -> Result<Moment, Ended> {
        match *self.phase.borrow() {
            Phase::Held { deadline } if self.shared.now() < deadline => return Ok(deadline),
            Phase::Held { .. } => {}
            Phase::Left => return Err(Ended::Left),
            Phase::Lost(reason) => return Err(Ended::Lost(reason)),
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

    pub(crate) fn watch(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Ends the hold by its holder's will; an error if it was lost before that.
    ///
    /// From here on the lock counts as not held, whatever the store has heard.
    pub(crate) fn leave(&self, farewell: Farewell) -> Result<()> {
        if let Err(ended) = self.check() {
            return ended.into_result(&self.request);
        }
        let left = self.phase.send_if_modified(|phase| {
            let held = matches!(phase, Phase::Held { .. });
            if held {
                *phase = Phase::Left;
            }
            held
        });
        if !left {
            return self.check().map(|_| ()).or_else(|ended| ended.into_result(&self.request));
        }
        let sender = self.farewell.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sender) = sender {
            // The watchdog ends before this only if the runtime itself has gone; then the lease ends the hold.
            drop(sender.send(farewell));
        }
        Ok(())
    }

    /// Sets a later deadline; false if the hold has ended.
    fn extend(&self, deadline: Moment) -> bool {
        self.check().is_ok()
            && self.phase.send_if_modified(|phase| {
                let held = matches!(phase, Phase::Held { .. });
                if held {
                    *phase = Phase::Held { deadline };
                }
                held
            })
    }

    fn lose(&self, reason: LostReason) {
        self.phase.send_if_modified(|phase| {
            let held = matches!(phase, Phase::Held { .. });
            if held {
                *phase = Phase::Lost(reason);
            }
            held
        });
    }
}

/// Why a hold is one no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Left,
    Lost(LostReason),
}

impl Ended {
    pub(crate) fn into_result(self, request: &Request) -> Result<()> {
        match self {
            Self::Left => Ok(()),
            Self::Lost(reason) => Err(Error::Lost { name: request.name.clone(), reason }),
        }
    }
}

/// The task that keeps a hold alive, and ends it.
struct Watchdog {
    hold: Arc<Hold>,
    /// When the last claim or renewal that succeeded was sent.
    sent: Moment,
    /// What it gave.
    lease: Duration,
}

impl Watchdog {
    async fn run(mut self, mut left: oneshot::Receiver<Farewell>) {
        let (hold, began) = (self.hold.clone(), self.sent);
        let (shared, name) = (&hold.shared, &hold.request.name);
        shared.record(name, Measured::Holding(1));
        tracing::info!(lock.name = %name, lock.fencing_token = %hold.token, "acquired");
        let farewell = tokio::select! {
            biased;
            farewell = &mut left => farewell.ok(),
            reason = self.keep() => {
                hold.lose(reason);
                // Who left in the same instant was before the loss.
                left.try_recv().ok()
            }
        };
        shared.record(name, Measured::Hold { lasted: shared.now().since(began) });
        shared.record(name, Measured::Holding(-1));
        self.end(farewell).await;
    }

    async fn end(&self, farewell: Option<Farewell>) {
        let (shared, request) = (&self.hold.shared, &self.hold.request);
        let until = self.sent + self.lease;
        let released = |outcome, via| shared.record(&request.name, Measured::Release { outcome, via });
        match farewell {
            Some(Farewell::Release { reply, under_way }) => {
                let via = if reply.is_some() { "explicit" } else { "drop" };
                let answer = shared.depart(request, until).await;
                released(if answer.is_ok() { "released" } else { "error" }, via);
                tracing::info!(via, "released");
                if let Some(reply) = reply {
                    drop(reply.send(answer));
                }
                drop(under_way);
            }
            Some(Farewell::LeaveToExpire) => {
                released("expired", "expiry");
                tracing::info!("left to expire");
            }
            None => {
                let Phase::Lost(reason) = *self.hold.phase.borrow() else { return };
                shared.record(&request.name, Measured::Lost(reason));
                tracing::error!(lock.name = %request.name, %reason, "lost");
                // A renewal without an answer may have been carried out: what it extended blocks others for nothing.
                let _under_way = shared.pending.begin();
                shared.depart(request, shared.now() + self.lease).await.ok();
            }
        }
    }

    /// Renews until the hold is lost. Dropping it leaves a renewal in flight to its end: it never creates anything.
    async fn keep(&mut self) -> LostReason {
        let hold = self.hold.clone();
        let shared = &hold.shared;
        loop {
            let deadline = invariant::deadline(self.sent, self.lease);
            let renew_at = self.sent + self.lease / 3;
            shared.until(renew_at.min(deadline)).await;
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
        loop {
            let sent = shared.now();
            if sent >= deadline {
                return Err(LostReason::DeadlineReached);
            }
            let mut renewal = shared.start(Operation::Renew, request, |store, request| async move {
                store.renew(&request).await
            });
            flying.push(async move { (sent, renewal.answer().await) });
            let answer = tokio::select! {
                biased;
                () = shared.until(deadline) => return Err(LostReason::DeadlineReached),
                Some(answer) = flying.next() => answer,
                () = shared.until(sent + patience) => (sent, Err(shared.silent(Operation::Renew))),
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
            shared.until((shared.now() + backoff.next()).min(deadline)).await;
        }
    }
}
