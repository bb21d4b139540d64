//! The watchdog of a hold: renewal every third of the lease, and the lost deadline.
//!
//! The deadline is armed as a timer of its own. A renewal that hangs, fails or panics can't delay it, because every renewal is
//! a task of its own that is raced with the deadline. A failed renewal means *unknown*: it is tried again, and only a
//! definite reply of the store or the deadline means *lost*. However the watchdog ends, the hold ends with it.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};

use super::{
    backoff::Backoff,
    gauges::Gauge,
    hold::{Hold, Phase},
};
use crate::{
    LostReason, Moment, Operation, Renewal, Result, hold_alerts::HoldAlert, invariant, io, metrics::Measured,
};

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

/// Starts the watchdog of `hold`, whose claim was sent at `sent`. Must be called in the context of the store's I/O thread.
pub(super) fn start(hold: &Arc<Hold>, sent: Moment, lease: Duration) {
    let alert = hold.shared.store.alerts.as_ref().map(|alerts| alerts.register(hold.name()));
    let watchdog = Watchdog { hold: hold.clone(), sent, lease, alert };
    let hold = hold.clone();
    tokio::spawn(async move {
        if let Err(panic) = AssertUnwindSafe(watchdog.run()).catch_unwind().await {
            failed(&hold, &io::panicked(&*panic)).await;
        }
    });
}

/// The watchdog has panicked, in the user's clock for instance: nothing renews the hold any more.
async fn failed(hold: &Hold, cause: &str) {
    if !hold.lose(LostReason::WatchdogFailed) {
        return;
    }
    tracing::error!(lock.name = %hold.name(), cause, "the watchdog of a lock has failed");
    hold.report_loss(&LostReason::WatchdogFailed);
    // Once, and without a clock: the lease ends it otherwise.
    let release = hold.shared.store.backend.release(&hold.request);
    if let Ok(Err(error)) = AssertUnwindSafe(release).catch_unwind().await {
        tracing::warn!(lock.name = %hold.name(), error = &error as &dyn std::error::Error, "release not acknowledged");
    }
}

async fn raised(alert: Option<&HoldAlert>) {
    match alert {
        Some(alert) => alert.raised().await,
        None => std::future::pending().await,
    }
}

impl Watchdog {
    async fn run(mut self) {
        let (hold, began) = (self.hold.clone(), self.sent);
        let (shared, request) = (&hold.shared, &hold.request);
        let mut phase = hold.watch();
        let mut passed_on = false;
        shared.gauges.change(shared, Gauge::Holding, &request.name, 1);
        tokio::select! {
            biased;
            _ = phase.wait_for(|phase| !matches!(phase, Phase::Held { .. })) => {}
            () = not_received(&hold) => passed_on = true,
            reason = self.keep() => {
                hold.lose(reason);
            }
        }
        shared.record(&request.name, Measured::Hold { lasted: shared.now().since(began) });
        shared.gauges.change(shared, Gauge::Holding, &request.name, -1);
        let ended = phase.borrow().clone();
        match ended {
            Phase::Lost(reason) => hold.report_loss(&reason),
            _ if passed_on => {
                tracing::warn!(lock.name = %request.name, "granted to an acquire that is not polled: passed on");
            }
            _ => return,
        }
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
        loop {
            let sent = shared.now();
            if sent >= deadline {
                return Err(LostReason::DeadlineReached);
            }
            let Some(mut renewal) = self.hold.renew() else {
                // It has just ended, which `run` hears next.
                return std::future::pending().await;
            };
            flying.push(async move { (sent, renewal.answer().await) });
            let (mut next, mut failed) = (sent + patience, false);
            loop {
                let error = tokio::select! {
                    biased;
                    () = shared.until(deadline) => return Err(LostReason::DeadlineReached),
                    // In the pause, too, a late reply counts.
                    Some((sent, answer)) = flying.next() => match answer {
                        Ok(Renewal::Renewed { lease }) => {
                            outcome("renewed");
                            return Ok((sent, lease));
                        }
                        Ok(Renewal::Lost(reason)) => {
                            outcome("lost");
                            return Err(reason);
                        }
                        Err(error) => error,
                    },
                    () = shared.until(next) => match failed {
                        true => break,
                        false => shared.silent(Operation::Renew),
                    },
                };
                outcome("error");
                let left = deadline.since(shared.now());
                tracing::warn!(
                    lock.name = %request.name, ?left, error = &error as &dyn std::error::Error,
                    "renewal failed, trying again",
                );
                if !std::mem::replace(&mut failed, true) {
                    next = (shared.now() + backoff.next()).min(deadline);
                }
            }
        }
    }
}

/// Ready when the caller has had the time of a waiter's lease to receive the guard, and has not: the hold has ended.
async fn not_received(hold: &Hold) {
    hold.shared.until(hold.shared.now() + hold.request.place_ttl()).await;
    if !hold.pass_on() {
        std::future::pending::<()>().await;
    }
}
