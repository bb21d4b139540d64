//! Dropping a guard releases its lock, on any thread and at any time.

use std::{thread, time::Duration};

use polylock_core::{Clock, Locks, Moment, SystemClock};
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

/// The time for which the end of a thread waits for a release.
const AT_EXIT: Duration = Duration::from_millis(500);

/// A thread ends with its runtime and drops the guard last: when it has ended, the release has arrived, unless it took too long.
pub(super) async fn drop_at_the_end(trial: &Trial, runtime: fn() -> Runtime, rounds: usize) {
    arrives_at_the_end(trial, rounds, move |locks, round| drop_with(&runtime(), &locks, round % 2 == 0))
        .await;
}

/// A thread runs `work`, which acquires the lock and drops it last. `work` returns the time at which it had the guard.
pub(super) async fn arrives_at_the_end(
    trial: &Trial,
    rounds: usize,
    work: impl Fn(Locks, usize) -> Moment + Copy + Send + 'static,
) {
    let raw = trial.bare();
    let (mut arrived, mut slow) = (0, 0);
    for round in 0..rounds {
        let locks = trial.locks().await;
        // Half of the time this is the last handle, and its drop waits; otherwise only the end of the thread does.
        let kept = (round / 2 % 2 == 0).then(|| locks.clone());
        let held_at = outside(move || work(locks, round)).await;
        let took = SystemClock.now().since(held_at);
        if raw.try_once("n", polylock_core::Mode::Exclusive).await {
            arrived += 1;
        } else if took >= AT_EXIT {
            slow += 1;
        }
        trial.assert_empty(&["n"], "dropped at the end of a thread").await;
        drop(kept);
    }
    assert_eq!(arrived + slow, rounds, "expected every release to arrive before the end of its thread");
    // A busy machine delays some of them.
    assert!(2 * slow <= rounds, "{slow} of {rounds} releases took longer than {AT_EXIT:?}");
}

/// Returns the time at which the guard was acquired, before its drop.
fn drop_with(runtime: &Runtime, locks: &Locks, in_block_on: bool) -> Moment {
    let held_at = runtime.block_on(async {
        let guard = acquired(locks.lock("n")).await;
        let held_at = SystemClock.now();
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
        held_at
    });
    assert!(!thread::panicking());
    held_at
}

pub(super) fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

pub(super) fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}
