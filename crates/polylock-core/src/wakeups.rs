//! Wake-up registry of a store: maps each blocked request to the request that it waits for, so that a release wakes only the
//! waiters behind it and no wake-up is lost.
//!
//! Notifications and polls of the store notify it, and so do releases in this process. A waiter is identified by its request, and
//! so is the request that it waits for, which keeps its id from the queue to the hold.
//!
//! No wake-up is lost if a store keeps this order:
//! 1. The claim calls [`Wakeups::watch`] in the region in which it reads the queue, before another process can change the queue.
//! 2. The releaser calls [`Wakeups::notify`] after the change is visible.
//! 3. A notification between the reply to the claim and [`Wakeups::notified`] is kept, and `notified` returns at once.
//!
//! If the store itself hands the lock to the next waiter, [`Wakeups::register`] assigns a number, the ticket, to the waiter before the
//! claim is sent, and the claim stores the ticket. The releaser finds the ticket in the store and sends the grant to the process of
//! the waiter, which delivers it with [`Wakeups::deliver`]. The ticket is no secret: the store does not identify a request by it.
//!
//! A notification may be late. So every grant carries the queue position that it was issued for, and [`Wakeups::set_position`] records the
//! position that the last claim returned. A grant for another position is not delivered:
//! 1. A claim returns position 7. The deadline of a hold would count from the time at which this claim was sent.
//! 2. The store grants the lock to position 7. That is after 1, so the hold lasts at least until that deadline.
//! 3. If the notification is delayed until that hold has expired, the next claim joins the queue at position 9, and a deadline
//!    would count from the time at which this later claim was sent. The notification for position 7, arriving now, must not count
//!    from there.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;

use crate::{FencingToken, Grant, LockName, Mode, Request, RequestId, Wake};

/// The registry of the waiters. See the [module](self) for the order to keep.
#[derive(Debug, Default)]
pub struct Wakeups {
    state: Mutex<State>,
}

/// The notification that the store has granted a lock to the waiter of a ticket.
///
/// Stores send it as four integers separated by spaces: ticket, queue position, token, and the remaining lease in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handover {
    ticket: u64,
    position: u64,
    grant: Grant,
}

impl Handover {
    /// Creates it from ticket, queue position, token and the remaining lease in microseconds; `None` if one of them is out of
    /// range.
    #[must_use]
    pub fn new([ticket, position, token, left]: [i64; 4]) -> Option<Self> {
        let lease = Duration::from_micros(u64::try_from(left).ok()?);
        let grant = Grant::new(FencingToken::new(token)?, lease);
        Some(Self { ticket: u64::try_from(ticket).ok()?, position: u64::try_from(position).ok()?, grant })
    }

    /// Parses the same four numbers from text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let numbers: Vec<i64> = text.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
        Self::new(numbers.try_into().ok()?)
    }
}

/// A waiter of this process that can be granted the lock while all others of this process wait, because it conflicts with none of
/// those ahead of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The name of the lock.
    pub name: LockName,
    /// The request of the waiter.
    pub request: RequestId,
    /// The mode that the waiter requests.
    pub mode: Mode,
    /// The time that its queue entry lasts after a keep-alive.
    pub queue_lease: Duration,
    /// The queue position that its last claim returned.
    pub position: u64,
    /// The request that it waits for.
    pub watches: RequestId,
}

#[derive(Debug, Default)]
struct State {
    waiters: HashMap<RequestId, Waiter>,
    /// Reverse index: waiters by the request that they are blocked on.
    followers: HashMap<RequestId, Vec<RequestId>>,
    /// The waiters by ticket.
    tickets: HashMap<u64, RequestId>,
    /// The last ticket assigned.
    last: u64,
}

#[derive(Debug)]
struct Waiter {
    name: LockName,
    mode: Mode,
    queue_lease: Duration,
    watches: Option<RequestId>,
    ticket: u64,
    /// The queue position that the last claim returned; `granted` has the last grant and the position that it is for.
    position: Option<u64>,
    granted: Option<(u64, Grant)>,
    notify: Arc<Notify>,
}

impl Wakeups {
    /// Creates an empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers `request` before its claim: from now on notifications for it are kept. Returns its ticket for
    /// [`deliver`](Self::deliver), which stays the same until [`remove`](Self::remove).
    pub fn register(&self, request: &Request) -> u64 {
        self.lock().waiter(request).ticket
    }

    /// Records that `request` waits until `watched` has left. Replaces the request that it waited for before.
    pub fn watch(&self, request: &Request, watched: RequestId) {
        let mut state = self.lock();
        match state.waiter(request).watches.replace(watched) {
            Some(before) if before == watched => return,
            Some(before) => state.unlink(request.id, before),
            None => {}
        }
        state.followers.entry(watched).or_default().push(request.id);
    }

    /// Removes `request`, which holds the lock or has left the queue.
    pub fn remove(&self, request: RequestId) {
        let mut state = self.lock();
        if let Some(waiter) = state.waiters.remove(&request) {
            state.tickets.remove(&waiter.ticket);
            if let Some(watched) = waiter.watches {
                state.unlink(request, watched);
            }
        }
    }

    /// Waits until the request that `request` waits for has left, or until `request` is granted the lock. Returns at once if that
    /// has happened since [`watch`](Self::watch) or [`register`](Self::register), or if `request` is not registered.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: a notification that has arrived is kept for the next call.
    pub async fn notified(&self, request: RequestId) -> Wake {
        let notify = self.lock().waiters.get(&request).map(|waiter| waiter.notify.clone());
        if let Some(notify) = notify {
            notify.notified().await;
        }
        match self.lock().waiters.get_mut(&request) {
            Some(waiter) => match waiter.granted.take() {
                Some((position, grant)) if waiter.position == Some(position) => Wake::Granted(grant),
                _ => Wake::Stale,
            },
            None => Wake::Stale,
        }
    }

    /// Wakes the waiters that wait for `left`.
    pub fn notify(&self, left: RequestId) {
        let state = self.lock();
        for waiter in state.followers.get(&left).into_iter().flatten() {
            if let Some(waiter) = state.waiters.get(waiter) {
                waiter.notify.notify_one();
            }
        }
    }

    /// Records the queue position that the last claim of `request` returned, a number that no later position has.
    pub fn set_position(&self, request: &Request, position: u64) {
        self.lock().waiter(request).position = Some(position);
    }

    /// Wakes the waiter of the ticket, if it still waits, with the grant that the store has issued for its queue position.
    pub fn deliver(&self, Handover { ticket, position, grant }: Handover) {
        let mut state = self.lock();
        let State { tickets, waiters, .. } = &mut *state;
        if let Some(waiter) = tickets.get(&ticket).and_then(|request| waiters.get_mut(request)) {
            waiter.granted = Some((position, grant));
            waiter.notify.notify_one();
        }
    }

    /// Returns true if the last claim of `request` returned a queue position, by which a claim can look up its entry.
    #[must_use]
    pub fn has_position(&self, request: RequestId) -> bool {
        self.lock().waiters.get(&request).is_some_and(|waiter| waiter.position.is_some())
    }

    /// Returns true if a waiter of this process waits for `request` to leave.
    #[must_use]
    pub fn is_watched(&self, request: RequestId) -> bool {
        self.lock().followers.contains_key(&request)
    }

    /// Wakes `request`, if it still waits, with the grant that the store has issued for its queue position. It replaces
    /// [`deliver`](Self::deliver) for a release in the process of the waiter.
    pub fn grant(&self, request: RequestId, position: u64, grant: Grant) {
        if let Some(waiter) = self.lock().waiters.get_mut(&request) {
            waiter.granted = Some((position, grant));
            waiter.notify.notify_one();
        }
    }

    /// Wakes the waiter of the ticket, if it still waits: it may hold the lock.
    pub fn wake_ticket(&self, ticket: u64) {
        let state = self.lock();
        if let Some(waiter) = state.tickets.get(&ticket).and_then(|request| state.waiters.get(request)) {
            waiter.notify.notify_one();
        }
    }

    /// Wakes `request`, if it still waits: it may hold the lock.
    pub fn wake(&self, request: RequestId) {
        if let Some(waiter) = self.lock().waiters.get(&request) {
            waiter.notify.notify_one();
        }
    }

    /// Wakes all waiters, for example because notifications may have been lost.
    pub fn notify_all(&self) {
        for waiter in self.lock().waiters.values() {
            waiter.notify.notify_one();
        }
    }

    /// Returns true if there are no waiters.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().waiters.is_empty()
    }

    /// Returns the requests that waiters of this process wait for, by lock, without those that wait in this process themselves: a
    /// poller has to check if they have left. [`notify`](Self::notify) is called for the others when they leave.
    #[must_use]
    pub fn watched(&self) -> HashMap<LockName, Vec<RequestId>> {
        let mut names: HashMap<LockName, Vec<RequestId>> = HashMap::new();
        let State { waiters, followers, .. } = &*self.lock();
        for (watched, waiting) in followers.iter().filter(|(watched, _)| !waiters.contains_key(watched)) {
            if let Some(waiter) = waiting.first().and_then(|follower| waiters.get(follower)) {
                names.entry(waiter.name.clone()).or_default().push(*watched);
            }
        }
        names
    }

    /// Returns the waiters of this process that a release in another process may grant the lock to next. All others of this process
    /// wait for one of these to leave, or have received a grant.
    #[must_use]
    pub fn candidates(&self) -> Vec<Candidate> {
        let (mut candidates, mut granted): (Vec<Candidate>, HashSet<RequestId>) = Default::default();
        for (request, waiter) in &self.lock().waiters {
            if waiter.granted.is_some() {
                granted.insert(*request);
            }
            if let (Some(position), Some(watches)) = (waiter.position, waiter.watches) {
                candidates.push(Candidate {
                    name: waiter.name.clone(),
                    request: *request,
                    mode: waiter.mode,
                    queue_lease: waiter.queue_lease,
                    position,
                    watches,
                });
            }
        }
        candidates.sort_unstable_by(|a, b| (&a.name, a.position).cmp(&(&b.name, b.position)));
        let (mut name, mut conflicts) = (None, 0);
        candidates.retain(|candidate| {
            if name.as_ref() != Some(&candidate.name) {
                (name, conflicts) = (Some(candidate.name.clone()), 0);
            }
            let is_next = candidate.mode.bit() & conflicts == 0 && !granted.contains(&candidate.request);
            conflicts |= candidate.mode.conflicts();
            is_next
        });
        candidates
    }

    /// Returns the waiters of this process by lock; a poller may find that they hold it.
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
                mode: request.mode,
                queue_lease: request.queue_lease(),
                watches: None,
                ticket: *last,
                position: None,
                granted: None,
                notify: Arc::default(),
            }
        })
    }

    fn unlink(&mut self, request: RequestId, watched: RequestId) {
        if let Some(followers) = self.followers.get_mut(&watched) {
            followers.retain(|waiter| *waiter != request);
            if followers.is_empty() {
                self.followers.remove(&watched);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn request() -> Request {
        Request::new(LockName::new("n").unwrap(), Mode::Exclusive, Duration::from_secs(1))
    }

    #[test]
    fn a_release_wakes_only_the_waiters_behind_it() {
        let (wakeups, holder, second, third) = (Wakeups::new(), request(), request(), request());
        wakeups.watch(&second, holder.id);
        wakeups.watch(&third, second.id);
        wakeups.notify(holder.id);
        assert!(wakeups.notified(second.id).now_or_never().is_some());
        assert!(wakeups.notified(third.id).now_or_never().is_none());
    }

    #[test]
    fn a_notification_between_claim_and_wait_is_kept() {
        let (wakeups, holder, waiting) = (Wakeups::new(), request(), request());
        wakeups.watch(&waiting, holder.id);
        assert!(wakeups.notified(waiting.id).now_or_never().is_none());
        wakeups.notify(holder.id);
        assert!(wakeups.notified(waiting.id).now_or_never().is_some());
        assert!(wakeups.notified(waiting.id).now_or_never().is_none());
    }

    #[test]
    fn a_grant_reaches_its_waiter_before_the_reply_to_the_claim() {
        let (wakeups, waiting, other) = (Wakeups::new(), request(), request());
        let (ticket, others) = (wakeups.register(&waiting), wakeups.register(&other));
        assert!(ticket != others && wakeups.register(&waiting) == ticket);
        assert_eq!((wakeups.watched().len(), wakeups.waiting().into_values().flatten().count()), (0, 2));
        let grant = Grant::new(FencingToken::new(7).unwrap(), Duration::from_secs(1));
        wakeups.deliver(Handover { ticket, position: 3, grant });
        wakeups.set_position(&waiting, 3);
        assert_eq!(wakeups.notified(waiting.id).now_or_never(), Some(Wake::Granted(grant)));
        assert_eq!(wakeups.notified(waiting.id).now_or_never(), None, "woken once");
        assert_eq!(wakeups.notified(other.id).now_or_never(), None);
        wakeups.wake(other.id);
        assert_eq!(wakeups.notified(other.id).now_or_never(), Some(Wake::Stale));
        wakeups.remove(waiting.id);
        wakeups.remove(other.id);
        wakeups.deliver(Handover { ticket, position: 3, grant });
        assert!(wakeups.is_empty() && wakeups.lock().tickets.is_empty());
    }

    #[test]
    fn a_late_notification_for_an_earlier_position_is_not_a_grant() {
        let (wakeups, waiting) = (Wakeups::new(), request());
        let ticket = wakeups.register(&waiting);
        wakeups.set_position(&waiting, 7);
        // That hold has expired unnoticed, and the next claim has joined the queue again.
        wakeups.register(&waiting);
        wakeups.set_position(&waiting, 9);
        let grant = Grant::new(FencingToken::new(7).unwrap(), Duration::from_secs(1));
        wakeups.deliver(Handover { ticket, position: 7, grant });
        assert_eq!(wakeups.notified(waiting.id).now_or_never(), Some(Wake::Stale));
        wakeups.deliver(Handover { ticket, position: 9, grant });
        assert_eq!(wakeups.notified(waiting.id).now_or_never(), Some(Wake::Granted(grant)));
    }

    #[test]
    fn a_handover_is_parsed_from_four_valid_numbers() {
        let grant = Grant::new(FencingToken::new(9).unwrap(), Duration::from_millis(1500));
        assert_eq!(Handover::parse("3 7 9 1500000"), Some(Handover { ticket: 3, position: 7, grant }));
        for text in ["", "0", "3 7 9", "3 7 9 1500000 1", "3 7 9 -1", "3 7 -9 5", "3 -7 9 5", "a b c d"] {
            assert_eq!(Handover::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn candidates_conflict_with_no_waiter_of_this_process_ahead_of_them() {
        let (wakeups, holder) = (Wakeups::new(), RequestId::random());
        let wait = |name: &str, mode, position| {
            let request = Request::new(LockName::new(name).unwrap(), mode, Duration::from_secs(1));
            wakeups.watch(&request, holder);
            wakeups.set_position(&request, position);
            request
        };
        let third = wait("a", Mode::Exclusive, 30);
        let readers = [wait("a", Mode::Shared, 10), wait("a", Mode::Shared, 20)];
        wait("a", Mode::Shared, 40);
        let other = wait("b", Mode::Exclusive, 50);
        wakeups.register(&Request::new(LockName::new("c").unwrap(), Mode::Exclusive, Duration::from_secs(1)));
        let next = || wakeups.candidates().iter().map(|candidate| candidate.request).collect::<Vec<_>>();
        assert_eq!(next(), [readers[0].id, readers[1].id, other.id]);
        readers.iter().for_each(|reader| wakeups.remove(reader.id));
        assert_eq!(next(), [third.id, other.id]);
    }

    #[test]
    fn a_removed_waiter_leaves_no_entry() {
        let (wakeups, first, second, waiting) = (Wakeups::new(), request(), request(), request());
        wakeups.watch(&waiting, first.id);
        wakeups.watch(&waiting, second.id);
        wakeups.notify(first.id);
        assert!(wakeups.notified(waiting.id).now_or_never().is_none());
        assert_eq!(wakeups.watched().into_values().collect::<Vec<_>>(), [[second.id]]);
        wakeups.remove(waiting.id);
        assert!(wakeups.is_empty() && wakeups.lock().followers.is_empty());
        assert!(wakeups.notified(waiting.id).now_or_never().is_some(), "not registered: claim again");
    }
}
