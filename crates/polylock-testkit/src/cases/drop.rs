//! Dropping a guard releases its lock, on any thread and at any time.

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
        trial.assert_empty(&["n"], "dropped inside a runtime").await;
    }
}

pub(super) async fn outside_any_runtime(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let guard = acquired(locks.lock("n")).await;
    outside(move || {
        assert!(tokio::runtime::Handle::try_current().is_err(), "expected a thread without a runtime");
        drop(guard);
    })
    .await;
    trial.assert_empty(&["n"], "dropped outside of any runtime").await;
    Ok(())
}

pub(super) async fn in_a_panic(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let task = tokio::spawn(async move {
        let _guard = acquired(locks.lock("n")).await;
        // It unwinds like a panic, without the message of the panic hook.
        std::panic::resume_unwind(Box::new("an injected panic in the critical section"));
    });
    assert!(soon("the task that panics", task).await.is_err_and(|error| error.is_panic()));
    trial.assert_empty(&["n"], "dropped in a panic").await;

    let locks = trial.locks().await;
    let guard = acquired(locks.lock("n")).await;
    let task = tokio::spawn(
        guard.run(async { std::panic::resume_unwind(Box::new("an injected panic in the work")) }),
    );
    assert!(soon("the work that panics", task).await.is_err_and(|error| error.is_panic()));
    trial.assert_empty(&["n"], "after a panic in the work of run").await;
    Ok(())
}

pub(super) async fn after_its_runtime_was_dropped(trial: Trial) -> Outcome {
    let (locks, there) = (trial.locks().await, trial.locks().await);
    let guard = outside(move || {
        let runtime = current_thread();
        let guard = runtime.block_on(acquired(locks.lock("n")));
        drop(runtime);
        guard
    })
    .await;
    assert!(guard.is_held(), "lost with the runtime on which it was acquired");
    assert!(tried(there.lock("n")).await.is_none());
    outside(move || drop(guard)).await;
    trial.assert_empty(&["n"], "dropped after its runtime").await;
    Ok(())
}

pub(super) async fn at_the_end_of_a_current_thread_runtime(trial: Trial) -> Outcome {
    drop_at_the_end(&trial, current_thread, 60).await;
    Ok(())
}

pub(super) async fn at_the_end_of_a_multi_thread_runtime(trial: Trial) -> Outcome {
    drop_at_the_end(&trial, multi_thread, 60).await;
    Ok(())
}

/// A thread ends with its runtime and drops the guard last: when it has ended, the release has arrived.
pub(super) async fn drop_at_the_end(trial: &Trial, runtime: fn() -> Runtime, rounds: usize) {
    let raw = trial.bare();
    let mut arrived = 0;
    for round in 0..rounds {
        let locks = trial.locks().await;
        // Half of the time this is the last handle, and its drop waits; otherwise only the end of the thread does.
        let kept = (round / 2 % 2 == 0).then(|| locks.clone());
        outside(move || drop_with(&runtime(), &locks, round % 2 == 0)).await;
        arrived += usize::from(raw.try_once("n", polylock_core::Mode::Exclusive).await);
        trial.assert_empty(&["n"], "dropped at the end of a runtime").await;
        drop(kept);
    }
    assert_eq!(arrived, rounds, "expected every release to arrive before the end of its thread");
}

fn drop_with(runtime: &Runtime, locks: &Locks, in_block_on: bool) {
    runtime.block_on(async {
        let guard = acquired(locks.lock("n")).await;
        if in_block_on {
            drop(guard);
        } else {
            // The guard is dropped with the runtime, which ends its tasks.
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
