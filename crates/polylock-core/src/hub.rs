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
//! Where the store itself hands the lock to the next waiter, it is simpler: [`Hub::enter`] before the claim is sent gives
//! the waiter a number, its ticket, which the claim leaves in the store; who leaves finds it there and has the grant told,
//! with [`Hub::hand_over`], in whichever process it is. The ticket is no secret: a request is not known by it in the store.
//! News may be late, so a grant names the place in the queue that it was made for, and [`Hub::placed`] says which place the
//! last claim left the waiter in. A grant for another one is not told:
//! 1. a claim was answered with place 7, and the deadline of a hold would count from its sending;
//! 2. the store hands the lock to place 7: that is after 1, so the hold lasts at least that long;
//! 3. had this news been lost, and the hold run out, the next claim would have joined at place 9, and its hold would count
//!    from a later sending: the news about place 7, coming now, must not count from there.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;

use crate::{FencingToken, Grant, LockName, Request, RequestId, Wake};

/// Who waits for whom. See the [module](self) for the order to keep.
#[derive(Debug, Default)]
pub struct Hub {
    state: Mutex<State>,
}

/// The news that the store has handed a lock to the waiter of a ticket.
///
/// Stores tell it as four whole numbers with spaces between: ticket, place, token, and what is left of the lease in us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handed {
    ticket: u64,
    place: u64,
    grant: Grant,
}

impl Handed {
    /// From ticket, place, token and what is left of the lease in us; `None` if they make no sense.
    #[must_use]
    pub fn new([ticket, place, token, left]: [i64; 4]) -> Option<Self> {
        let lease = Duration::from_micros(u64::try_from(left).ok()?);
        let grant = Grant::new(FencingToken::new(token)?, lease);
        Some(Self { ticket: u64::try_from(ticket).ok()?, place: u64::try_from(place).ok()?, grant })
    }

    /// From the same four as text.
    #[must_use]
    pub fn parse(news: &str) -> Option<Self> {
        let numbers: Vec<i64> = news.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
        Self::new(numbers.try_into().ok()?)
    }
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
    /// Which place the last claim found, and which one the last grant was for.
    place: Option<u64>,
    granted: Option<(u64, Grant)>,
    bell: Arc<Notify>,
}

impl Hub {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// `request` is about to claim: from now on a ring for it is kept. Its number, by which
    /// [`hand_over`](Self::hand_over) knows it, stays the same until it is forgotten.
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

    /// Waits until who `request` watches has left, or until it is handed the lock; at once if that happened since
    /// [`expect`](Self::expect) or [`enter`](Self::enter), or if nothing is expected.
    ///
    /// # Cancel safety
    /// Dropping it loses nothing: a ring that has come is kept for the next call.
    pub async fn rung(&self, request: RequestId) -> Wake {
        let bell = self.lock().waiters.get(&request).map(|waiter| waiter.bell.clone());
        if let Some(bell) = bell {
            bell.notified().await;
        }
        match self.lock().waiters.get_mut(&request) {
            Some(waiter) => match waiter.granted.take() {
                Some((place, grant)) if waiter.place == Some(place) => Wake::Granted(grant),
                _ => Wake::Stale,
            },
            None => Wake::Stale,
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

    /// The last claim of `request` was answered with this place in the queue, a number that no later place has.
    pub fn placed(&self, request: &Request, place: u64) {
        self.lock().waiter(request).place = Some(place);
    }

    /// Wakes the waiter of the ticket, if it still waits, with what the store has granted to its place.
    pub fn hand_over(&self, Handed { ticket, place, grant }: Handed) {
        let mut state = self.lock();
        let State { tickets, waiters, .. } = &mut *state;
        if let Some(waiter) = tickets.get(&ticket).and_then(|request| waiters.get_mut(request)) {
            waiter.granted = Some((place, grant));
            waiter.bell.notify_one();
        }
    }

    /// Whether the last claim of `request` has left it in a place in the queue, which a claim can look up.
    #[must_use]
    pub fn is_placed(&self, request: RequestId) -> bool {
        self.lock().waiters.get(&request).is_some_and(|waiter| waiter.place.is_some())
    }

    /// Whether a waiter of this process waits for `request` to leave.
    #[must_use]
    pub fn is_watched(&self, request: RequestId) -> bool {
        self.lock().behind.contains_key(&request)
    }

    /// Wakes `request`, if it still waits, with what the store has granted to its place: as [`hand_over`](Self::hand_over), for a
    /// release in the process of the waiter.
    pub fn grant(&self, request: RequestId, place: u64, grant: Grant) {
        if let Some(waiter) = self.lock().waiters.get_mut(&request) {
            waiter.granted = Some((place, grant));
            waiter.bell.notify_one();
        }
    }

    /// Wakes the waiter of the ticket, if it still waits: it may hold the lock.
    pub fn wake_ticket(&self, ticket: u64) {
        let state = self.lock();
        if let Some(waiter) = state.tickets.get(&ticket).and_then(|request| state.waiters.get(request)) {
            waiter.bell.notify_one();
        }
    }

    /// Wakes `request`, if it still waits: it may hold the lock.
    pub fn wake(&self, request: RequestId) {
        if let Some(waiter) = self.lock().waiters.get(&request) {
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

    /// The requests that waiters of this process wait for, by lock, without those that wait in this process themselves: a poller has to
    /// look whether they have left. [`ring`](Self::ring) is called for the others when they leave.
    #[must_use]
    pub fn watched(&self) -> HashMap<LockName, Vec<RequestId>> {
        let mut names: HashMap<LockName, Vec<RequestId>> = HashMap::new();
        let State { waiters, behind, .. } = &*self.lock();
        for (watched, followers) in behind.iter().filter(|(watched, _)| !waiters.contains_key(watched)) {
            if let Some(waiter) = followers.first().and_then(|follower| waiters.get(follower)) {
                names.entry(waiter.name.clone()).or_default().push(*watched);
            }
        }
        names
    }

    /// The waiters of this process, by lock: whom a poller may find holding.
    #[must_use]
    pub fn waiting(&self) -> HashMap<LockName, Vec<RequestId>> {
        let mut names: HashMap<LockName, Vec<RequestId>> = HashMap::new();
        for (request, waiter) in &self.lock().waiters {
            names.entry(waiter.name.clone()).or_default().push(*request);
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
            Waiter {
                name: request.name.clone(),
                watches: None,
                ticket: *last,
                place: None,
                granted: None,
                bell: Arc::default(),
            }
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
    fn a_grant_reaches_its_waiter_also_before_the_claim_has_answered() {
        let (hub, me, other) = (Hub::new(), request(), request());
        let (ticket, others) = (hub.enter(&me), hub.enter(&other));
        assert!(ticket != others && hub.enter(&me) == ticket);
        assert_eq!((hub.watched().len(), hub.waiting().into_values().flatten().count()), (0, 2));
        let grant = Grant::new(FencingToken::new(7).unwrap(), Duration::from_secs(1));
        hub.hand_over(Handed { ticket, place: 3, grant });
        hub.placed(&me, 3);
        assert_eq!(hub.rung(me.id).now_or_never(), Some(Wake::Granted(grant)));
        assert_eq!(hub.rung(me.id).now_or_never(), None, "told once");
        assert_eq!(hub.rung(other.id).now_or_never(), None);
        hub.wake(other.id);
        assert_eq!(hub.rung(other.id).now_or_never(), Some(Wake::Stale));
        hub.forget(me.id);
        hub.forget(other.id);
        hub.hand_over(Handed { ticket, place: 3, grant });
        assert!(hub.is_empty() && hub.lock().tickets.is_empty());
    }

    #[test]
    fn late_news_of_an_earlier_place_is_no_grant() {
        let (hub, me) = (Hub::new(), request());
        let ticket = hub.enter(&me);
        hub.placed(&me, 7);
        // That hold has run out unnoticed, and the next claim joined anew.
        hub.enter(&me);
        hub.placed(&me, 9);
        let grant = Grant::new(FencingToken::new(7).unwrap(), Duration::from_secs(1));
        hub.hand_over(Handed { ticket, place: 7, grant });
        assert_eq!(hub.rung(me.id).now_or_never(), Some(Wake::Stale));
        hub.hand_over(Handed { ticket, place: 9, grant });
        assert_eq!(hub.rung(me.id).now_or_never(), Some(Wake::Granted(grant)));
    }

    #[test]
    fn news_are_four_numbers_that_make_sense() {
        let grant = Grant::new(FencingToken::new(9).unwrap(), Duration::from_millis(1500));
        assert_eq!(Handed::parse("3 7 9 1500000"), Some(Handed { ticket: 3, place: 7, grant }));
        for news in ["", "0", "3 7 9", "3 7 9 1500000 1", "3 7 9 -1", "3 7 -9 5", "3 -7 9 5", "a b c d"] {
            assert_eq!(Handed::parse(news), None, "{news:?}");
        }
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
