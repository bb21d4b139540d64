//! A release reports its outcome: a hold that had ended before is never reported as success.

use std::sync::Arc;

use polylock_core::{Guard, LostReason, Mode, Operation, Release, Request};

use crate::{
    faults::{Flaky, Recording, Trouble},
    trial::{Outcome, Trial, acquired, lock_name, released, soon, tried, watched},
};

pub(super) async fn reports_whether_there_was_an_entry(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    let [holder, other] = ["n", "n"].map(|name| Request::new(lock_name(name), Mode::Exclusive, trial.long()));
    assert_eq!(raw.release(&holder).await, Release::Lost(LostReason::Gone), "never claimed");
    raw.hold(&holder).await;
    assert_eq!(raw.release(&other).await, Release::Lost(LostReason::Gone), "another holds it");
    assert_eq!(raw.release(&holder).await, Release::Released);
    assert_eq!(raw.release(&holder).await, Release::Lost(LostReason::Gone), "released before");
    trial.nothing_left(&["n"], "after the release").await;
    Ok(())
}

pub(super) async fn of_a_waiter_reports_it_too(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    let [holder, waiter] =
        ["n", "n"].map(|name| Request::new(lock_name(name), Mode::Exclusive, trial.long()));
    raw.hold(&holder).await;
    raw.queue(&waiter).await;
    assert_eq!(raw.release(&waiter).await, Release::Released);
    assert_eq!(raw.release(&waiter).await, Release::Lost(LostReason::Gone));
    assert_eq!(raw.release(&holder).await, Release::Released);
    trial.nothing_left(&["n"], "after both").await;
    Ok(())
}

/// A guard whose entry has been taken from the store, and the lock granted to another.
async fn superseded(trial: &Trial) -> (Guard, Guard) {
    let (store, recording) = watched(trial.store().await, Recording::new);
    let guard = acquired(trial.open(store).lock("n")).await;
    let claim = recording.of(Operation::Claim).remove(0);
    assert_eq!(trial.raw().await.release(&claim.request).await, Release::Released);
    let next = tried(trial.locks().await.lock("n")).await.expect("the store has it no more");
    assert!(guard.is_held(), "it has not been renewed since");
    (guard, next)
}

pub(super) async fn of_a_superseded_hold_is_an_error(trial: Trial) -> Outcome {
    let (guard, next) = superseded(&trial).await;
    let refused = soon("the release", guard.release()).await;
    assert_eq!(refused.expect_err("another holds it").lost(), Some(&LostReason::Gone));
    assert!(tried(trial.locks().await.lock("n")).await.is_none(), "the loser has released another's lock");
    released(next).await;

    let (guard, next) = superseded(&trial).await;
    let outcome = soon("run", guard.run(async { "done" })).await;
    assert_eq!(outcome.expect_err("another holds it").lost(), Some(&LostReason::Gone));
    released(next).await;
    trial.nothing_left(&["n"], "after all").await;
    Ok(())
}

pub(super) async fn with_its_first_reply_lost_succeeds(trial: Trial) -> Outcome {
    let (store, flaky) = watched(trial.store().await, Flaky::new);
    let flaky: Arc<Flaky> = flaky;
    let locks = trial.open(store);
    for trouble in [Trouble::ReplyLost, Trouble::RequestLost] {
        let guard = acquired(locks.lock("n")).await;
        flaky.next(Operation::Release, trouble, 1);
        released(guard).await;
        let guard = acquired(locks.lock("n")).await;
        flaky.next(Operation::Release, trouble, 2);
        assert_eq!(soon("run", guard.run(async { 7 })).await.ok(), Some(7), "{trouble:?}");
    }
    trial.nothing_left(&["n"], "after the release").await;
    Ok(())
}
