//! A guard that is dropped releases its lock, wherever and whenever that is.

use std::thread;

use polylock_core::Locks;
use tokio::runtime::{Builder, Runtime};

use crate::trial::{Outcome, Trial, acquired, outside, soon, tried};

pub(super) async fn inside_a_runtime(trial: Trial) -> Outcome {
    inside(&trial).await;
    Ok(())
}

pub(super) async fn inside(trial: &Trial) {
    let locks = trial.locks().await;
    for _ in 0..5 {
        let guard = acquired(locks.lock("n")).await;
        drop(guard);
        trial.nothing_left(&["n"], "dropped inside a runtime").await;
    }
}

pub(super) async fn outside_of_any_runtime(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let guard = acquired(locks.lock("n")).await;
    outside(move || {
        assert!(tokio::runtime::Handle::try_current().is_err(), "this thread knows no runtime");
        drop(guard);
    })
    .await;
    trial.nothing_left(&["n"], "dropped outside of any runtime").await;
    Ok(())
}

pub(super) async fn in_a_panic(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let task = tokio::spawn(async move {
        let _guard = acquired(locks.lock("n")).await;
        // Unwinds like a panic, and does not shout like one.
        std::panic::resume_unwind(Box::new("a planted panic in the critical section"));
    });
    assert!(soon("the task that panics", task).await.is_err_and(|cut| cut.is_panic()));
    trial.nothing_left(&["n"], "dropped in a panic").await;

    let locks = trial.locks().await;
    let guard = acquired(locks.lock("n")).await;
    let task =
        tokio::spawn(guard.run(async { std::panic::resume_unwind(Box::new("a planted panic in the work")) }));
    assert!(soon("the work that panics", task).await.is_err_and(|cut| cut.is_panic()));
    trial.nothing_left(&["n"], "a panic in the work of run").await;
    Ok(())
}

pub(super) async fn after_its_runtime_has_gone(trial: Trial) -> Outcome {
    let (locks, there) = (trial.locks().await, trial.locks().await);
    let guard = outside(move || {
        let runtime = current_thread();
        let guard = runtime.block_on(acquired(locks.lock("n")));
        drop(runtime);
        guard
    })
    .await;
    assert!(guard.is_held(), "a guard outlives the runtime it was made on");
    assert!(tried(there.lock("n")).await.is_none());
    outside(move || drop(guard)).await;
    trial.nothing_left(&["n"], "dropped after its runtime had gone").await;
    Ok(())
}

pub(super) async fn as_the_last_act_of_a_current_thread_runtime(trial: Trial) -> Outcome {
    last_acts(&trial, current_thread, 60).await;
    Ok(())
}

pub(super) async fn as_the_last_act_of_a_multi_thread_runtime(trial: Trial) -> Outcome {
    last_acts(&trial, multi_thread, 60).await;
    Ok(())
}

/// A thread ends with its runtime, the guard dropped as its last act: when it has ended, the release has arrived.
pub(super) async fn last_acts(trial: &Trial, runtime: fn() -> Runtime, times: usize) {
    let raw = trial.bare();
    let mut arrived = 0;
    for time in 0..times {
        let locks = trial.locks().await;
        // Half of the time it is the last handle, whose drop waits; else only the end of the thread does.
        let kept = (time / 2 % 2 == 0).then(|| locks.clone());
        outside(move || last_act(&runtime(), &locks, time % 2 == 0)).await;
        arrived += usize::from(raw.try_once("n", polylock_core::Mode::Exclusive).await);
        trial.nothing_left(&["n"], "dropped as the last act").await;
        drop(kept);
    }
    assert_eq!(arrived, times, "releases that had arrived when the thread had ended");
}

fn last_act(runtime: &Runtime, locks: &Locks, inside: bool) {
    runtime.block_on(async {
        let guard = acquired(locks.lock("n")).await;
        if inside {
            drop(guard);
        } else {
            // Dropped with the runtime, whose tasks end with it.
            tokio::spawn(async move {
                let _guard = guard;
                std::future::pending::<()>().await;
            });
            tokio::task::yield_now().await;
        }
    });
    assert!(!thread::panicking());
}

pub(super) fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

pub(super) fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}
