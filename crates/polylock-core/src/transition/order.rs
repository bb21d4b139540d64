//! Finds processes that name the two stores in the opposite order.
//!
//! 1. P, with `both:A;B`, has the lock in A and waits for it in B.
//! 2. Q, with `both:B;A`, has it in B and waits for it in A. Neither ever gets both.
//!
//! P sees that the holder in its new store waits in its old one, where P itself has the lock. A process with the right order never does that: it
//! waits in the new store only while it has the lock in the old one. Requests are compared as inspection shows them, and began at the same
//! time, because Q claims the lock in A as soon as it has it in B.
//!
//! Two processes with the same owner may look like one, so this is no proof. It is reported as a temporary error: the request is repeated, goes
//! on if it was an illusion, and otherwise fails after the caller's `outage` or `wait` with an error that names the cause. Its withdrawal then
//! lets the other one go on.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use crate::{
    Clock, Entry, Fault, Inspect, LockStatus, Moment, Operation, OwnerId, Request, Result, Store,
    SystemClock, Unavailable, process, requests::RequestTable, sync::lock,
};

use super::capabilities::NAME;

/// The time after which a request that waits in the new store is looked at, and then from time to time.
const FIRST_LOOK: Duration = Duration::from_secs(2);
const BETWEEN_LOOKS: Duration = Duration::from_secs(5);
/// The pause between two looks while the order seems to be the opposite one.
const AGAIN: Duration = Duration::from_millis(500);
/// The longest time between a grant in the one store and the claim in the other.
const SAME_TIME: Duration = Duration::from_secs(2);

/// The looks at both stores.
#[derive(Debug)]
pub(super) struct OrderCheck {
    /// The old and the new store; `None` if they can't be inspected.
    stores: Option<[Arc<dyn Inspect>; 2]>,
    looks: Mutex<RequestTable<Look>>,
}

#[derive(Debug)]
struct Look {
    next: Moment,
    /// The owner of a request with the opposite order.
    found: Option<OwnerId>,
}

impl OrderCheck {
    pub(super) fn new(old: &Store, new: &Store) -> Arc<Self> {
        let stores = old.inspect.clone().zip(new.inspect.clone()).map(|(old, new)| [old, new]);
        Arc::new(Self { stores, looks: Mutex::default() })
    }

    fn looks(&self) -> MutexGuard<'_, RequestTable<Look>> {
        lock(&self.looks)
    }

    pub(super) fn forget(&self, request: &Request) {
        self.looks().remove(&request.id);
    }

    pub(super) fn len(&self) -> usize {
        self.looks().len()
    }

    /// Checks a request that has the lock in the old store and waits in the new one. The stores are read in the background, so this does not
    /// delay a claim; a later one gets the result.
    ///
    /// # Errors
    /// A temporary error if another request has the lock in the new store and seems to wait in the old one.
    pub(super) fn check(self: &Arc<Self>, request: &Request) -> Result<()> {
        let Some(stores) = &self.stores else { return Ok(()) };
        let now = SystemClock.now();
        let mut looks = self.looks();
        let first = || Look { next: now + FIRST_LOOK, found: None };
        let look = looks.update(request.id, now, request.obsolete_at(now), first);
        if now >= look.next {
            look.next = now + if look.found.is_some() { AGAIN } else { BETWEEN_LOOKS };
            process::spawn(Self::look(self.clone(), stores.clone(), request.clone()));
        }
        let Some(other) = &look.found else { return Ok(()) };
        let cause = format!(
            "{other} has lock {} in the new store and seems to wait for it in the old one: name the stores in the same order \
             everywhere, both:OLD;NEW",
            request.name
        );
        Err(Unavailable::new(NAME, Operation::Claim, Fault::Temporary, cause).into())
    }

    async fn look(self: Arc<Self>, [old, new]: [Arc<dyn Inspect>; 2], request: Request) {
        let (old, new) = tokio::join!(old.inspect(&request.name), new.inspect(&request.name));
        // What was found before does not hold any more if the stores do not reply.
        let found = old.ok().zip(new.ok()).and_then(|(old, new)| opposite(&request, &old, &new));
        if let Some(look) = self.looks().get_mut(&request.id) {
            if found.is_some() {
                look.next = look.next.min(SystemClock.now() + AGAIN);
            }
            look.found = found;
        }
    }
}

/// Returns the owner of a request that has the lock in the new store, in the way of `request`, and waits in the old one.
fn opposite(request: &Request, old: &LockStatus, new: &LockStatus) -> Option<OwnerId> {
    let is_same = |one: &Entry, other: &Entry| {
        (&one.owner, one.mode, &one.label) == (&other.owner, other.mode, &other.label)
    };
    let waits_in_old = |holder: &Entry| {
        let began_with = |waiter: &&Entry| waiter.age.abs_diff(holder.age) <= SAME_TIME;
        old.waiters.iter().filter(began_with).any(|waiter| is_same(waiter, holder))
            && !old.holders.iter().any(|other| is_same(other, holder))
    };
    let in_the_way = |holder: &&Entry| holder.mode.conflicts_with(request.mode);
    new.holders
        .iter()
        .filter(in_the_way)
        .find(|holder| waits_in_old(holder))
        .map(|holder| holder.owner.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClaimOutcome, Error, LockName, Mode, memory, transition::both};

    fn request(owner: &str) -> Request {
        let mut request = Request::new(LockName::new("n").unwrap(), Mode::Exclusive, Duration::from_secs(9));
        request.owner = OwnerId::new(owner).unwrap();
        request
    }

    async fn is_granted(store: &Store, request: &Request) -> bool {
        matches!(store.backend.claim(request).await.unwrap(), ClaimOutcome::Granted(_))
    }

    #[tokio::test]
    async fn processes_with_opposite_orders_find_each_other() {
        let (a, b) = (memory::connect(), memory::connect());
        let (p, q) = (request("p"), request("q"));
        // Each has the lock in its old store before it claims it in its new one.
        assert!(is_granted(&a, &p).await && is_granted(&b, &q).await);
        let mut left = vec![(both(a.clone(), b.clone()).unwrap(), p, "q"), (both(b, a).unwrap(), q, "p")];
        let began = SystemClock.now();
        while let Some((store, request, other)) = left.pop() {
            match store.backend.claim(&request).await {
                Ok(ClaimOutcome::Granted(grant)) => panic!("{grant:?}"),
                Ok(ClaimOutcome::Queued(_)) => left.insert(0, (store, request, other)),
                Err(error) => {
                    assert!(matches!(error, Error::Unavailable(_)) && error.is_temporary(), "{error}");
                    let text = error.chain();
                    assert!(text.contains(&format!("{other} has lock n in the new store")), "{text}");
                }
            }
            assert!(SystemClock.now().since(began) < Duration::from_secs(8), "not found: {left:?}");
            SystemClock.sleep_until(SystemClock.now() + Duration::from_millis(5)).await;
        }
    }

    fn status(holders: &[Entry], waiters: &[Entry]) -> LockStatus {
        LockStatus::new(LockName::new("n").unwrap(), holders.to_vec(), waiters.to_vec())
    }

    #[test]
    fn a_holder_that_does_not_wait_in_the_old_store_is_none() {
        let entry = |owner: &str, age: u64| {
            let (owner, age) = (OwnerId::new(owner).unwrap(), Duration::from_secs(age));
            Entry::new(Mode::Exclusive, owner, "", None, age, Duration::from_secs(9))
        };
        let (me, new) = (request("me"), status(&[entry("q", 10)], &[entry("me", 9)]));
        let found = |old: LockStatus| opposite(&me, &old, &new).map(|owner| owner.to_string());
        let mine = [entry("me", 9)];
        assert_eq!(found(status(&mine, &[entry("q", 9)])).as_deref(), Some("q"));
        // Processes of the new store alone, and one that waits behind this request.
        assert_eq!(found(status(&mine, &[])), None);
        assert_eq!(found(status(&mine, &[entry("r", 9)])), None);
        // A hold from before the present wait of its owner, and two processes with one owner.
        assert_eq!(found(status(&mine, &[entry("q", 4)])), None);
        assert_eq!(found(status(&[entry("me", 9), entry("q", 10)], &[entry("q", 9)])), None);
    }
}
