//! Wake-up registry of a store that has a queue: maps each blocked request to the request that it waits for, so that a release wakes
//! only the waiters behind it and no wake-up is lost. A store without a queue has [`waiter_queues`](crate::waiter_queues) instead.
//!
//! The store's notifications and polls wake waiters, and so do releases in this process. A waiter is identified by the id of its request,
//! and so is the request that it waits for, which keeps its id from the queue to the hold.
//!
//! A request is registered before its claim is sent, and the claim records its outcome with the handle, the [`Waiter`]:
//! ```
//! # use polylock_core::{ClaimOutcome, Grant, QueuePosition, Request, Result, wakeups::Wakeups};
//! # enum Reply { Granted(Grant), Queued(u64, QueuePosition) }
//! # fn claim(wakeups: &Wakeups, request: &Request, send: fn(u64) -> Result<Reply>) -> Result<ClaimOutcome> {
//! let waiter = wakeups.register(request);
//! Ok(match send(waiter.ticket())? {
//!     Reply::Granted(grant) => {
//!         waiter.granted();
//!         ClaimOutcome::Granted(grant)
//!     }
//!     Reply::Queued(number, position) => {
//!         waiter.queued_at(number);
//!         ClaimOutcome::Queued(position)
//!     }
//! })
//! # }
//! ```
//! Four races require this order.
//!
//! The grant overtakes the reply, so a claim registers before it is sent:
//! 1. The store enqueues the request at position 7, and a release grants it the lock at once.
//! 2. The grant arrives, and is kept with its position.
//! 3. The reply to the claim states position 7: the kept grant is valid.
//!
//! The request ahead leaves too early, so [`Waiter::queued_behind`] belongs in the critical section in which the claim reads the queue:
//! 1. The claim reads that A is ahead.
//! 2. A is released, and [`Wakeups::notify`] finds no waiter behind A.
//! 3. The claim records that it waits for A, and nobody wakes it.
//!
//! The claim gets no reply, so dropping the handle leaves the registration, which the release of the request removes:
//! 1. The store enqueues the request with ticket 3, and the reply is lost.
//! 2. The claim is repeated, and leaves the entry as it is; or the first one is delivered after it.
//! 3. A release finds ticket 3, which must still be that of the waiter.
//!
//! A notification is late, so every grant carries the queue position that it was issued for:
//! 1. A claim returns position 7. The deadline of a hold would count from the time at which this claim was sent.
//! 2. The store grants the lock to position 7. That is after 1, so the hold lasts at least until that deadline.
//! 3. If the notification is delayed until that hold has expired, the next claim joins the queue at position 9, and a deadline
//!    would count from the time at which this later claim was sent. The notification for position 7, which arrives now, must
//!    not count from there: it is discarded.

mod handover;
mod state;
mod waiter;

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use crate::{LockName, Mode, Request, RequestId, Wake, sync::lock};
pub use handover::{Handover, WaiterId};
use state::{Registration, State};
pub use waiter::Waiter;

/// The waiters of one store in this process. See the [module](self) for the life of a waiter.
#[derive(Debug, Default)]
pub struct Wakeups {
    state: Mutex<State>,
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

impl Wakeups {
    /// Registers `request` before its claim is sent: from now on notifications for it are kept. The registration lasts until the
    /// request is granted the lock or [removed](Self::remove); a later claim continues it. A request that does not queue is not
    /// registered, and its handle does nothing.
    pub fn register(&self, request: &Request) -> Waiter<'_> {
        let (ticket, has_position) = if request.queues { self.lock().register(request) } else { (0, false) };
        Waiter { state: &self.state, request: request.id, ticket, has_position }
    }

    /// Removes the registration of `request`, which is about to be released or withdrawn, or has left the queue, and ends its wait.
    pub fn remove(&self, request: RequestId) {
        self.lock().remove(request);
    }

    /// Waits until the request that `request` waits for has left, or until `request` is granted the lock, which ends its
    /// registration. Returns at once if that has happened since [`register`](Self::register), or if `request` is not registered.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: a notification that has arrived is kept for the next call.
    pub async fn notified(&self, request: RequestId) -> Wake {
        let waits = |waiter: &mut Registration| waiter.notify.get_or_insert_default().clone();
        let notify = self.lock().waiters.get_mut(&request).map(waits);
        if let Some(notify) = notify {
            notify.notified().await;
        }
        let mut state = self.lock();
        let Some(waiter) = state.waiters.get_mut(&request) else { return Wake::Stale };
        match waiter.granted.take() {
            Some((position, grant)) if waiter.position == Some(position) => {
                state.remove(request);
                Wake::Granted(grant)
            }
            _ => Wake::Stale,
        }
    }

    /// Wakes the waiters that wait for `left`. The caller has already made its departure visible to claims.
    pub fn notify(&self, left: RequestId) {
        let State { waiters, followers, .. } = &mut *self.lock();
        for waiter in followers.get(&left).into_iter().flatten() {
            if let Some(waiter) = waiters.get_mut(waiter) {
                waiter.notify();
            }
        }
    }

    /// Wakes a waiter, if it still waits, with the grant that the store has issued for its queue position.
    pub fn deliver(&self, Handover { waiter, position, grant }: Handover) {
        if let Some(waiter) = self.lock().find(waiter) {
            waiter.granted = Some((position, grant));
            waiter.notify();
        }
    }

    /// Wakes a waiter, if it still waits, without a grant: it may hold the lock, which its next claim finds out.
    pub fn wake(&self, waiter: WaiterId) {
        if let Some(waiter) = self.lock().find(waiter) {
            waiter.notify();
        }
    }

    /// Wakes all waiters in order of their registration, for example because notifications may have been lost.
    pub fn notify_all(&self) {
        let State { waiters, tickets, .. } = &mut *self.lock();
        tickets
            .values()
            .for_each(|request| waiters.get_mut(request).into_iter().for_each(Registration::notify));
    }

    /// Wakes the waiters of one lock in order of their registration, for example because a reply with their grants may have been lost.
    pub fn notify_lock(&self, name: &LockName) {
        let State { waiters, tickets, .. } = &mut *self.lock();
        for request in tickets.values() {
            if let Some(waiter) = waiters.get_mut(request).filter(|waiter| waiter.name == *name) {
                waiter.notify();
            }
        }
    }

    /// Returns true if a waiter of this process waits for `request` to leave.
    #[must_use]
    pub fn is_watched(&self, request: RequestId) -> bool {
        self.lock().followers.contains_key(&request)
    }

    /// Returns true if there are no waiters.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().waiters.is_empty()
    }

    /// Returns the requests that waiters of this process wait for, by lock, except for requests that wait in this process themselves. A
    /// poller checks if they have left; for the others, [`notify`](Self::notify) is called when they leave.
    #[must_use]
    pub fn watched(&self) -> BTreeMap<LockName, Vec<RequestId>> {
        let mut names: BTreeMap<LockName, Vec<RequestId>> = BTreeMap::new();
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

    /// Returns the waiters of this process, by lock: a poller checks if they hold it.
    #[must_use]
    pub fn waiting(&self) -> BTreeMap<LockName, Vec<RequestId>> {
        let mut names: BTreeMap<LockName, Vec<RequestId>> = BTreeMap::new();
        for (request, waiter) in &self.lock().waiters {
            names.entry(waiter.name.clone()).or_default().push(*request);
        }
        names
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FencingToken, Grant};
    use futures_util::FutureExt;

    fn request() -> Request {
        Request::new(LockName::new("n").unwrap(), Mode::Exclusive, Duration::from_secs(1))
    }

    fn handover(ticket: u64, position: u64) -> Handover {
        let grant = Grant::new(FencingToken::new(9).unwrap(), Duration::from_millis(1500));
        Handover { waiter: WaiterId::Ticket(ticket), position, grant }
    }

    #[test]
    fn a_release_wakes_only_the_waiters_behind_it() {
        let (wakeups, holder, second, third) = (Wakeups::default(), request(), request(), request());
        wakeups.register(&second).queued_behind(holder.id);
        wakeups.register(&third).queued_behind(second.id);
        wakeups.notify(holder.id);
        assert!(wakeups.notified(second.id).now_or_never().is_some());
        assert!(wakeups.notified(third.id).now_or_never().is_none());
    }

    #[test]
    fn a_notification_between_claim_and_wait_is_kept() {
        let (wakeups, holder, waiting) = (Wakeups::default(), request(), request());
        wakeups.register(&waiting).queued_behind(holder.id);
        assert!(wakeups.notified(waiting.id).now_or_never().is_none());
        wakeups.notify(holder.id);
        assert!(wakeups.notified(waiting.id).now_or_never().is_some());
        assert!(wakeups.notified(waiting.id).now_or_never().is_none());
    }

    #[test]
    fn a_grant_reaches_its_waiter_before_the_reply_to_the_claim() {
        let (wakeups, waiting, other) = (Wakeups::default(), request(), request());
        let (claim, others) = (wakeups.register(&waiting), wakeups.register(&other).ticket());
        let ticket = claim.ticket();
        assert!(ticket != others && wakeups.register(&waiting).ticket() == ticket);
        assert_eq!((wakeups.watched().len(), wakeups.waiting().into_values().flatten().count()), (0, 2));
        wakeups.deliver(handover(ticket, 3));
        claim.queued_at(3);
        assert_eq!(
            wakeups.notified(waiting.id).now_or_never(),
            Some(Wake::Granted(handover(ticket, 3).grant))
        );
        assert_eq!(wakeups.waiting().into_values().flatten().collect::<Vec<_>>(), [other.id]);
        assert_eq!(wakeups.notified(other.id).now_or_never(), None);
        wakeups.wake(WaiterId::Request(other.id));
        assert_eq!(wakeups.notified(other.id).now_or_never(), Some(Wake::Stale));
        assert_eq!(wakeups.notified(other.id).now_or_never(), None, "woken once");
        wakeups.remove(other.id);
        wakeups.deliver(handover(ticket, 3));
        assert!(wakeups.is_empty() && wakeups.lock().tickets.is_empty());
    }

    #[test]
    fn the_waiters_of_one_lock_are_woken() {
        let (wakeups, waiting, mut other) = (Wakeups::default(), request(), request());
        other.name = LockName::new("other").unwrap();
        for request in [&waiting, &other] {
            wakeups.register(request).queued_at(3);
        }
        wakeups.notify_lock(&waiting.name);
        assert_eq!(wakeups.notified(waiting.id).now_or_never(), Some(Wake::Stale));
        assert_eq!(wakeups.notified(other.id).now_or_never(), None);
    }

    #[test]
    fn a_claim_without_a_reply_stays_registered_until_it_is_granted() {
        let (wakeups, waiting) = (Wakeups::default(), request());
        let ticket = wakeups.register(&waiting).ticket();
        wakeups.wake(WaiterId::Ticket(ticket));
        let again = wakeups.register(&waiting);
        assert_eq!((again.ticket(), again.has_position()), (ticket, false));
        again.queued_at(3);
        assert_eq!(
            wakeups.notified(waiting.id).now_or_never(),
            Some(Wake::Stale),
            "kept from the first claim"
        );
        let last = wakeups.register(&waiting);
        assert_eq!((last.ticket(), last.has_position()), (ticket, true));
        last.granted();
        assert!(wakeups.is_empty() && wakeups.lock().tickets.is_empty());
    }

    #[test]
    fn a_request_that_does_not_queue_is_not_registered() {
        let (wakeups, holder, mut attempt) = (Wakeups::default(), request(), request());
        attempt.queues = false;
        let waiter = wakeups.register(&attempt);
        waiter.queued_at(3);
        waiter.queued_behind(holder.id);
        assert!(waiter.ticket() == 0 && wakeups.is_empty() && !wakeups.is_watched(holder.id));
    }

    #[test]
    fn a_late_notification_for_an_earlier_position_is_not_a_grant() {
        let (wakeups, waiting) = (Wakeups::default(), request());
        let ticket = wakeups.register(&waiting).ticket();
        wakeups.register(&waiting).queued_at(7);
        // That hold has expired unnoticed, and the next claim has joined the queue again.
        wakeups.register(&waiting).queued_at(9);
        wakeups.deliver(handover(ticket, 7));
        assert_eq!(wakeups.notified(waiting.id).now_or_never(), Some(Wake::Stale));
        let to_request = Handover { waiter: WaiterId::Request(waiting.id), ..handover(ticket, 9) };
        wakeups.deliver(to_request);
        assert_eq!(wakeups.notified(waiting.id).now_or_never(), Some(Wake::Granted(to_request.grant)));
    }

    #[test]
    fn candidates_conflict_with_no_waiter_of_this_process_ahead_of_them() {
        let (wakeups, holder) = (Wakeups::default(), RequestId::random());
        let wait = |name: &str, mode, position| {
            let request = Request::new(LockName::new(name).unwrap(), mode, Duration::from_secs(1));
            let waiter = wakeups.register(&request);
            waiter.queued_behind(holder);
            waiter.queued_at(position);
            request
        };
        let third = wait("a", Mode::Exclusive, 30);
        let readers = [wait("a", Mode::Shared, 10), wait("a", Mode::Shared, 20)];
        wait("a", Mode::Shared, 40);
        let other = wait("b", Mode::Exclusive, 50);
        let unanswered = Request::new(LockName::new("c").unwrap(), Mode::Exclusive, Duration::from_secs(1));
        assert!(wakeups.register(&unanswered).ticket() != 0);
        let next = || wakeups.candidates().iter().map(|candidate| candidate.request).collect::<Vec<_>>();
        assert_eq!(next(), [readers[0].id, readers[1].id, other.id]);
        readers.iter().for_each(|reader| wakeups.remove(reader.id));
        assert_eq!(next(), [third.id, other.id]);
    }

    #[test]
    fn a_removed_waiter_leaves_no_entry() {
        let (wakeups, first, second, waiting) = (Wakeups::default(), request(), request(), request());
        wakeups.register(&waiting).queued_behind(first.id);
        wakeups.register(&waiting).queued_behind(second.id);
        wakeups.notify(first.id);
        assert!(wakeups.notified(waiting.id).now_or_never().is_none());
        assert_eq!(wakeups.watched().into_values().collect::<Vec<_>>(), [[second.id]]);
        let mut wait = std::pin::pin!(wakeups.notified(waiting.id));
        assert!(wait.as_mut().now_or_never().is_none());
        wakeups.remove(waiting.id);
        assert!(wakeups.is_empty() && wakeups.lock().followers.is_empty());
        assert_eq!(wait.now_or_never(), Some(Wake::Stale), "it ends with the registration");
        assert!(wakeups.notified(waiting.id).now_or_never().is_some(), "not registered: claim again");
    }
}
