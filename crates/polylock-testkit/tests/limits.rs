//! The limits `wait` and `outage` of acquisitions in several steps: they are those of all steps together.
#![allow(clippy::unwrap_used, reason = "a test")]

mod unreliable;

use std::{
    pin::Pin,
    sync::atomic::{AtomicU32, Ordering},
    task::Poll,
    time::Duration,
};

use polylock_core::{
    ClaimOutcome, Clock, Error, Guard, LockName, Locks, Mode, Moment, NotAcquired, OnceBegin, Operation,
    OwnerId, Request, Result,
};
use polylock_testkit::ManualClock;
use unreliable::{Fault, Unreliable, locks_by, pass, recorded, running, soon};

const SECOND: Duration = Duration::from_secs(1);
/// Longer than a queue lease, so that the locks that a waiter has so far are lost before.
const LIMIT: Duration = Duration::from_secs(10);
/// The time by which an outage, or its end, is noticed too late.
const LATE: Duration = Duration::from_secs(3);

/// Asserts that an acquisition has failed because of the store, a `LIMIT` after `began`.
fn assert_ended_by_outage<T>(clock: &ManualClock, began: Moment, outcome: Result<T>) {
    let took = clock.now().since(began);
    let error = outcome.err().expect("the store is down");
    assert!(error.is_temporary(), "{}", error.chain());
    assert!(took >= LIMIT && took < LIMIT + LATE, "the outage lasted {took:?}: {}", error.chain());
}

/// Asserts that an acquisition has timed out a `LIMIT` after `began`, and says so.
fn assert_timed_out<T>(clock: &ManualClock, began: Moment, outcome: Result<T>) {
    let took = clock.now().since(began);
    match outcome.err().expect("the lock is held") {
        Error::NotAcquired { name, reason: NotAcquired::TimedOut { waited } } => {
            assert_eq!(name.as_str(), "n");
            assert!(took >= LIMIT && took < LIMIT + LATE, "timed out after {took:?}");
            assert!(waited >= LIMIT && waited <= took, "waited for {took:?}, and reports {waited:?}");
        }
        error => panic!("{}", error.chain()),
    }
}

fn is_slot(operation: Operation, name: Option<&LockName>) -> bool {
    operation == Operation::Claim && name.is_some_and(|name| name.slot().is_some())
}

#[tokio::test]
async fn a_semaphore_waits_out_an_outage_before_its_slot() {
    let clock = ManualClock::new();
    let store = Unreliable::beginning(Fault::Fails, is_slot);
    let waiting = tokio::spawn(store.locks(&clock).semaphore("n", 2).outage(LIMIT).acquire());
    store.until_down().await;
    pass(&clock, 2 * SECOND).await;
    store.set_down(false);
    let guard = running(&clock, waiting).await.unwrap().unwrap();
    assert_eq!((guard.slots(), guard.is_held()), (2, true));
}

#[tokio::test]
async fn an_outage_before_the_slot_of_a_semaphore_has_a_limit() {
    let clock = ManualClock::new();
    let store = Unreliable::beginning(Fault::Fails, is_slot);
    let began = clock.now();
    let outcome = running(&clock, store.locks(&clock).semaphore("n", 2).outage(LIMIT).acquire()).await;
    assert_ended_by_outage(&clock, began, outcome);
}

#[tokio::test]
async fn a_semaphore_counts_an_outage_once_although_its_turn_is_lost() {
    let clock = ManualClock::new();
    let store = Unreliable::new();
    let holder = store.stable().semaphore("n", 1).acquire().await.unwrap();
    let (locks, seen) = recorded(&store, &clock);
    let waiting = tokio::spawn(locks.semaphore("n", 1).outage(LIMIT).acquire());
    running(&clock, seen.queued(&LockName::of_slot("n", 0).unwrap(), 1)).await;
    let began = clock.now();
    store.set_down(true);
    let outcome = running(&clock, waiting).await.unwrap();
    assert_ended_by_outage(&clock, began, outcome);
    store.set_down(false);
    holder.release().await.unwrap();
}

#[tokio::test]
async fn the_wait_for_a_slot_is_the_rest_of_the_wait() {
    let clock = ManualClock::new();
    // The store grants the turn, and does not reply to the claim of the slot.
    let store = Unreliable::beginning(Fault::Hangs, is_slot);
    let turnstile = LockName::from_store("n\0").unwrap();
    let ahead = Request::new(turnstile.clone(), Mode::Exclusive, 60 * SECOND);
    assert!(matches!(store.below.backend.claim(&ahead).await, Ok(ClaimOutcome::Granted(_))));
    let (locks, seen) = recorded(&store, &clock);
    let began = clock.now();
    let waiting = tokio::spawn(locks.semaphore("n", 2).wait(LIMIT).acquire());
    running(&clock, seen.queued(&turnstile, 1)).await;
    pass(&clock, LIMIT * 9 / 10).await;
    store.below.backend.release(&ahead).await.unwrap();
    let outcome = running(&clock, waiting).await.unwrap();
    assert_ended_by_outage(&clock, began, outcome);
    store.set_down(false);
}

#[tokio::test]
async fn several_locks_count_an_outage_once_although_the_first_ones_are_lost() {
    let clock = ManualClock::new();
    let store = Unreliable::new();
    let holder = store.stable().lock("b").acquire().await.unwrap();
    let (locks, seen) = recorded(&store, &clock);
    let both = locks.lock_many(["a", "b"]).ttl(LIMIT / 2).outage(LIMIT);
    let waiting = tokio::spawn(both.acquire());
    running(&clock, seen.queued(&"b".parse().unwrap(), 1)).await;
    let began = clock.now();
    store.set_down(true);
    let outcome = running(&clock, waiting).await.unwrap();
    assert_ended_by_outage(&clock, began, outcome);
    store.set_down(false);
    holder.release().await.unwrap();
}

#[tokio::test]
async fn a_reply_ends_an_outage() {
    let clock = ManualClock::new();
    let store = Unreliable::new();
    let holder = acquired(&store.stable()).await;
    let (locks, seen) = recorded(&store, &clock);
    let waiting = tokio::spawn(locks.lock("n").outage(LIMIT).acquire());
    running(&clock, seen.queued(&"n".parse().unwrap(), 1)).await;
    for is_down in [true, false, true, false] {
        store.set_down(is_down);
        pass(&clock, if is_down { LIMIT * 6 / 10 } else { LATE }).await;
    }
    holder.release().await.unwrap();
    drop(running(&clock, waiting).await.unwrap().unwrap());
}

/// Only the first waiter of a process claims again from time to time. The others have had no reply since they joined the queue.
#[tokio::test]
async fn an_outage_after_a_long_wait_begins_when_it_is_noticed() {
    let clock = ManualClock::new();
    let store = Unreliable::new();
    let holder = acquired(&store.stable()).await;
    let (locks, seen) = recorded(&store, &clock);
    let mut waiters = Vec::new();
    for number in 1..=2 {
        waiters.push(tokio::spawn(locks.lock("n").outage(LIMIT).acquire()));
        running(&clock, seen.queued(&"n".parse().unwrap(), number)).await;
    }
    pass(&clock, 2 * LIMIT).await;
    store.set_down(true);
    pass(&clock, 2 * SECOND).await;
    store.set_down(false);
    holder.release().await.unwrap();
    for waiter in waiters {
        let guard = running(&clock, waiter).await.unwrap();
        let guard = guard.unwrap_or_else(|error| panic!("{}", error.chain()));
        running(&clock, guard.release()).await.unwrap();
    }
}

/// A lock that is granted to a caller that is not polled is passed on, and the caller waits again.
#[tokio::test]
async fn a_wait_counts_from_its_begin_however_often_the_lock_is_passed_on() {
    let clock = ManualClock::new();
    let store = Unreliable::new();
    let (locks, seen) = recorded(&store, &clock);
    let other = store.stable();
    let began = clock.now();
    let wait = 3 * LIMIT;
    let mut waiting = Box::pin(locks.lock("n").wait(wait).acquire());
    let mut holder = acquired(&other).await;
    for round in 1..=3 {
        assert!(poll_once(&mut waiting).await.is_none());
        running(&clock, seen.queued(&"n".parse().unwrap(), round)).await;
        holder.release().await.unwrap();
        holder = running(&clock, acquired(&other)).await;
    }
    let outcome = running(&clock, waiting).await;
    let took = clock.now().since(began);
    match outcome.expect_err("it is held") {
        Error::NotAcquired { reason: NotAcquired::TimedOut { waited }, .. } => {
            assert!(took >= wait && took < wait + LATE, "timed out after {took:?}");
            assert!(waited >= wait && waited <= took, "waited for {took:?}, and reports {waited:?}");
        }
        error => panic!("{}", error.chain()),
    }
    holder.release().await.unwrap();
}

async fn acquired(locks: &Locks) -> Guard {
    soon(locks.lock("n").acquire()).await.unwrap()
}

async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|context| match Pin::new(&mut *future).poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

#[tokio::test]
async fn the_wait_of_an_upgrade_includes_that_for_another_one_of_the_same_hold() {
    let clock = ManualClock::new();
    let locks = locks_by(&clock, Unreliable::new().below.clone());
    let owner = OwnerId::unique();
    let entered = async || locks.lock("n").shared().reentrant(&owner).acquire().await.unwrap();
    let (mut first, mut second) = (running(&clock, entered()).await, running(&clock, entered()).await);
    let reader = running(&clock, locks.lock("n").shared().acquire()).await.unwrap();
    let upgrading = tokio::spawn(async move { first.upgrade(Mode::Exclusive).await.map(|()| first) });
    running(&clock, async { while locks.lock("n").shared().try_acquire().await.unwrap().is_some() {} }).await;
    let began = clock.now();
    let outcome = running(&clock, second.upgrade(Mode::Exclusive).wait(LIMIT)).await;
    assert_timed_out(&clock, began, outcome);
    let tried = running(&clock, second.upgrade(Mode::Exclusive).wait(Duration::ZERO)).await;
    assert!(matches!(tried, Err(Error::NotAcquired { reason: NotAcquired::Busy, .. })), "{tried:?}");
    running(&clock, reader.release()).await.unwrap();
    let upgraded = running(&clock, upgrading).await.unwrap().unwrap();
    assert_eq!((upgraded.mode(), second.is_held()), (Mode::Exclusive, true));
}

/// Returns true for the `number`-th operation on the record of a job, counted from 1.
fn record(number: u32) -> impl Fn(Operation, Option<&LockName>) -> bool {
    let before = AtomicU32::new(0);
    move |operation, _| operation == Operation::Record && before.fetch_add(1, Ordering::Relaxed) + 1 == number
}

#[tokio::test]
async fn a_job_waits_out_an_outage_before_and_after_its_lock_is_acquired() {
    for read in [1, 2] {
        let clock = ManualClock::new();
        let store = Unreliable::beginning(Fault::Fails, record(read));
        let begin = tokio::spawn(store.locks(&clock).once("n").outage(LIMIT).begin());
        running(&clock, store.until_down()).await;
        pass(&clock, 2 * SECOND).await;
        store.set_down(false);
        let begun = running(&clock, begin).await.unwrap();
        let begun = begun.unwrap_or_else(|error| panic!("read {read}: {}", error.chain()));
        assert!(matches!(begun, OnceBegin::Due(_)), "{begun:?}");
    }
}

#[tokio::test]
async fn an_outage_before_a_job_begins_has_a_limit() {
    for (fault, read) in [(Fault::Fails, 1), (Fault::Fails, 2), (Fault::Hangs, 1), (Fault::Hangs, 2)] {
        let clock = ManualClock::new();
        let store = Unreliable::beginning(fault, record(read));
        let began = clock.now();
        let job = store.locks(&clock).once("n").ttl(6 * LIMIT);
        // A store that does not reply is limited by the wait.
        let job = if fault == Fault::Hangs { job.wait(LIMIT) } else { job.outage(LIMIT) };
        let outcome = running(&clock, job.begin()).await;
        assert_ended_by_outage(&clock, began, outcome);
        store.set_down(false);
    }
}

#[tokio::test]
async fn the_wait_of_a_job_includes_the_outage_before_it() {
    let clock = ManualClock::new();
    let store = Unreliable::beginning(Fault::Fails, record(1));
    let holder = acquired(&store.stable()).await;
    let began = clock.now();
    let begin = tokio::spawn(store.locks(&clock).once("n").wait(LIMIT).begin());
    running(&clock, store.until_down()).await;
    pass(&clock, LIMIT * 6 / 10).await;
    store.set_down(false);
    let outcome = running(&clock, begin).await.unwrap();
    assert_timed_out(&clock, began, outcome);
    holder.release().await.unwrap();
}
