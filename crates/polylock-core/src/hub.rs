//! The bell of a store: who waits for whom, so that one departure wakes one waiter and none is missed.
//!
//! Both what a store hears from others (a notification, a poll) and what happens in this process rings it. A waiter
//! is known by its request, and so is who it waits for, which stays the same from the queue to the hold.
//!
//! No wake-up is missed as long as a store keeps this order:
//! 1. in the region where it reads the queue, before anyone else can change it, it calls [`Hub::expect`];
//! 2. who leaves calls [`Hub::ring`] after the change is visible;
//! 3. a ring that comes between the claim's answer and [`Hub::rung`] is kept, and `rung` returns at once.
//!
//! Where the store itself keeps who waits for whom, it is simpler: [`Hub::enter`] before the claim is sent gives the
//! waiter a number, the claim leaves the number in the store, and who leaves finds it there and has it rung, with
//! [`Hub::ring_ticket`], in whichever process it is. The number is no secret: it can wake, and nothing else.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use crate::{LockName, Request, RequestId};

/// Who waits for whom. See the [module](self) for the order to keep.
#[derive(Debug, Default)]
pub struct Hub {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiters: HashMap<RequestId, Waiter>,
    /// Turned round: by whom they wait for.
    behind: HashMap<RequestId, Vec<RequestId>>,
    /// And by their numbers.
    tickets: HashMap<u64, RequestId>,
    /// The last number given.
    last: u64,
}

#[derive(Debug)]
struct Waiter {
    name: LockName,
    watches: Option<RequestId>,
    ticket: u64,
    bell: Arc<Notify>,
}

impl Hub {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// `request` is about to claim: from now on a ring for it is kept. Its number, by which
    /// [`ring_ticket`](Self::ring_ticket) wakes it, stays the same until it is forgotten.
    pub fn enter(&self, request: &Request) -> u64 {
        self.lock().waiter(request).ticket
    }

    /// `request` waits until `watched` has left. Replaces what it waited for before.
    pub fn expect(&self, request: &Request, watched: RequestId) {
        let mut state = self.lock();
        match state.waiter(request).watches.replace(watched) {
            Some(before) if before == watched => return,
            Some(before) => state.unlink(request.id, before),
            None => {}
        }
        state.behind.entry(watched).or_default().push(request.id);
    }

    /// `request` waits no more: it holds the lock, or has left.
    pub fn forget(&self, request: RequestId) {
        let mut state = self.lock();
        if let Some(waiter) = state.waiters.remove(&request) {
            state.tickets.remove(&waiter.ticket);
            if let Some(watched) = waiter.watches {
                state.unlink(request, watched);
            }
        }
    }

    /// Waits until who `request` watches has left; at once if that happened since [`expect`](Self::expect), or if
    /// nothing is expected.
    ///
    /// # Cancel safety
    /// Dropping it loses nothing: a ring that has come is kept for the next call.
    pub async fn rung(&self, request: RequestId) {
        let bell = self.lock().waiters.get(&request).map(|waiter| waiter.bell.clone());
        if let Some(bell) = bell {
            bell.notified().await;
        }
    }

    /// Wakes those who wait for `left`.
    pub fn ring(&self, left: RequestId) {
        let state = self.lock();
        for waiter in state.behind.get(&left).into_iter().flatten() {
            if let Some(waiter) = state.waiters.get(waiter) {
                waiter.bell.notify_one();
            }
        }
    }

    /// Wakes the waiter of this number, if it still waits.
    pub fn ring_ticket(&self, ticket: u64) {
        let state = self.lock();
        if let Some(waiter) = state.tickets.get(&ticket).and_then(|request| state.waiters.get(request)) {
            waiter.bell.notify_one();
        }
    }

    /// Wakes everybody, for instance because news may have been lost.
    pub fn ring_all(&self) {
        for waiter in self.lock().waiters.values() {
            waiter.bell.notify_one();
        }
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().waiters.is_empty()
    }

    /// Whom the waiters of this process wait for, by lock: what a poller has to look after.
    #[must_use]
    pub fn watched(&self) -> HashMap<LockName, Vec<RequestId>> {
        let mut names: HashMap<LockName, Vec<RequestId>> = HashMap::new();
        let state = self.lock();
        for waiter in state.waiters.values() {
            let Some(watches) = waiter.watches else { continue };
            let watched = names.entry(waiter.name.clone()).or_default();
            if !watched.contains(&watches) {
                watched.push(watches);
            }
        }
        names
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn waiter(&mut self, request: &Request) -> &mut Waiter {
        let Self { waiters, tickets, last, .. } = self;
        waiters.entry(request.id).or_insert_with(|| {
            *last += 1;
            tickets.insert(*last, request.id);
            Waiter { name: request.name.clone(), watches: None, ticket: *last, bell: Arc::default() }
        })
    }

    fn unlink(&mut self, request: RequestId, watched: RequestId) {
        if let Some(behind) = self.behind.get_mut(&watched) {
            behind.retain(|waiter| *waiter != request);
            if behind.is_empty() {
                self.behind.remove(&watched);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mode;
    use futures_util::FutureExt;
    use std::time::Duration;

    fn request() -> Request {
        Request::new(LockName::new("n").unwrap(), Mode::Exclusive, Duration::from_secs(1))
    }

    #[test]
    fn a_departure_wakes_those_behind_it_and_nobody_else() {
        let (hub, holder, second, third) = (Hub::new(), request(), request(), request());
        hub.expect(&second, holder.id);
        hub.expect(&third, second.id);
        hub.ring(holder.id);
        assert!(hub.rung(second.id).now_or_never().is_some());
        assert!(hub.rung(third.id).now_or_never().is_none());
    }

    #[test]
    fn a_ring_between_claim_and_wait_is_kept_also_over_a_dropped_wait() {
        let (hub, holder, me) = (Hub::new(), request(), request());
        hub.expect(&me, holder.id);
        assert!(hub.rung(me.id).now_or_never().is_none());
        hub.ring(holder.id);
        assert!(hub.rung(me.id).now_or_never().is_some());
        assert!(hub.rung(me.id).now_or_never().is_none());
    }

    #[test]
    fn a_ticket_wakes_its_waiter_also_before_the_claim_has_answered() {
        let (hub, holder, me, other) = (Hub::new(), request(), request(), request());
        let (ticket, others) = (hub.enter(&me), hub.enter(&other));
        assert!(ticket != others && hub.enter(&me) == ticket);
        assert_eq!(hub.watched().len(), 0, "nobody to look after yet");
        hub.ring_ticket(ticket);
        hub.expect(&me, holder.id);
        assert_eq!(hub.enter(&me), ticket);
        assert!(hub.rung(me.id).now_or_never().is_some());
        assert!(hub.rung(me.id).now_or_never().is_none() && hub.rung(other.id).now_or_never().is_none());
        hub.forget(me.id);
        hub.forget(other.id);
        hub.ring_ticket(ticket);
        assert!(hub.is_empty() && hub.lock().tickets.is_empty());
    }

    #[test]
    fn nothing_is_left_of_who_has_gone() {
        let (hub, first, second, me) = (Hub::new(), request(), request(), request());
        hub.expect(&me, first.id);
        hub.expect(&me, second.id);
        hub.ring(first.id);
        assert!(hub.rung(me.id).now_or_never().is_none());
        assert_eq!(hub.watched().into_values().collect::<Vec<_>>(), [[second.id]]);
        hub.forget(me.id);
        assert!(hub.is_empty() && hub.lock().behind.is_empty());
        assert!(hub.rung(me.id).now_or_never().is_some(), "nothing expected: claim again");
    }
}
