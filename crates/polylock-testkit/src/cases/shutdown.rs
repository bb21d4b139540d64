//! A shutdown of locks ends and releases everything, and refuses everything after it.

use polylock_core::{Error, Lock, LostReason, Operation, ShutdownReport, blocking};

use crate::{
    ManualClock,
    faults::{Gate, Side},
    trial::{
        CancelAt, Outcome, Trial, acquired, acquired_by, cancel_at, join, lock_name, outside, soon, tried,
        watched,
    },
};

async fn shut_down(locks: &polylock_core::Locks) -> ShutdownReport {
    let report = soon("the shutdown", locks.shutdown()).await;
    report.unwrap_or_else(|error| panic!("shutdown: {}", error.chain()))
}

async fn assert_refused(lock: Lock) {
    let outcome = soon("an acquisition after the shutdown", lock.acquire()).await;
    assert!(matches!(outcome, Err(Error::ShutDown)), "expected a refusal after the shutdown: {outcome:?}");
}

pub(super) async fn releases_all_holds(trial: Trial) -> Outcome {
    let (locks, other) = (trial.locks().await, trial.locks().await);
    let guards = [acquired(locks.lock("a")).await, acquired(locks.lock("b")).await];
    let lost = guards[0].lost();
    let there = blocking::Locks::from(locks.clone());
    let of_thread = outside(move || there.lock("c").acquire()).await;
    let of_thread = of_thread.unwrap_or_else(|error| panic!("acquire: {}", error.chain()));
    let kept = acquired(other.lock("d")).await;

    let report = shut_down(&locks).await;
    assert!(report.released == 3 && report.is_complete(), "expected three releases: {report:?}");
    for name in ["a", "b", "c"] {
        let free = tried(other.lock(name)).await;
        assert!(free.is_some(), "{name} is not free when the shutdown is complete");
    }
    assert_eq!(soon("the signal of the loss", lost).await, LostReason::ShutDown);
    for guard in guards {
        let refused = soon("release", guard.release()).await;
        assert_eq!(refused.expect_err("the shutdown has released it").lost(), Some(&LostReason::ShutDown));
    }
    assert_eq!(of_thread.lost(), Some(LostReason::ShutDown));
    assert_eq!(shut_down(&locks).await.released, 3, "the report of a second call");
    assert!(kept.is_held(), "the shutdown has ended a hold of other locks");
    drop((kept, of_thread));
    trial.assert_empty(&["a", "b", "c", "d"], "after the shutdown").await;
    Ok(())
}

pub(super) async fn ends_the_waiters(trial: Trial) -> Outcome {
    let other = trial.locks().await;
    let (locks, recording) = trial.recorded().await;
    let holder = acquired(other.lock("n")).await;
    let waiter = tokio::spawn(locks.lock("n").acquire());
    soon("the waiter", recording.queued(&lock_name("n"), 1)).await;
    let report = shut_down(&locks).await;
    assert!(report.released == 0 && report.is_complete(), "{report:?}");
    let outcome = join(waiter).await;
    assert!(matches!(outcome, Err(Error::ShutDown)), "expected an end by the shutdown: {outcome:?}");
    trial.assert_entries(1, "the holder, after the shutdown of the waiter").await;
    assert!(holder.is_held());
    drop(holder);
    trial.assert_empty(&["n"], "after the shutdown").await;
    Ok(())
}

pub(super) async fn refuses_acquisitions_before_any_io(trial: Trial) -> Outcome {
    let (locks, recording) = trial.recorded().await;
    shut_down(&locks).await;
    let before = recording.calls().len();
    assert_refused(locks.lock("n")).await;
    assert_refused(locks.clone().lock("n").wait(std::time::Duration::ZERO)).await;
    assert_eq!(recording.calls().len(), before, "a refused acquisition has sent a request");
    Ok(())
}

pub(super) async fn is_completed_after_a_drop(trial: Trial) -> Outcome {
    for point in [CancelAt::AfterPoll(1), CancelAt::AfterWake(1), CancelAt::AfterPoll(2)] {
        let locks = trial.locks().await;
        let guard = acquired(locks.lock("n")).await;
        soon("a cancelled shutdown", cancel_at(locks.shutdown(), point)).await;
        let report = shut_down(&locks).await;
        assert!(report.released == 1 && report.is_complete(), "{point:?}: {report:?}");
        assert!(!guard.is_held());
        trial.assert_empty(&["n"], "after a cancelled shutdown").await;
    }
    Ok(())
}

pub(super) async fn reports_a_release_that_fails(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let (store, gate) = watched(trial.store().await, Gate::new);
    let locks = trial.open_by(store, &clock);
    let guard = acquired_by(&clock, locks.lock("n")).await;
    gate.shut(Operation::Release, Side::Request);
    let shutdown = tokio::spawn({
        let locks = locks.clone();
        async move { shut_down(&locks).await }
    });
    soon("the release", gate.blocked(Operation::Release)).await;
    assert!(!guard.is_held(), "held for its guard although the release was sent");
    clock.advance(trial.long() * 2);
    let report = join(shutdown).await;
    let names: Vec<&str> = report.failed.iter().map(|failed| failed.name.as_str()).collect();
    assert_eq!((names, report.released), (vec!["n"], 0), "{report:?}");
    gate.thaw();
    drop(guard);
    trial.assert_empty(&["n"], "after the store has recovered").await;
    Ok(())
}
