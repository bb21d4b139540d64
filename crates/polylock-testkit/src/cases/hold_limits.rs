//! The shortest and the longest time of a hold.

use std::time::Duration;

use polylock_core::{Clock, Error, Guard, Locks, LostReason, Operation, SystemClock};

use crate::{
    ManualClock,
    faults::Recording,
    trial::{
        CancelAt, Outcome, SOON, Trial, acquired, acquired_by, cancel_at, join, outside, released, soon,
        tried, watched,
    },
};

const INSTANT: Duration = Duration::from_nanos(1);

/// The shortest time in cases that wait for it.
const MIN_HOLD: Duration = Duration::from_millis(1200);

pub(super) async fn max_hold_ends_a_hold_that_is_renewed(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let (store, recording) = watched(trial.store().await, Recording::new);
    let locks = trial.open_by(store, &clock);
    let max = trial.long() * 2;
    let before = clock.now();
    let guard = acquired_by(&clock, locks.lock("n").max_hold(max)).await;
    let last_end = clock.now() + max;
    while guard.deadline() < before + max {
        let renewed = guard.renewed();
        clock.advance(trial.long() / 3 + INSTANT);
        assert!(soon("a renewal", renewed).await.is_some(), "lost before the end of its longest time");
    }
    assert!(guard.deadline() <= last_end, "the deadline is after the longest time");
    ends_at_its_deadline(&trial, &clock, &recording, guard).await;
    Ok(())
}

pub(super) async fn max_hold_ends_a_hold_before_its_lease(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let (store, recording) = watched(trial.store().await, Recording::new);
    let locks = trial.open_by(store, &clock);
    let max = trial.long() / 4;
    let guard = acquired_by(&clock, locks.lock("n").max_hold(max)).await;
    assert!(guard.remaining() <= max, "the deadline is after the longest time");
    ends_at_its_deadline(&trial, &clock, &recording, guard).await;
    Ok(())
}

/// The hold ends at its deadline without another renewal, and the lock is taken until its holder has stopped.
async fn ends_at_its_deadline(trial: &Trial, clock: &ManualClock, recording: &Recording, guard: Guard) {
    let lost = tokio::spawn(guard.lost());
    let renewals = recording.of(Operation::Renew).len();
    clock.advance(guard.deadline().since(clock.now()) - INSTANT);
    assert!(guard.is_held() && !lost.is_finished(), "lost before the end of its longest time");
    clock.advance(INSTANT);
    assert_eq!(join(lost).await, LostReason::MaxHold);
    assert_eq!(guard.ensure_held().expect_err("lost").lost(), Some(&LostReason::MaxHold));
    let other = trial.locks().await;
    assert!(tried(other.lock("n")).await.is_none(), "granted while the former holder may be at work");
    assert_eq!(recording.of(Operation::Renew).len(), renewals, "the last lease was renewed");
    let refused = soon("the release of a lost lock", guard.release()).await;
    assert_eq!(refused.expect_err("lost").lost(), Some(&LostReason::MaxHold));
    trial.assert_empty(&["n"], "after the holder has stopped").await;
}

pub(super) async fn max_hold_frees_the_lock_of_a_stuck_holder(trial: Trial) -> Outcome {
    let (locks, other) = (trial.locks().await, trial.locks().await);
    let ttl = trial.renewable();
    let stuck = acquired(locks.lock("n").ttl(ttl).max_hold(ttl / 2)).await;
    let next = acquired(other.lock("n")).await;
    assert!(!stuck.is_held(), "granted to another holder before the loss");
    assert_eq!(soon("the signal of the loss", stuck.lost()).await, LostReason::MaxHold);
    drop(stuck);
    assert!(next.is_held());
    released(next).await;
    trial.assert_empty(&["n"], "after a hold that was too long").await;
    Ok(())
}

pub(super) async fn min_hold_delays_a_release(trial: Trial) -> Outcome {
    delays(&trial, |guard| async { released(guard).await }).await;
    delays(&trial, |guard| async { soon("run", guard.run(async {})).await.expect("the lock was held") })
        .await;
    Ok(())
}

pub(super) async fn min_hold_delays_a_drop(trial: Trial) -> Outcome {
    delays(&trial, |guard| async { drop(guard) }).await;
    // The last act of a thread.
    delays(&trial, |guard| outside(move || drop(guard))).await;
    // A release that its caller does not wait for.
    delays(&trial, |guard| async {
        soon("a release that is dropped", cancel_at(guard.release(), CancelAt::AfterPoll(1))).await;
    })
    .await;
    Ok(())
}

/// After `end`, the lock stays taken until the end of its shortest time, and not much longer.
async fn delays<F: Future<Output = ()>>(trial: &Trial, end: impl FnOnce(Guard) -> F) {
    let (locks, other) = (trial.locks().await, trial.locks().await);
    let before = SystemClock.now();
    let guard = acquired(locks.lock("n").min_hold(MIN_HOLD)).await;
    let granted = SystemClock.now();
    end(guard).await;
    assert_refused_until(&other, before + MIN_HOLD).await;
    let next = acquired(other.lock("n")).await;
    let now = SystemClock.now();
    assert!(
        now >= before + MIN_HOLD,
        "granted {:?} before the end of its shortest time",
        (before + MIN_HOLD).since(now)
    );
    assert!(
        now < granted + MIN_HOLD + SOON,
        "still taken {:?} after the end of its shortest time",
        now.since(granted + MIN_HOLD)
    );
    released(next).await;
    trial.assert_empty(&["n"], "after the shortest time of a hold").await;
}

/// Tries once. The try is not granted, unless it was late.
async fn assert_refused_until(locks: &Locks, end: polylock_core::Moment) {
    let granted = tried(locks.lock("n")).await.is_some();
    assert!(!granted || SystemClock.now() >= end, "granted before the end of its shortest time");
}

pub(super) async fn min_hold_does_not_delay_a_later_release(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let locks = trial.open_by(trial.store().await, &clock);
    let guard = acquired_by(&clock, locks.lock("n").min_hold(trial.long() / 10)).await;
    // Stores count in milliseconds, so the shortest time may be longer by one.
    clock.advance(trial.long() / 10 + Duration::from_millis(1));
    released(guard).await;
    trial.assert_empty(&["n"], "released after its shortest time").await;
    Ok(())
}

pub(super) async fn limits_are_checked_before_any_io(trial: Trial) -> Outcome {
    let (locks, recording) = trial.recorded().await;
    let lock = locks.lock("n").min_hold(Duration::from_secs(2));
    for max in [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(2)] {
        let refused = soon("acquire", lock.clone().max_hold(max).acquire()).await;
        let is_config = matches!(&refused, Err(Error::Config(error)) if error.key == "max_hold");
        assert!(is_config, "{max:?}: {refused:?}");
    }
    assert_eq!(recording.calls().len(), 0, "an invalid limit has sent a request");
    Ok(())
}
