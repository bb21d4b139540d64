//! A release reports its outcome: a hold that had ended before is never reported as success.

use std::{sync::Arc, time::Duration};

use polylock_core::{Clock, Guard, LostReason, Mode, Operation, Release, Request, SystemClock};

use crate::{
    faults::{Flaky, InjectedFault, Recording},
    trial::{Outcome, Trial, acquired, lock_name, released, soon, tried, watched},
};

pub(super) async fn reports_if_it_removed_an_entry(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    let [holder, other] = ["n", "n"].map(|name| Request::new(lock_name(name), Mode::Exclusive, trial.long()));
    assert_eq!(raw.release(&other).await, Release::Lost(LostReason::Gone), "released without a claim");
    raw.hold(&holder).await;
    assert_eq!(raw.release(&other).await, Release::Lost(LostReason::Gone), "another request holds it");
    assert_eq!(raw.release(&holder).await, Release::Released);
    assert_eq!(raw.release(&holder).await, Release::Lost(LostReason::Gone), "released a second time");
    trial.assert_empty(&["n"], "after the release").await;
    Ok(())
}

pub(super) async fn of_a_waiter_reports_if_it_removed_an_entry(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    let [holder, waiter] =
        ["n", "n"].map(|name| Request::new(lock_name(name), Mode::Exclusive, trial.long()));
    raw.hold(&holder).await;
    raw.queue(&waiter).await;
    assert_eq!(raw.release(&waiter).await, Release::Released);
    assert_eq!(raw.release(&waiter).await, Release::Lost(LostReason::Gone));
    assert_eq!(raw.release(&holder).await, Release::Released);
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}

/// Returns the guard of a hold that was deleted from the store, and the guard of the next holder.
async fn superseded(trial: &Trial) -> (Guard, Guard) {
    let (store, recording) = watched(trial.store().await, Recording::new);
    let guard = acquired(trial.open(store).lock("n")).await;
    let claim = recording.of(Operation::Claim).remove(0);
    assert_eq!(trial.raw().await.release(&claim.request).await, Release::Released);
    let next = tried(trial.locks().await.lock("n")).await.expect("free: the hold was deleted from the store");
    assert!(guard.is_held(), "the loss is known before a renewal");
    (guard, next)
}

pub(super) async fn of_a_superseded_hold_is_an_error(trial: Trial) -> Outcome {
    let (guard, next) = superseded(&trial).await;
    let refused = soon("the release", guard.release()).await;
    assert_eq!(refused.expect_err("the hold was superseded").lost(), Some(&LostReason::Gone));
    assert!(
        tried(trial.locks().await.lock("n")).await.is_none(),
        "the release of a lost hold released the next holder"
    );
    released(next).await;

    let (guard, next) = superseded(&trial).await;
    let began = SystemClock.now();
    match soon("run", guard.run(async { "done" })).await {
        Err(error) => assert_eq!(error.lost(), Some(&LostReason::Gone)),
        // On a busy machine, the release may take longer than `run` waits for it.
        Ok(_) => assert!(
            SystemClock.now().since(began) >= Duration::from_millis(500),
            "expected a loss from run: the hold was superseded"
        ),
    }
    released(next).await;
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}

pub(super) async fn is_retried_after_a_lost_reply(trial: Trial) -> Outcome {
    let (store, flaky) = watched(trial.store().await, Flaky::new);
    let flaky: Arc<Flaky> = flaky;
    let locks = trial.open(store);
    for fault in [InjectedFault::ReplyLost, InjectedFault::RequestLost] {
        let guard = acquired(locks.lock("n")).await;
        flaky.fail_next(Operation::Release, fault, 1);
        released(guard).await;
        let guard = acquired(locks.lock("n")).await;
        flaky.fail_next(Operation::Release, fault, 2);
        assert_eq!(soon("run", guard.run(async { 7 })).await.ok(), Some(7), "{fault:?}");
    }
    trial.assert_empty(&["n"], "after the release").await;
    Ok(())
}
