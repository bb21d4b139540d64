//! The holds and waiters of a process, the times at which they are due, and the effect of a reply on them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    ops::RangeInclusive,
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

/// A hold, by its request and its number: the process may have several holds of one request, which it has adopted by its handle. The number of a
/// waiter is 0.
pub(super) type Key = (RequestId, u64);

/// The times at which holds and waiters are due.
pub(super) type Timers = BTreeSet<(Moment, Key)>;

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) holds: BTreeMap<Key, Kept>,
    pub(super) waiters: HashMap<RequestId, Waiter>,
    pub(super) timers: Timers,
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
    /// True if the hold is renewed only at a request of its holder.
    pub(super) on_request: bool,
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
    pub(super) fn sent(&mut self, now: Moment, timers: &mut Timers) {
        (self.sent, self.in_flight) = (now, true);
        self.timer = now + self.request.queue_lease() / 3;
        timers.insert((self.timer, (self.request.id, 0)));
    }

    /// Applies the outcome of the keep-alive that was sent at `sent`. The replies that arrive at the end of an outage cause no burst of
    /// keep-alives: one that was overtaken by another keep-alive leaves the timer to that one, and a request without a queue entry has
    /// nothing to be extended before its next claim.
    fn apply(&mut self, sent: Moment, now: Moment, outcome: &KeepAlive, timers: &mut Timers) {
        if sent >= self.sent {
            let from = if *outcome == KeepAlive::Queued { sent } else { now };
            timers.remove(&(self.timer, (self.request.id, 0)));
            (self.timer, self.in_flight) = (from + self.request.queue_lease() / 3, false);
            timers.insert((self.timer, (self.request.id, 0)));
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

    /// Makes a keep-alive due now.
    pub(super) fn renew_now(&mut self, now: Moment, timers: &mut Timers) {
        self.renew_at = now;
        self.set_timer(timers);
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

    pub(super) fn set_timer(&mut self, timers: &mut Timers) {
        let key = self.hold.key();
        timers.remove(&(self.timer, key));
        self.timer = self.due();
        timers.insert((self.timer, key));
    }

    /// Applies the outcome of a keep-alive of its request that was sent at `sent`. Returns true if it has ended the hold.
    fn apply(
        &mut self,
        context: &StoreContext,
        sent: Moment,
        now: Moment,
        outcome: &KeepAlive,
        timers: &mut Timers,
    ) -> bool {
        self.in_flight = false;
        if self.hold.has_left() {
            // The task that has ended it releases it, and is about to remove it here.
            return false;
        }
        if sent < self.since && !matches!(outcome, KeepAlive::Held { .. }) {
            // The outcome is from before the grant. If the hold has ended since, the next keep-alive reports that.
            return false;
        }
        let name = self.hold.name();
        let reason = match outcome {
            KeepAlive::Held { terms: Some(terms), .. }
                if self.hold.is_superseded_by(*terms) && !has_bug(Bug::UnsupersededHold) =>
            {
                context.record(name, Measured::Renewal("lost"));
                LostReason::Gone
            }
            KeepAlive::Held { lease, .. } => {
                // Another process may have given the hold a longer lease. This one renews by its own TTL, which the store may have rounded up.
                let lease = (*lease).min(self.hold.request.ttl.max(self.lease));
                context.record(name, Measured::Renewal("renewed"));
                if sent < self.sent {
                    // This is the reply to an earlier keep-alive, which was overtaken.
                    return false;
                }
                let slack = self.deadline().since(now);
                context.record(name, Measured::RenewSlack(slack));
                let times = self.hold.times();
                let deadline = times.deadline(sent, lease);
                if deadline > now && self.hold.extend(deadline) {
                    let renew_at = if self.on_request { Moment::NEVER } else { times.renew_at(sent, lease) };
                    (self.sent, self.lease, self.renew_at) = (sent, lease, renew_at);
                    (self.warned, self.backoff) = (false, None);
                    self.set_timer(timers);
                    self.hold.report(GuardEvent::Renewed { deadline, slack });
                    return false;
                }
                times.passed(now)
            }
            KeepAlive::Lost(reason) => {
                context.record(name, Measured::Renewal("lost"));
                reason.clone()
            }
            // A holder is never in the queue.
            KeepAlive::Queued | KeepAlive::Unknown => LostReason::Gone,
        };
        self.hold.lose(reason) || !self.hold.has_left()
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

    /// Applies the outcome for one request; returns the holds that the outcome has ended. It counts for all holds of the request.
    pub(super) fn apply(
        &mut self,
        context: &StoreContext,
        sent: Moment,
        now: Moment,
        request: &Request,
        outcome: &KeepAlive,
    ) -> Vec<Kept> {
        if *outcome == KeepAlive::Unknown {
            tracing::debug!(lock.name = %request.name, "renewal not confirmed, retrying");
            self.failed(context, now, request.id);
            return Vec::new();
        }
        let Self { holds, waiters, timers, .. } = self;
        if let Some(waiter) = waiters.get_mut(&request.id) {
            waiter.apply(sent, now, outcome, timers);
            return Vec::new();
        }
        let ended = holds
            .range_mut(of(request.id))
            .filter_map(|(key, kept)| kept.apply(context, sent, now, outcome, timers).then_some(*key));
        let ended: Vec<Key> = ended.collect();
        let ended: Vec<Kept> = ended.iter().filter_map(|key| holds.remove(key)).collect();
        for kept in &ended {
            timers.remove(&(kept.timer, kept.hold.key()));
        }
        ended
    }

    /// Removes the waiter of `request` and its timer.
    pub(super) fn remove_waiter(&mut self, request: RequestId) {
        if let Some(waiter) = self.waiters.remove(&request) {
            self.timers.remove(&(waiter.timer, (request, 0)));
        }
    }

    /// Schedules the retry of a keep-alive of `request` that has failed, so that its effect is unknown.
    pub(super) fn failed(&mut self, context: &StoreContext, now: Moment, request: RequestId) {
        let Self { holds, waiters, timers, .. } = self;
        if let Some(waiter) = waiters.get_mut(&request) {
            timers.remove(&(waiter.timer, (request, 0)));
            (waiter.timer, waiter.in_flight) = (now + waiter.request.queue_lease() / 10, false);
            timers.insert((waiter.timer, (request, 0)));
            return;
        }
        for kept in holds.range_mut(of(request)).map(|(_, kept)| kept) {
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

/// Returns the keys of all holds of a request.
const fn of(request: RequestId) -> RangeInclusive<Key> {
    (request, 0)..=(request, u64::MAX)
}
