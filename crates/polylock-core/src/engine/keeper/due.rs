//! The requests and holds that are due at a time, as pure functions: the holds that have ended, and the requests of the next
//! batches.

use std::sync::Arc;

use super::state::{Kept, State};
use crate::{Capabilities, Moment, Request, RequestId};

/// The work that is due.
#[derive(Debug, Default)]
pub(super) struct Due {
    /// The holds that have ended, or were passed on because their guards were not received.
    pub(super) ended: Vec<Kept>,
    /// The requests to be kept alive, in batches of the size that the store takes. A batch without requests extends the lease that
    /// all waiters share.
    pub(super) batches: Vec<Vec<Arc<Request>>>,
}

/// Takes everything that is due by `now` and, if there is anything, everything that is due soon, which would need another batch.
pub(super) fn take(state: &mut State, now: Moment, can: &Capabilities) -> Due {
    let mut due = Due::default();
    let mut soon = Soon::default();
    let mut window = now;
    while let Some((at, key)) = state.timers.first().copied().filter(|(at, _)| *at <= now) {
        state.timers.remove(&(at, key));
        let (id, _) = key;
        if let Some(waiter) = state.waiters.get_mut(&id) {
            if waiter.entry.strong_count() == 0 {
                state.waiters.remove(&id);
                continue;
            }
            window = window.max(now + waiter.request.queue_lease() / 12);
            soon.waiters.push(waiter.request.clone());
            waiter.sent(now, &mut state.timers);
        } else if let Some(kept) = state.holds.get_mut(&key) {
            if kept.hold.has_left() {
                // The task that has ended it releases it, and is about to remove it here.
                continue;
            }
            if kept.has_ended(now) {
                due.ended.extend(state.holds.remove(&key));
                continue;
            }
            if kept.renew_at <= now {
                window = window.max(now + kept.lease / 12);
                soon.holds.push(kept.hold.request.clone());
                kept.sent(now);
            }
            kept.set_timer(&mut state.timers);
        }
    }
    let queue_is_due = state.queue.as_ref().is_some_and(|queue| queue.at <= now);
    if !soon.is_empty() || queue_is_due {
        take_soon(state, now, window, &mut soon);
        if let Some(queue) = &mut state.queue {
            queue.at = now + queue.ttl / 3;
        }
        due.batches = soon.in_batches(can.keep_alive_batch.max(1));
    }
    due
}

/// The requests to be kept alive, holds first: a waiter that is late loses its queue position, a hold its lock.
#[derive(Debug, Default)]
struct Soon {
    holds: Vec<Arc<Request>>,
    waiters: Vec<Arc<Request>>,
}

impl Soon {
    const fn is_empty(&self) -> bool {
        self.holds.is_empty() && self.waiters.is_empty()
    }

    /// Returns at least one batch, for a lease that is shared.
    fn in_batches(self, size: usize) -> Vec<Vec<Arc<Request>>> {
        let mut requests = self.holds;
        requests.extend(self.waiters);
        let mut batches = Vec::new();
        while requests.len() > size {
            let rest = requests.split_off(size);
            batches.push(std::mem::replace(&mut requests, rest));
        }
        batches.push(requests);
        batches
    }
}

/// Adds everything that is due by `window` and not yet in flight.
fn take_soon(state: &mut State, now: Moment, window: Moment, soon: &mut Soon) {
    let last = (window, (RequestId::LAST, u64::MAX));
    let keys = state.timers.range(..=last).map(|(_, key)| *key).collect::<Vec<_>>();
    for key in keys {
        let (id, _) = key;
        if let Some(waiter) = state.waiters.get_mut(&id) {
            if !waiter.in_flight && waiter.entry.strong_count() > 0 {
                soon.waiters.push(waiter.request.clone());
                state.timers.remove(&(waiter.timer, key));
                waiter.sent(now, &mut state.timers);
            }
        } else if let Some(kept) = state.holds.get_mut(&key)
            && !kept.in_flight
            && kept.renew_at <= window
            && !kept.hold.has_left()
        {
            soon.holds.push(kept.hold.request.clone());
            kept.sent(now);
            kept.set_timer(&mut state.timers);
        }
    }
}

impl Kept {
    fn has_ended(&self, now: Moment) -> bool {
        if self.deadline() <= now {
            self.hold.lose(self.hold.times().passed(now));
        }
        self.hold.is_lost() || (self.receive_by() <= now && self.hold.pass_on())
    }
}
