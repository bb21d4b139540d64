//! The tests of single interleavings. The conformance suite, and the processes of `integration-tests`, test the rest.

use std::time::Duration;

use async_trait::async_trait;

use super::*;
use crate::{
    ClaimOutcome, Clock, FencingToken, Grant, KeepAlive, LockName, Mode, RaiseToken, Release, Request,
    SystemClock, memory,
};

pub(super) struct Stores {
    pub(super) old: Store,
    pub(super) new: Store,
    pub(super) both: Store,
}

pub(super) fn stores() -> Stores {
    let (old, new) = (memory::connect(), memory::connect());
    Stores { both: both(old.clone(), new.clone()).unwrap(), old, new }
}

fn request(mode: Mode) -> Request {
    Request::new(LockName::new("n").unwrap(), mode, Duration::from_secs(9))
}

async fn held(store: &Store, request: &Request) -> Grant {
    match store.backend.claim(request).await.unwrap() {
        ClaimOutcome::Granted(grant) => grant,
        ClaimOutcome::Queued(position) => panic!("queued: {position:?}"),
    }
}

async fn queued(store: &Store, request: &Request) {
    let ClaimOutcome::Queued(_) = store.backend.claim(request).await.unwrap() else { panic!("granted") };
}

async fn kept(store: &Store, request: &Request) -> KeepAlive {
    store.backend.keep_alive(&[Arc::new(request.clone())]).await.unwrap().remove(0)
}

async fn released(store: &Store, request: &Request) -> Release {
    store.backend.release(request).await.unwrap()
}

/// Acquires and releases the lock, and returns the token.
pub(super) async fn token(store: &Store) -> FencingToken {
    let request = request(Mode::Exclusive);
    let grant = held(store, &request).await;
    assert_eq!(released(store, &request).await, Release::Released);
    grant.token
}

#[tokio::test]
async fn tokens_grow_across_the_steps_in_both_directions() {
    let Stores { old, new, both } = stores();
    for _ in 0..5 {
        token(&old).await;
    }
    let mut steps = vec![&old, &both, &old, &both, &new, &both, &new, &both, &old, &both, &both];
    steps.extend(vec![&new; 9]);
    steps.extend([&both, &old, &both, &new]);
    let mut last = None;
    for store in steps {
        let next = Some(token(store).await);
        assert!(next > last, "{next:?} after {last:?}");
        last = next;
    }
}

#[tokio::test]
async fn a_repeated_claim_returns_the_same_token() {
    for mode in [Mode::Exclusive, Mode::Shared] {
        let Stores { old, both, .. } = stores();
        token(&old).await;
        let request = request(mode);
        let first = held(&both, &request).await;
        assert_eq!(held(&both, &request).await.token, first.token);
    }
}

#[tokio::test]
async fn a_number_that_was_drawn_before_is_not_granted_again() {
    let Stores { old, new, both } = stores();
    // P has drawn 1 of both stores; Q has drawn 2 of both, and has returned it.
    let [p, q, other] = [Mode::Shared; 3].map(request);
    for _ in 0..4 {
        token(&new).await;
    }
    // P draws 1 of the old store, then 5 of the new one; meanwhile the old store draws 5 for another request.
    held(&old, &p).await;
    for _ in 0..3 {
        token_of(&old, Mode::Null).await;
    }
    assert_eq!(held(&old, &other).await.token.get(), 5);
    let token = held(&both, &p).await.token;
    assert!(token.get() > 5, "{token}");
    assert!(held(&both, &q).await.token > token);
}

/// A store in which others draw tokens before each raise.
#[derive(Debug)]
struct Busy {
    store: Store,
    draws: u32,
}

#[async_trait]
impl RaiseToken for Busy {
    async fn raise(&self, request: &Request, to: FencingToken) -> Result<FencingToken> {
        for _ in 0..self.draws {
            token_of(&self.store, Mode::Null).await;
        }
        self.store.raise.clone().unwrap().raise(request, to).await
    }
}

#[tokio::test]
async fn a_shared_request_is_granted_the_lock_while_others_draw_many_tokens() {
    let busy = || {
        let store = memory::connect();
        store.clone().raising(Arc::new(Busy { store, draws: 100 }))
    };
    let both = both(busy(), busy()).unwrap();
    let [first, second] = [Mode::Shared; 2].map(request);
    let token = held(&both, &first).await.token;
    assert!(held(&both, &second).await.token > token);
}

async fn token_of(store: &Store, mode: Mode) {
    let request = request(mode);
    held(store, &request).await;
    released(store, &request).await;
}

#[tokio::test]
async fn a_request_that_waits_in_the_new_store_holds_the_old_one() {
    let Stores { old, new, both } = stores();
    let (holder, waiter, late) =
        (request(Mode::Exclusive), request(Mode::Exclusive), request(Mode::Exclusive));
    held(&new, &holder).await;
    queued(&both, &waiter).await;
    queued(&old, &late).await;
    assert_eq!(kept(&both, &waiter).await, KeepAlive::Queued);
    released(&new, &holder).await;
    held(&both, &waiter).await;
    assert!(matches!(kept(&both, &waiter).await, KeepAlive::Held { .. }));
    assert_eq!(released(&both, &waiter).await, Release::Released);
    held(&old, &late).await;
}

#[tokio::test]
async fn a_try_leaves_nothing_in_the_old_store() {
    let Stores { old, new, both } = stores();
    held(&new, &request(Mode::Exclusive)).await;
    let mut tries = request(Mode::Exclusive);
    tries.queues = false;
    queued(&both, &tries).await;
    held(&old, &request(Mode::Exclusive)).await;
}

#[tokio::test]
async fn a_hold_that_one_store_has_lost_is_lost() {
    for loses_old in [true, false] {
        let Stores { old, new, both } = stores();
        let holder = request(Mode::Exclusive);
        held(&both, &holder).await;
        released(if loses_old { &old } else { &new }, &holder).await;
        assert!(matches!(kept(&both, &holder).await, KeepAlive::Lost(_)));
        assert!(matches!(released(&both, &holder).await, Release::Lost(_)));
        let next = request(Mode::Exclusive);
        held(&old, &next).await;
        held(&new, &next).await;
    }
}

/// Its entry in the new store would keep out the holder of the old one, which waits behind it, for ever.
#[tokio::test]
async fn a_request_that_waits_in_the_old_store_is_not_kept_alive_in_the_new_one() {
    let Stores { old, new, both } = stores();
    let (holder, frozen, next) =
        (request(Mode::Exclusive), request(Mode::Exclusive), request(Mode::Exclusive));
    held(&new, &holder).await;
    queued(&both, &frozen).await;
    // Its lease in the old store has ended, and the lock has gone to the next one.
    released(&old, &frozen).await;
    queued(&both, &next).await;
    queued(&both, &frozen).await;
    let expires_in = || async {
        let status = new.inspect.as_ref().unwrap().inspect(&frozen.name).await.unwrap();
        status.waiters.iter().map(|waiter| waiter.expires_in).collect::<Vec<_>>()
    };
    let before = expires_in().await;
    assert_eq!(kept(&both, &frozen).await, KeepAlive::Queued);
    let after = expires_in().await;
    assert!(before.len() == 2 && after[0] < before[0], "{before:?}, then {after:?}");
}

#[tokio::test]
async fn a_waiter_that_has_been_granted_the_old_store_claims_again() {
    let Stores { old, both, .. } = stores();
    let (holder, waiter) = (request(Mode::Exclusive), request(Mode::Exclusive));
    held(&old, &holder).await;
    queued(&both, &waiter).await;
    assert_eq!(kept(&both, &waiter).await, KeepAlive::Queued);
    released(&old, &holder).await;
    held(&old, &waiter).await;
    assert!(matches!(kept(&both, &waiter).await, KeepAlive::Lost(_)), "it does not hold the lock");
    held(&both, &waiter).await;
}

#[tokio::test]
async fn the_status_shows_each_request_once() {
    let Stores { old, new, both } = stores();
    let [new_only, waits_in_new, waits_in_old] = ["new", "first", "second"].map(|owner| {
        let mut request = request(Mode::Exclusive);
        request.owner = crate::OwnerId::new(owner).unwrap();
        request
    });
    held(&new, &new_only).await;
    queued(&both, &waits_in_new).await;
    queued(&both, &waits_in_old).await;
    let inspect = both.inspect.as_ref().unwrap();
    let owners =
        |entries: &[crate::Entry]| entries.iter().map(|entry| entry.owner.to_string()).collect::<Vec<_>>();
    let status = inspect.inspect(&new_only.name).await.unwrap();
    assert_eq!(
        (owners(&status.holders), owners(&status.waiters)),
        (vec!["new".into()], vec!["first".into(), "second".into()])
    );
    assert_eq!(inspect.list("").await.unwrap().len(), 1);
    released(&new, &new_only).await;
    let grant = held(&both, &waits_in_new).await;
    let status = inspect.inspect(&new_only.name).await.unwrap();
    assert_eq!(
        (owners(&status.holders), owners(&status.waiters)),
        (vec!["first".into()], vec!["second".into()])
    );
    assert_eq!(status.holders[0].token, Some(grant.token));
    drop(old);
}

#[test]
fn a_store_without_greater_tokens_is_refused() {
    let mut fixed = memory::connect();
    fixed.raise = None;
    for result in [both(fixed.clone(), memory::connect()), both(memory::connect(), fixed)] {
        assert!(matches!(result, Err(Error::Unsupported { backend: "memory", .. })), "{result:?}");
    }
}

#[tokio::test]
async fn one_store_by_two_names_is_found_and_the_check_leaves_nothing() {
    let Stores { old, new, .. } = stores();
    ensure_distinct(&old, &new).await.unwrap();
    let refused = ensure_distinct(&old, &old.clone()).await.unwrap_err();
    assert!(matches!(&refused, Error::Config(error) if error.key == "store"), "{refused}");
    // What can't be checked is accepted.
    ensure_distinct(&old, &Store::new(old.backend.clone())).await.unwrap();
    for store in [old, new] {
        assert_eq!(store.inspect.unwrap().list("").await.unwrap(), []);
    }
}

/// A store whose tokens can't be raised beyond a number.
#[derive(Debug)]
struct Full;

#[async_trait]
impl RaiseToken for Full {
    async fn raise(&self, _: &Request, _: FencingToken) -> Result<FencingToken> {
        Err(crate::Unavailable::new("full", crate::Operation::Claim, crate::Fault::Permanent, "no room")
            .into())
    }
}

#[tokio::test]
async fn no_grant_is_returned_before_the_smaller_token_is_raised() {
    let (old, new) = (memory::connect().raising(Arc::new(Full)), memory::connect());
    let both = both(old.clone(), new.clone()).unwrap();
    token(&new).await;
    let claimant = request(Mode::Exclusive);
    assert!(both.backend.claim(&claimant).await.is_err());
    assert_eq!(released(&both, &claimant).await, Release::Released);
}

/// Each store has its own token for a hold, of which the status shows the greater one.
#[tokio::test]
async fn a_break_names_its_target_in_both_stores() {
    for force in [false, true] {
        let Stores { old, new, both } = stores();
        for _ in 0..3 {
            token(&new).await;
        }
        let order = |token| {
            let order = crate::BreakOrder::new(crate::BreakNotice::default(), [Some(token)]);
            if force { order.force() } else { order }
        };
        let inspect = both.inspect.as_ref().unwrap();
        let (first, next) = (request(Mode::Exclusive), request(Mode::Exclusive));
        let ended = held(&both, &first).await.token;
        released(&both, &first).await;
        // The next one holds the old store alone, as a process of the first step.
        let in_old = held(&old, &next).await.token;
        assert_eq!(inspect.break_lock(&next.name, &order(ended)).await.unwrap(), []);
        assert!(matches!(kept(&old, &next).await, KeepAlive::Held { .. }));
        assert_eq!(inspect.break_lock(&next.name, &order(in_old)).await.unwrap().len(), 1);
        assert!(matches!(kept(&old, &next).await, KeepAlive::Lost(_)));
        released(&old, &next).await;
        // And then both.
        let last = request(Mode::Exclusive);
        let token = held(&both, &last).await.token;
        assert_eq!(inspect.break_lock(&last.name, &order(token)).await.unwrap().len(), 1);
        for store in [&old, &new] {
            assert!(matches!(kept(store, &last).await, KeepAlive::Lost(_)));
        }
    }
}

/// 1. P holds the lock in the new store alone, with a token that the old store draws for Q after that.
/// 2. Q waits in the new store, behind P or behind another one.
/// 3. A break names the token of P: it must not end Q, which was shown as a waiter.
#[tokio::test]
async fn a_break_ends_no_request_that_waits_in_the_new_store() {
    for has_ended in [false, true] {
        let Stores { old, new, both } = stores();
        let [p, q, other] = ["p", "q", "other"].map(|owner| {
            let mut request = request(Mode::Exclusive);
            request.owner = crate::OwnerId::new(owner).unwrap();
            request
        });
        let seen = held(&new, &p).await.token;
        if has_ended {
            released(&new, &p).await;
            held(&new, &other).await;
        }
        queued(&both, &q).await;
        let in_old = old.inspect.as_ref().unwrap().inspect(&q.name).await.unwrap();
        assert_eq!(in_old.holders[0].token, Some(seen), "the old store has drawn the same token");
        let order = crate::BreakOrder::new(crate::BreakNotice::default(), [Some(seen)]);
        let broken = both.inspect.as_ref().unwrap().break_lock(&q.name, &order).await.unwrap();
        assert_eq!(broken.len(), usize::from(!has_ended), "{broken:?}");
        assert!(broken.iter().all(|holder| holder.owner == p.owner), "{broken:?}");
        assert!(matches!(kept(&old, &q).await, KeepAlive::Held { .. }));
    }
}

/// A hold that is about to be released may be left in the store with the smaller token alone.
#[tokio::test]
async fn a_break_returns_the_token_that_it_names() {
    let Stores { old, new, both } = stores();
    for _ in 0..3 {
        token(&new).await;
    }
    let holder = request(Mode::Exclusive);
    let token = held(&both, &holder).await.token;
    let inspect = InspectBoth {
        old: old.inspect.clone().unwrap(),
        new: Arc::new(Released { store: new.clone(), holder: holder.clone() }),
    };
    let order = crate::BreakOrder::new(crate::BreakNotice::default(), [Some(token)]);
    let broken = crate::Inspect::break_lock(&inspect, &holder.name, &order).await.unwrap();
    assert_eq!(broken.iter().map(|holder| holder.token).collect::<Vec<_>>(), [Some(token)]);
}

/// A store whose `holder` releases the lock between a look at it and a break.
#[derive(Debug)]
struct Released {
    store: Store,
    holder: Request,
}

#[async_trait]
impl crate::Inspect for Released {
    async fn inspect(&self, name: &LockName) -> Result<crate::LockStatus> {
        let status = self.store.inspect.as_ref().unwrap().inspect(name).await;
        released(&self.store, &self.holder).await;
        status
    }

    async fn list(&self, _: &str) -> Result<Vec<crate::LockStatus>> {
        Ok(Vec::new())
    }

    async fn break_lock(&self, name: &LockName, order: &crate::BreakOrder) -> Result<Vec<crate::Entry>> {
        self.store.inspect.as_ref().unwrap().break_lock(name, order).await
    }
}

/// 1. Two readers with one owner and label hold the lock, in different orders in the two stores.
/// 2. A break names the token of the first one: it must not end the second.
#[tokio::test]
async fn a_break_of_one_reader_ends_no_other_with_the_same_owner() {
    let Stores { old, new, both } = stores();
    let (one, other) = (request(Mode::Shared), request(Mode::Shared));
    assert_eq!(one.owner, other.owner);
    for _ in 0..5 {
        // The new store has greater numbers than the old one.
        token(&new).await;
    }
    for (store, requests) in [(&old, [&one, &other]), (&new, [&other, &one])] {
        for request in requests {
            held(store, request).await;
        }
    }
    let name = &one.name;
    let in_new = new.inspect.as_ref().unwrap().inspect(name).await.unwrap().holders;
    let target = in_new.iter().map(|holder| holder.token).max().unwrap();
    let order = crate::BreakOrder::new(crate::BreakNotice::default(), [target]);
    both.inspect.as_ref().unwrap().break_lock(name, &order).await.unwrap();
    let lost = async |store, request| matches!(kept(store, request).await, KeepAlive::Lost(_));
    let broken = [
        lost(&old, &one).await || lost(&new, &one).await,
        lost(&old, &other).await || lost(&new, &other).await,
    ];
    assert_eq!(broken, [true, false], "of the target and the other");
}

/// Two holds, each with the greater token in another store, are shown with one token: a break by it is refused.
#[tokio::test]
async fn a_token_of_two_holds_is_no_target() {
    let Stores { old, new, both } = stores();
    let (one, mut other) = (request(Mode::Shared), request(Mode::Shared));
    other.owner = crate::OwnerId::new("other").unwrap();
    for (store, requests) in [(&old, [&one, &other]), (&new, [&other, &one])] {
        for request in requests {
            held(store, request).await;
        }
    }
    let inspect = both.inspect.as_ref().unwrap();
    let shown: Vec<_> = inspect.inspect(&one.name).await.unwrap().holders.iter().map(|it| it.token).collect();
    assert_eq!(shown[0], shown[1]);
    let order = |targets: &[_]| crate::BreakOrder::new(crate::BreakNotice::default(), targets.to_vec());
    let refused = inspect.break_lock(&one.name, &order(&shown[..1])).await;
    assert!(matches!(refused, Err(Error::Config(_))), "{refused:?}");
    assert!(matches!(kept(&old, &one).await, KeepAlive::Held { .. }));
    // All holds.
    assert_eq!(inspect.break_lock(&one.name, &order(&shown)).await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_hold_in_both_stores_is_parked_in_both() {
    let Stores { old, new, both } = stores();
    token(&new).await;
    let holder = request(Mode::Exclusive);
    let token = held(&both, &holder).await.token;
    let park = both.park.as_ref().unwrap();
    let (earlier, left) = (FencingToken::new(token.get() - 1).unwrap(), Duration::from_millis(80));
    assert!(matches!(park.park(&holder, earlier, left).await.unwrap(), Release::Lost(_)));
    for _ in 0..2 {
        assert_eq!(park.park(&holder, token, left).await.unwrap(), Release::Released);
    }
    for store in [&old, &new] {
        assert!(matches!(kept(store, &holder).await, KeepAlive::Lost(_)));
    }
    SystemClock.sleep_until(SystemClock.now() + left).await;
    held(&both, &request(Mode::Exclusive)).await;
}
