//! Synchronous programs: threads that block, without an async runtime.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use polylock_core::{Clock, Error, FencingToken, Result, SystemClock, blocking::Locks};

use super::drop::arrives_at_the_end;
use crate::trial::{Outcome, Trial, outside, timeout};

pub(super) async fn acquire_without_a_runtime(trial: Trial) -> Outcome {
    let [here, there] = [trial.locks().await, trial.locks().await].map(Locks::from);
    let tokens = outside(move || ok(tokens_of_two_grants(&here, &there))).await;
    let has_tokens = trial.capabilities().fencing != polylock_core::Fencing::Absent;
    assert!(!has_tokens || tokens[0] < tokens[1], "the tokens of successive grants: {tokens:?}");
    trial.assert_empty(&["n"], "released on a thread").await;
    Ok(())
}

fn tokens_of_two_grants(here: &Locks, there: &Locks) -> Result<[FencingToken; 2]> {
    assert!(tokio::runtime::Handle::try_current().is_err(), "expected a thread without a runtime");
    let guard = here.lock("n").wait(timeout()).acquire()?;
    assert!(guard.is_held() && guard.lost().is_none());
    assert!(there.lock("n").try_acquire()?.is_none(), "the lock was granted twice");
    let first = guard.fencing_token();
    guard.release()?;
    let second = there.lock("n").wait(timeout()).acquire()?.run(|guard| guard.fencing_token())?;
    Ok([first, second])
}

fn ok<T>(result: Result<T, Error>) -> T {
    result.unwrap_or_else(|error| panic!("a blocking call: {}", error.chain()))
}

/// The number of increments of each thread.
const ROUNDS: u32 = 10;
/// The time between a read and its write, in which another thread would read the same number.
const PAUSE: Duration = Duration::from_millis(1);

pub(super) async fn exclude_each_other(trial: Trial) -> Outcome {
    let stores = [trial.locks().await, trial.locks().await].map(Locks::from);
    let counter = Arc::new(AtomicU32::new(0));
    let there = counter.clone();
    outside(move || {
        let there = &*there;
        thread::scope(|scope| {
            for locks in stores.iter().chain(&stores) {
                scope.spawn(move || (0..ROUNDS).for_each(|_| ok(increment(locks, there))));
            }
        });
    })
    .await;
    assert_eq!(counter.load(Ordering::Relaxed), 4 * ROUNDS, "updates of concurrent threads were lost");
    trial.assert_empty(&["n"], "after the threads").await;
    Ok(())
}

fn increment(locks: &Locks, counter: &AtomicU32) -> Result<()> {
    locks.lock("n").acquire()?.run(|_| {
        let before = counter.load(Ordering::Relaxed);
        thread::sleep(PAUSE);
        counter.store(before + 1, Ordering::Relaxed);
    })
}

pub(super) async fn release_at_their_end(trial: Trial) -> Outcome {
    arrives_at_the_end(&trial, 20, |locks, _| {
        let _guard = ok(Locks::from(locks).lock("n").acquire());
        SystemClock.now()
    })
    .await;
    Ok(())
}
