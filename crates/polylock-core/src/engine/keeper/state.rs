//! The holds and waiters of a process, the times at which they are due, and the effect of a reply on them.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, Weak},
    time::Duration,
};

use super::waiter_lease::WaiterLease;
use crate::{
    KeepAlive, LockName, LostReason, Moment, Request, RequestId,
    bug::Bug,
    engine::{backoff::Backoff, context::StoreContext, gauges::Gauge, hold::Hold, hold_events::GuardEvent},
    metrics::Measured,
    process::has_bug,
};

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) holds: HashMap<RequestId, Kept>,
    pub(super) waiters: HashMap<RequestId, Waiter>,
    /// The times at which they are due.
    pub(super) timers: BTreeSet<(Moment, RequestId)>,
    /// The break notices of the last seconds, and the times until which they are kept.
    pub(super) notices: Vec<(LockName, Moment)>,
    /// The lease that all waiters share, if the store has a shared lease.
    pub(super) queue: Option<QueueLease>,
    /// The time of the task's next check; `None` while there is no task.
    pub(super) next_check: Option<Moment>,
}

/// The lease that all waiters of a process share.
#[derive(Debug)]
pub(super) struct QueueLease {
    pub(super) waiters: HashSet<RequestId>,
    pub(super) ttl: Duration,
    /// The time at which it is to be extended.
    pub(super) at: Moment,
}

/// The keeper's record of a hold.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) hold: Arc<Hold>,
    pub(super) began: Moment,
    /// The time at which the hold was registered. A keep-alive that was sent before may have found the request in the queue.
    pub(super) since: Moment,
    /// The time until which the caller must have received the guard.
    pub(super) receive_by: Moment,
    /// The time at which the last successful claim or keep-alive was sent; it gave `lease`.
    pub(super) sent: Moment,
    pub(super) lease: Duration,
    /// The time at which the next keep-alive is due.
    pub(super) renew_at: Moment,
    /// Its entry in the timers.
    pub(super) timer: Moment,
    /// True while a keep-alive is in flight.
    pub(super) in_flight: bool,
    /// True if the holder was warned of the end of this lease.
    pub(super) warned: bool,
    /// The pauses after failed keep-alives.
    pub(super) backoff: Option<Backoff>,
}

/// A request in the queue with an entry that has its own lease in the store.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) request: Arc<Request>,
    pub(super) entry: Weak<WaiterLease>,
    pub(super) timer: Moment,
    /// The time at which the last claim or keep-alive was sent.
    pub(super) sent: Moment,
    pub(super) in_flight: bool,
}

impl Waiter {
    /// Records that a keep-alive has been sent. Without a reply in time, another one is sent.
    pub(super) fn sent(&mut self, now: Moment, timers: &mut BTreeSet<(Moment, RequestId)>) {
        (self.sent, self.in_flight) = (now, true);
        self.timer = now + self.request.queue_lease() / 3;
        timers.insert((self.timer, self.request.id));
    }

    /// Applies the outcome of the keep-alive that was sent at `sent`. The replies that arrive at the end of an outage cause no burst of
    /// keep-alives: one that was overtaken by another keep-alive leaves the timer to that one, and a request without a queue entry has
    /// nothing to be extended before its next claim.
    fn apply(
        &mut self,
        sent: Moment,
        now: Moment,
        outcome: &KeepAlive,
        timers: &mut BTreeSet<(Moment, RequestId)>,
    ) {
        if sent >= self.sent {
            let from = if *outcome == KeepAlive::Queued { sent } else { now };
            timers.remove(&(self.timer, self.request.id));
            (self.timer, self.in_flight) = (from + self.request.queue_lease() / 3, false);
            timers.insert((self.timer, self.request.id));
        }
        if let Some(entry) = self.entry.upgrade() {
            entry.apply(sent, outcome);
        }
    }
}

impl Kept {
    /// Returns the end of the lease, by the holder's clock.
    pub(super) fn deadline(&self) -> Moment {
        self.hold.times().deadline(self.sent, self.lease)
    }

    /// Returns the time at which the hold is passed on, unless the caller has received the guard.
    pub(super) fn receive_by(&self) -> Moment {
        if self.hold.is_received() { Moment::NEVER } else { self.receive_by }
    }

    pub(super) fn due(&self) -> Moment {
        self.renew_at.min(self.deadline()).min(self.receive_by())
    }

    /// Records that a keep-alive has been sent. Without a reply in time, another one is sent, and the holder is warned.
    pub(super) fn sent(&mut self, now: Moment) {
        let left = self.deadline().since(now);
        if left < self.lease / 3 && !std::mem::replace(&mut self.warned, true) {
            self.hold.report(GuardEvent::SlackLow { left });
        }
        self.in_flight = true;
        self.renew_at = now + self.lease / 6;
    }

    pub(super) fn set_timer(&mut self, timers: &mut BTreeSet<(Moment, RequestId)>) {
        let id = self.hold.request.id;
        timers.remove(&(self.timer, id));
        self.timer = self.due();
        timers.insert((self.timer, id));
    }

    /// Records the metrics of a hold that has ended.
    pub(super) fn record_end(&self) {
        let (context, name) = (&self.hold.context, self.hold.name());
        context.record(name, Measured::Hold { lasted: context.now().since(self.began) });
        context.change_gauge(Gauge::Holding, name, -1);
    }
}

impl State {
    /// Returns the time at which the next entry is due.
    pub(super) fn next(&self) -> Moment {
        let timer = self.timers.first().map_or(Moment::NEVER, |(at, _)| *at);
        self.queue.as_ref().map_or(timer, |queue| timer.min(queue.at))
    }

    /// Applies the outcome for one request; returns the hold if the outcome has ended it.
    pub(super) fn apply(
        &mut self,
        context: &StoreContext,
        sent: Moment,
        now: Moment,
        request: &Request,
        outcome: KeepAlive,
    ) -> Option<Kept> {
        if outcome == KeepAlive::Unknown {
            tracing::debug!(lock.name = %request.name, "renewal not confirmed, retrying");
            self.failed(context, now, request.id);
            return None;
        }
        let Self { holds, waiters, timers, .. } = self;
        if let Some(waiter) = waiters.get_mut(&request.id) {
            waiter.apply(sent, now, &outcome, timers);
            return None;
        }
        let kept = holds.get_mut(&request.id)?;
        kept.in_flight = false;
        if kept.hold.has_left() {
            // The task that has ended it releases it, and is about to remove it here.
            return None;
        }
        if sent < kept.since && !matches!(outcome, KeepAlive::Held { .. }) {
            // The outcome is from before the grant. If the hold has ended since, the next keep-alive reports that.
            return None;
        }
        let reason = match outcome {
            KeepAlive::Held { terms: Some(terms), .. } if kept.hold.is_superseded_by(terms) => {
                context.record(&request.name, Measured::Renewal("lost"));
                LostReason::Gone
            }
            KeepAlive::Held { lease, .. } => {
                // Another process may have given the hold a longer lease. This one renews by its own TTL, which the store may have rounded up.
                let lease = lease.min(request.ttl.max(kept.lease));
                context.record(&request.name, Measured::Renewal("renewed"));
                if sent < kept.sent {
                    // This is the reply to an earlier keep-alive, which was overtaken.
                    return None;
                }
                let slack = kept.deadline().since(now);
                context.record(&request.name, Measured::RenewSlack(slack));
                let times = kept.hold.times();
                let deadline = times.deadline(sent, lease);
                if deadline > now && kept.hold.extend(deadline) {
                    (kept.sent, kept.lease, kept.renew_at) = (sent, lease, times.renew_at(sent, lease));
                    (kept.warned, kept.backoff) = (false, None);
                    kept.set_timer(timers);
                    kept.hold.report(GuardEvent::Renewed { deadline, slack });
                    return None;
                }
                times.passed(now)
            }
            KeepAlive::Lost(reason) => {
                context.record(&request.name, Measured::Renewal("lost"));
                reason
            }
            // A holder is never in the queue.
            KeepAlive::Queued | KeepAlive::Unknown => LostReason::Gone,
        };
        if !kept.hold.lose(reason) && kept.hold.has_left() {
            return None;
        }
        let kept = holds.remove(&request.id)?;
        timers.remove(&(kept.timer, request.id));
        Some(kept)
    }

    /// Removes the waiter of `request` and its timer.
    pub(super) fn remove_waiter(&mut self, request: RequestId) {
        if let Some(waiter) = self.waiters.remove(&request) {
            self.timers.remove(&(waiter.timer, request));
        }
    }

    /// Schedules the retry of a keep-alive of `request` that has failed, so that its effect is unknown.
    pub(super) fn failed(&mut self, context: &StoreContext, now: Moment, request: RequestId) {
        let Self { holds, waiters, timers, .. } = self;
        if let Some(waiter) = waiters.get_mut(&request) {
            timers.remove(&(waiter.timer, request));
            (waiter.timer, waiter.in_flight) = (now + waiter.request.queue_lease() / 10, false);
            timers.insert((waiter.timer, request));
        } else if let Some(kept) = holds.get_mut(&request) {
            context.record(kept.hold.name(), Measured::Renewal("error"));
            let lease = kept.lease;
            let mut pause = kept.backoff.get_or_insert_with(|| Backoff::up_to(lease / 20)).next();
            if has_bug(Bug::LateRenewal) {
                pause = lease / 2;
            }
            (kept.renew_at, kept.in_flight) = (now + pause, false);
            kept.set_timer(timers);
        }
    }
}
