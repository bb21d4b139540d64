//! A hold that can't be kept is signalled as lost before the store can grant another.

use std::time::Duration;

use futures_util::FutureExt;
use polylock_core::{Clock, Error, Guard, KeepAlive, LostReason, Operation, SystemClock};

use crate::{
    ManualClock,
    faults::{Flaky, Gate, Recording, Side, Trouble},
    trial::{Outcome, SOON, Trial, acquired, join, pass, released, soon, tried, watched, within},
};

#[path = "lost_run.rs"]
mod run;

pub(super) use run::{
    run_drops_the_work, run_polls_nothing_after_the_deadline, run_returns_when_the_work_is_done,
};

const INSTANT: Duration = Duration::from_nanos(1);

pub(super) async fn a_hung_renewal(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let (store, gate) = watched(trial.store().await, Gate::new);
    let locks = trial.open_by(store, &clock);
    for side in [Side::Request, Side::Reply] {
        let guard = acquired(locks.lock("n")).await;
        gate.shut(Operation::Renew, side);
        clock.advance(trial.long() / 3 + INSTANT);
        soon("a renewal", gate.arrived(Operation::Renew)).await;
        ends_at_its_deadline(&clock, &guard, side == Side::Reply).await;
        gate.thaw();
        drop(guard);
        trial.nothing_left(&["n"], "after a loss").await;
    }
    Ok(())
}

/// Held to the last instant before the deadline, and lost with it: who waits for the signal is told though nobody asks
/// the guard, and who asks is told though the signal may be on its way.
async fn ends_at_its_deadline(clock: &ManualClock, guard: &Guard, asks_first: bool) {
    let lost = tokio::spawn(guard.lost());
    let deadline = guard.deadline();
    clock.advance(deadline.since(clock.now()) - INSTANT);
    assert!(guard.is_held() && guard.remaining() == INSTANT, "held to the last instant");
    assert!(!lost.is_finished(), "lost before the deadline");
    clock.advance(INSTANT);
    if asks_first {
        assert!(!guard.is_held() && guard.remaining().is_zero(), "held after the deadline");
        assert_eq!(guard.ensure_held().expect_err("lost").lost(), Some(&LostReason::DeadlineReached));
    }
    assert_eq!(join(lost).await, LostReason::DeadlineReached);
    assert!(!guard.is_held(), "held after the loss");
}

pub(super) async fn a_frozen_store(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let (store, gate) = watched(trial.store().await, Gate::new);
    let locks = trial.open_by(store, &clock);
    let guard = acquired(locks.lock("n")).await;
    gate.freeze();
    ends_at_its_deadline(&clock, &guard, false).await;
    let refused = soon("the release of a lost lock", guard.release()).await;
    assert_eq!(refused.expect_err("it was lost").lost(), Some(&LostReason::DeadlineReached));
    gate.thaw();
    trial.nothing_left(&["n"], "when the store is back").await;
    Ok(())
}

pub(super) async fn a_panicking_renewal(trial: Trial) -> Outcome {
    failing_until_the_deadline(&trial, Trouble::Panic).await;
    Ok(())
}

/// An error means unknown, whatever kind it is: the hold lasts until its deadline.
pub(super) async fn a_failing_renewal_is_not_lost_before_the_deadline(trial: Trial) -> Outcome {
    failing_until_the_deadline(&trial, Trouble::RequestLost).await;
    failing_until_the_deadline(&trial, Trouble::Permanent).await;
    Ok(())
}

async fn failing_until_the_deadline(trial: &Trial, trouble: Trouble) {
    let clock = ManualClock::new();
    let (store, flaky) = watched(trial.store().await, Flaky::new);
    let locks = trial.open_by(store, &clock);
    let guard = acquired(locks.lock("n")).await;
    flaky.next(Operation::Renew, trouble, 100_000);
    let deadline = guard.deadline();
    clock.advance(trial.long() / 3 + INSTANT);
    for failures in 1..=3 {
        while !comes_true(|| flaky.failed() >= failures).await {
            clock.advance(trial.long() / 60);
            assert!(
                clock.now() < deadline,
                "a renewal that failed is tried again, not {} times",
                flaky.failed()
            );
        }
        assert!(guard.is_held(), "lost by {failures} times {trouble:?}");
    }
    assert_eq!(guard.deadline(), deadline, "nothing was renewed");
    ends_at_its_deadline(&clock, &guard, false).await;
    drop(guard);
    trial.nothing_left(&["n"], "after a loss").await;
}

/// Gives the engine a moment of real time before the manual clock goes on.
async fn comes_true(condition: impl Fn() -> bool) -> bool {
    for _ in 0..20 {
        if condition() {
            return true;
        }
        pass(Duration::from_millis(1)).await;
    }
    condition()
}

pub(super) async fn a_transient_error_is_not_lost(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let (store, flaky) = watched(trial.store().await, Flaky::new);
    let locks = trial.open_by(store, &clock);
    let guard = acquired(locks.lock("n")).await;
    flaky.next(Operation::Renew, Trouble::RequestLost, 1);
    flaky.next(Operation::Renew, Trouble::ReplyLost, 1);
    let first = guard.deadline();
    clock.advance(trial.long() / 3 + INSTANT);
    while !comes_true(|| guard.deadline() != first).await {
        clock.advance(trial.long() / 60);
        assert!(guard.is_held(), "{} errors end the hold", flaky.failed());
    }
    assert_eq!(flaky.failed(), 2);
    assert!(guard.is_held() && guard.deadline() > first);
    assert!(guard.lost().now_or_never().is_none());
    released(guard).await;
    trial.nothing_left(&["n"], "after the release").await;
    Ok(())
}

pub(super) async fn gone_from_the_store(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let (store, recording) = watched(trial.store().await, Recording::new);
    let locks = trial.open_by(store, &clock);
    let guard = acquired(locks.lock("n")).await;
    let claim = recording.of(Operation::Claim).remove(0);
    // As if it had expired there, or been deleted by hand.
    trial.raw().await.release(&claim.request).await;
    let lost = tokio::spawn(guard.lost());
    let next = tried(trial.locks().await.lock("n")).await.expect("the store has it no more");
    clock.advance(trial.long() / 3 + INSTANT);
    assert_eq!(join(lost).await, LostReason::Gone);
    assert!(!guard.is_held());
    assert!(next.fencing_token() >= guard.fencing_token());
    let refused = soon("the release of a lost lock", guard.release()).await;
    assert_eq!(refused.expect_err("it was lost").lost(), Some(&LostReason::Gone));
    assert!(tried(trial.locks().await.lock("n")).await.is_none(), "the loser has released another's lock");
    released(next).await;
    trial.nothing_left(&["n"], "after a loss").await;
    Ok(())
}

/// With the real clock: whoever waits gets the lock only after its holder has been told.
pub(super) async fn before_another_is_granted(trial: Trial) -> Outcome {
    for all in [false, true] {
        let (store, gate) = watched(trial.store().await, Gate::new);
        let (here, there) = (trial.open(store), trial.locks().await);
        gate.shut(Operation::Renew, Side::Request);
        let guard = acquired(here.lock("n").ttl(trial.short())).await;
        if all {
            gate.freeze();
        }
        let (lost, deadline) = (guard.lost(), guard.deadline());
        let next = tokio::spawn(async move {
            let next = acquired(there.lock("n")).await;
            (SystemClock.now(), next)
        });
        let (granted, next) = within(trial.short() + SOON, "the next holder", next).await.expect("no panic");
        assert!(deadline <= granted, "granted {:?} before the deadline", deadline.since(granted));
        // First the signal: asking the guard would set it off.
        assert_eq!(
            lost.now_or_never(),
            Some(LostReason::DeadlineReached),
            "another holds it and nobody was told"
        );
        assert!(!guard.is_held(), "both believe to hold it");
        gate.thaw();
        drop(guard);
        assert!(next.is_held());
        released(next).await;
        trial.nothing_left(&["n"], "after both").await;
    }
    Ok(())
}

/// The clock jumps over the deadline, as it does when the machine wakes up: the hold is over at once, though the store
/// would still renew it.
pub(super) async fn a_suspended_machine(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let locks = trial.open_by(trial.store().await, &clock);
    let guard = acquired(locks.lock("n")).await;
    let lost = tokio::spawn(guard.lost());
    clock.advance(trial.long() * 60);
    assert!(!guard.is_held());
    assert_eq!(join(lost).await, LostReason::DeadlineReached);
    let mut polled = false;
    let outcome = soon("run", guard.run(async { polled = true })).await;
    assert_eq!(outcome.expect_err("lost").lost(), Some(&LostReason::DeadlineReached));
    assert!(!polled, "work began under a lock that was lost");
    trial.nothing_left(&["n"], "after a loss").await;
    Ok(())
}

/// A grant whose answer comes when its lease has run out, and another has the lock.
pub(super) async fn a_late_grant_is_no_hold(trial: Trial) -> Outcome {
    let (store, gate) = watched(trial.store().await, Gate::new);
    let (here, there) = (trial.open(store), trial.locks().await);
    gate.shut(Operation::Claim, Side::Reply);
    let late = tokio::spawn(acquired(here.lock("n").ttl(trial.short())));
    soon("the claim", gate.arrived(Operation::Claim)).await;
    let limit = trial.short() + SOON;
    let other = within(limit, "the lease of a grant that nobody heard of", acquired(there.lock("n"))).await;
    gate.open(Operation::Claim);
    pass(trial.short() / 2).await;
    assert!(!late.is_finished(), "a grant that had run out was believed");
    assert!(other.is_held());
    released(other).await;
    let guard = join(late).await;
    assert!(guard.is_held());
    released(guard).await;
    trial.nothing_left(&["n"], "after both").await;
    Ok(())
}

pub(super) async fn a_release_never_fires_it(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let (store, recording) = watched(trial.store().await, Recording::new);
    let locks = trial.open_by(store, &clock);
    let guard = acquired(locks.lock("released")).await;
    let dropped = acquired(locks.lock("dropped")).await;
    let request = recording.of(Operation::Claim).remove(0).request;
    let signals = [Box::pin(guard.lost()), Box::pin(dropped.lost())];
    released(guard).await;
    drop(dropped);
    trial.nothing_left(&["released", "dropped"], "after the release").await;
    clock.advance(trial.long() * 3);
    // The store has heard of it, and would say that it is gone.
    let outcome = trial.raw().await.renew(&request).await;
    assert!(matches!(outcome, KeepAlive::Lost(_)), "{outcome:?}");
    released(acquired(locks.lock("other")).await).await;
    for lost in signals {
        assert_eq!(lost.now_or_never(), None, "a release is no loss");
    }
    Ok(())
}

/// The error of a `run` whose lock was lost.
fn lost_reason<T>(outcome: Result<T, Error>) -> Option<LostReason> {
    outcome.err().and_then(|error| error.lost().cloned())
}
