//! The bell of a store: who waits for whom, so that one departure wakes one waiter and none is missed.
//!
//! Both what a store hears from others (a notification, a poll) and what happens in this process rings it. A waiter
//! is known by its request, and so is who it waits for, which stays the same from the queue to the hold.
//!
//! No wake-up is missed as long as a store keeps this order:
//! 1. in the region where it reads the queue, before anyone else can change it, it calls [`Hub::expect`];
//! 2. who leaves calls [`Hub::ring`] after the change is visible;
//! 3. a ring that comes between the claim's answer and [`Hub::rung`] is kept, and `rung` returns at once.

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
}

#[derive(Debug)]
struct Waiter {
    name: LockName,
    watches: RequestId,
    bell: Arc<Notify>,
}

impl Hub {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// `request` waits until `watched` has left. Replaces what it waited for before.
    pub fn expect(&self, request: &Request, watched: RequestId) {
        let mut state = self.lock();
        match state.waiters.get_mut(&request.id) {
            Some(waiter) if waiter.watches == watched => return,
            Some(waiter) => {
                let before = std::mem::replace(&mut waiter.watches, watched);
                state.unlink(request.id, before);
            }
            None => {
                let waiter = Waiter { name: request.name.clone(), watches: watched, bell: Arc::default() };
                state.waiters.insert(request.id, waiter);
            }
        }
        state.behind.entry(watched).or_default().push(request.id);
    }

    /// `request` waits no more: it holds the lock, or has left.
    pub fn forget(&self, request: RequestId) {
        let mut state = self.lock();
        if let Some(waiter) = state.waiters.remove(&request) {
            state.unlink(request, waiter.watches);
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
            let watched = names.entry(waiter.name.clone()).or_default();
            if !watched.contains(&waiter.watches) {
                watched.push(waiter.watches);
            }
        }
        names
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
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
