//! A hold that can't be kept is signalled as lost before the store can grant the lock again.

use std::time::Duration;

use futures_util::FutureExt;
use polylock_core::{Clock, Error, Guard, KeepAlive, LostReason, Operation, SystemClock};

use crate::{
    ManualClock,
    faults::{Flaky, Gate, InjectedFault, Recording, Side},
    trial::{
        Outcome, SOON, Trial, acquired, acquired_by, join, pass, released, soon, tried, watched,
        while_running, within,
    },
};

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
        let guard = acquired_by(&clock, locks.lock("n")).await;
        gate.shut(Operation::Renew, side);
        clock.advance(trial.long() / 3 + INSTANT);
        soon("a renewal", gate.blocked(Operation::Renew)).await;
        assert_lost_at_deadline(&clock, &guard, side == Side::Reply).await;
        gate.thaw();
        drop(guard);
        trial.assert_empty(&["n"], "after a loss").await;
    }
    Ok(())
}

/// The lock is held until the last instant before the deadline, and lost at the deadline: the signal comes without a call on the guard,
/// and a call on the guard reports the loss even if the signal has not arrived yet.
async fn assert_lost_at_deadline(clock: &ManualClock, guard: &Guard, check_guard_first: bool) {
    let lost = tokio::spawn(guard.lost());
    let deadline = guard.deadline();
    clock.advance(deadline.since(clock.now()) - INSTANT);
    assert!(guard.is_held() && guard.remaining() == INSTANT, "lost before the deadline");
    assert!(!lost.is_finished(), "the loss was signalled before the deadline");
    clock.advance(INSTANT);
    if check_guard_first {
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
    let guard = acquired_by(&clock, locks.lock("n")).await;
    gate.freeze();
    assert_lost_at_deadline(&clock, &guard, false).await;
    let refused = soon("the release of a lost lock", guard.release()).await;
    assert_eq!(refused.expect_err("the hold was lost").lost(), Some(&LostReason::DeadlineReached));
    gate.thaw();
    trial.assert_empty(&["n"], "after the store has recovered").await;
    Ok(())
}

pub(super) async fn a_panicking_renewal(trial: Trial) -> Outcome {
    fail_until_the_deadline(&trial, InjectedFault::Panic).await;
    Ok(())
}

/// After an error the outcome is unknown, for any kind of error: the hold lasts until its deadline.
pub(super) async fn a_failing_renewal_is_retried_until_the_deadline(trial: Trial) -> Outcome {
    fail_until_the_deadline(&trial, InjectedFault::RequestLost).await;
    fail_until_the_deadline(&trial, InjectedFault::Permanent).await;
    Ok(())
}

async fn fail_until_the_deadline(trial: &Trial, fault: InjectedFault) {
    let clock = ManualClock::new();
    let (store, flaky) = watched(trial.store().await, Flaky::new);
    let locks = trial.open_by(store, &clock);
    let guard = acquired_by(&clock, locks.lock("n")).await;
    flaky.fail_next(Operation::Renew, fault, 100_000);
    let deadline = guard.deadline();
    clock.advance(trial.long() / 3 + INSTANT);
    for failures in 1..=3 {
        while !soon_true(|| flaky.failed() >= failures).await {
            clock.advance(trial.long() / 60);
            assert!(
                clock.now() < deadline,
                "expected retries of a failed renewal until the deadline, got {} attempts",
                flaky.failed()
            );
        }
        assert!(guard.is_held(), "lost before the deadline after {failures} times {fault:?}");
    }
    assert_eq!(guard.deadline(), deadline, "a failed renewal extended the deadline");
    assert_lost_at_deadline(&clock, &guard, false).await;
    drop(guard);
    trial.assert_empty(&["n"], "after a loss").await;
}

/// Gives the engine a moment of real time before the manual clock advances.
async fn soon_true(condition: impl Fn() -> bool) -> bool {
    for _ in 0..20 {
        if condition() {
            return true;
        }
        pass(Duration::from_millis(1)).await;
    }
    condition()
}

pub(super) async fn a_transient_error_is_not_a_loss(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let (store, flaky) = watched(trial.store().await, Flaky::new);
    let locks = trial.open_by(store, &clock);
    let guard = acquired_by(&clock, locks.lock("n")).await;
    flaky.fail_next(Operation::Renew, InjectedFault::RequestLost, 1);
    flaky.fail_next(Operation::Renew, InjectedFault::ReplyLost, 1);
    let first = guard.deadline();
    clock.advance(trial.long() / 3 + INSTANT);
    while !soon_true(|| guard.deadline() != first).await {
        clock.advance(trial.long() / 60);
        assert!(guard.is_held(), "{} transient errors ended the hold", flaky.failed());
    }
    assert_eq!(flaky.failed(), 2);
    assert!(guard.is_held() && guard.deadline() > first);
    assert!(guard.lost().now_or_never().is_none());
    released(guard).await;
    trial.assert_empty(&["n"], "after the release").await;
    Ok(())
}

pub(super) async fn gone_from_the_store(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let (store, recording) = watched(trial.store().await, Recording::new);
    let locks = trial.open_by(store, &clock);
    let guard = acquired_by(&clock, locks.lock("n")).await;
    let claim = recording.of(Operation::Claim).remove(0);
    // This simulates an expiry in the store, or a manual deletion.
    trial.raw().await.release(&claim.request).await;
    let lost = tokio::spawn(guard.lost());
    let next = tried(trial.locks().await.lock("n")).await.expect("free: the hold was deleted from the store");
    clock.advance(trial.long() / 3 + INSTANT);
    assert_eq!(while_running(&clock, join(lost)).await, LostReason::Gone);
    assert!(!guard.is_held());
    assert!(next.fencing_token() >= guard.fencing_token());
    let refused = soon("the release of a lost lock", guard.release()).await;
    assert_eq!(refused.expect_err("the hold was lost").lost(), Some(&LostReason::Gone));
    assert!(
        tried(trial.locks().await.lock("n")).await.is_none(),
        "the release of a lost hold released the next holder"
    );
    released(next).await;
    trial.assert_empty(&["n"], "after a loss").await;
    Ok(())
}

/// With the real clock: a waiter gets the lock only after its holder has been notified.
pub(super) async fn before_the_next_grant(trial: Trial) -> Outcome {
    for freeze_all in [false, true] {
        let (store, gate) = watched(trial.store().await, Gate::new);
        let (here, there) = (trial.open(store), trial.locks().await);
        gate.shut(Operation::Renew, Side::Request);
        let guard = acquired(here.lock("n").ttl(trial.short())).await;
        if freeze_all {
            gate.freeze();
        }
        let (lost, deadline) = (guard.lost(), guard.deadline());
        let next = tokio::spawn(async move {
            let next = acquired(there.lock("n")).await;
            (SystemClock.now(), next)
        });
        let (granted, next) =
            within(trial.short() + SOON, "the grant to the next holder", next).await.expect("no panic");
        assert!(deadline <= granted, "granted {:?} before the deadline", deadline.since(granted));
        // After this, the I/O thread has run what was due before the grant.
        let yields = async {
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
            Ok(())
        };
        trial.on_io(yields).await;
        // The signal is checked first: a call on the guard would trigger it.
        assert_eq!(
            lost.now_or_never(),
            Some(LostReason::DeadlineReached),
            "the lock was granted again before the loss was signalled"
        );
        assert!(!guard.is_held(), "two guards report the lock as held");
        gate.thaw();
        drop(guard);
        assert!(next.is_held());
        released(next).await;
        trial.assert_empty(&["n"], "at the end").await;
    }
    Ok(())
}

/// The clock jumps over the deadline, as it does when the machine wakes up: the hold ends at once, even if the store would still renew
/// it.
pub(super) async fn a_suspended_machine(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let locks = trial.open_by(trial.store().await, &clock);
    let guard = acquired_by(&clock, locks.lock("n")).await;
    let lost = tokio::spawn(guard.lost());
    clock.advance(trial.long() * 60);
    assert!(!guard.is_held());
    assert_eq!(join(lost).await, LostReason::DeadlineReached);
    let mut polled = false;
    let outcome = soon("run", guard.run(async { polled = true })).await;
    assert_eq!(outcome.expect_err("lost").lost(), Some(&LostReason::DeadlineReached));
    assert!(!polled, "work was polled under a lost lock");
    trial.assert_empty(&["n"], "after a loss").await;
    Ok(())
}

/// A grant with a reply that comes after its lease has run out and the lock has been granted to another request.
pub(super) async fn a_late_grant_is_discarded(trial: Trial) -> Outcome {
    let (store, gate) = watched(trial.store().await, Gate::new);
    let (here, there) = (trial.open(store), trial.locks().await);
    gate.shut(Operation::Claim, Side::Reply);
    // Long enough that a busy machine does not lose it after the second grant.
    let late = tokio::spawn(acquired(here.lock("n").ttl(trial.renewable())));
    soon("the claim", gate.blocked(Operation::Claim)).await;
    let limit = trial.renewable() + SOON;
    let other =
        within(limit, "the grant after the lease of an unanswered claim", acquired(there.lock("n"))).await;
    gate.open(Operation::Claim);
    pass(trial.short() / 2).await;
    assert!(!late.is_finished(), "an expired grant was accepted");
    assert!(other.is_held());
    released(other).await;
    let guard = join(late).await;
    assert!(guard.is_held());
    released(guard).await;
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}

pub(super) async fn a_release_is_not_a_loss(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let (store, recording) = watched(trial.store().await, Recording::new);
    let locks = trial.open_by(store, &clock);
    let guard = acquired_by(&clock, locks.lock("released")).await;
    let dropped = acquired_by(&clock, locks.lock("dropped")).await;
    let request = recording.of(Operation::Claim).remove(0).request;
    let signals = [Box::pin(guard.lost()), Box::pin(dropped.lost())];
    released(guard).await;
    drop(dropped);
    trial.assert_empty(&["released", "dropped"], "after the release").await;
    clock.advance(trial.long() * 3);
    // The store has processed the request, and would report it as gone.
    let outcome = trial.raw().await.renew(&request).await;
    assert!(matches!(outcome, KeepAlive::Lost(_)), "{outcome:?}");
    released(acquired_by(&clock, locks.lock("other")).await).await;
    for lost in signals {
        assert_eq!(lost.now_or_never(), None, "a release was signalled as a loss");
    }
    Ok(())
}

/// Returns the reason of the loss from the error of a `run`.
fn lost_reason<T>(outcome: Result<T, Error>) -> Option<LostReason> {
    outcome.err().and_then(|error| error.lost().cloned())
}
