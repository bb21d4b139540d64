//! Holds with conflicting modes never overlap.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use polylock_core::{Clock, Fencing, Mode, SystemClock};

use crate::{
    history::{self, Recorder, Rules},
    trial::{Outcome, Trial, acquired, join, pass, released, scale, tried},
};

pub(super) async fn one_holder_at_a_time(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let guard = acquired(here.lock("n")).await;
    assert!(guard.is_held());
    assert!(tried(here.lock("n")).await.is_none(), "a lock that this connection holds was granted");
    assert!(tried(there.lock("n")).await.is_none(), "a lock that the other connection holds was granted");
    released(guard).await;
    let guard = tried(there.lock("n")).await.expect("free again");
    assert!(tried(here.lock("n")).await.is_none(), "a lock that the other connection holds was granted");
    released(guard).await;
    Ok(())
}

pub(super) async fn names_do_not_exclude_each_other(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let mut guards = Vec::new();
    for name in ["a", "b", "a/b", "a.b"] {
        guards.push(tried(locks.lock(name)).await.expect("free: only other names are held"));
    }
    for guard in guards {
        released(guard).await;
    }
    Ok(())
}

pub(super) async fn tasks_lose_no_update(trial: Trial) -> Outcome {
    contend(&trial, 32, 4 * scale()).await;
    Ok(())
}

/// `tasks` tasks on two connections increment numbers, each `rounds` times per number; then the history is checked.
pub(super) async fn contend(trial: &Trial, tasks: usize, rounds: usize) {
    let connections = [trial.locks().await, trial.locks().await];
    let contention = Arc::new(Contention::default());
    let workers: Vec<_> = (0..tasks)
        .map(|task| {
            let (locks, contention) = (connections[task % 2].clone(), contention.clone());
            tokio::spawn(async move {
                for round in 0..rounds {
                    for step in 0..NAMES.len() {
                        let number = contention.number(task + round + step);
                        let attempt =
                            contention.recorder.invoke(number.name, task.to_string(), Mode::Exclusive);
                        let guard = acquired(locks.lock(number.name)).await;
                        let hold = attempt.acquired(&guard);
                        increment(number).await;
                        assert!(guard.is_held(), "a hold with a lease of a minute was lost at once");
                        hold.releasing(&guard);
                        released(guard).await;
                    }
                }
            })
        })
        .collect();
    for worker in workers {
        join(worker).await;
    }
    contention.check(trial, tasks * rounds * NAMES.len()).await;
}

/// The names of the locks that tasks contend for.
pub(super) const NAMES: [&str; 3] = ["one", "two", "three"];

/// Numbers that tasks increment, each under its lock, and the history of the locks.
pub(super) struct Contention {
    numbers: [Protected; 3],
    pub(super) recorder: Recorder,
}

/// The data that a lock protects: a number that is read, and written a moment later.
pub(super) struct Protected {
    pub(super) name: &'static str,
    value: AtomicU64,
    inside: AtomicU64,
}

impl Default for Contention {
    fn default() -> Self {
        let numbers =
            NAMES.map(|name| Protected { name, value: AtomicU64::new(0), inside: AtomicU64::new(0) });
        Self { numbers, recorder: Recorder::new() }
    }
}

impl Contention {
    /// Returns a number; `index` may exceed their count.
    pub(super) fn number(&self, index: usize) -> &Protected {
        &self.numbers[index % NAMES.len()]
    }

    /// Checks that none of `expected` increments was lost.
    pub(super) fn check_sum(&self, expected: usize) {
        let sum: u64 = self.numbers.iter().map(|number| number.value.load(Ordering::SeqCst)).sum();
        assert_eq!(sum, expected as u64, "concurrent increments were lost");
    }

    /// Checks that no increment was lost, the history of `expected` holds, and that the locks are free.
    pub(super) async fn check(&self, trial: &Trial, expected: usize) {
        self.check_history(trial, expected);
        trial.assert_empty(&NAMES, "after the contention").await;
    }

    /// Checks that no increment was lost, and the history of `expected` holds.
    pub(super) fn check_history(&self, trial: &Trial, expected: usize) {
        self.check_sum(expected);
        let mut sections = self.recorder.sections();
        assert_eq!(sections.len(), expected);
        if trial.capabilities().fencing == Fencing::Absent {
            sections.iter_mut().for_each(|section| section.token = None);
        }
        let found = history::check(&sections, Rules::default());
        assert!(found.is_empty(), "{} violations; the first: {}", found.len(), found[0]);
    }
}

pub(super) async fn increment(number: &Protected) {
    assert_eq!(
        number.inside.fetch_add(1, Ordering::SeqCst),
        0,
        "two holders of {} at the same time",
        number.name
    );
    let read = number.value.load(Ordering::SeqCst);
    // Long enough to be overtaken if the lock admits another task.
    SystemClock.sleep_until(SystemClock.now() + Duration::from_micros(200)).await;
    number.value.store(read + 1, Ordering::SeqCst);
    number.inside.fetch_sub(1, Ordering::SeqCst);
}

/// Tasks that never wait, on two locks in both orders: each acquires both often enough.
pub(super) async fn tries_make_progress(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let tasks: Vec<_> = [["a", "b"], ["b", "a"]]
        .into_iter()
        .map(|[first, second]| {
            let locks = locks.clone();
            tokio::spawn(async move {
                let mut successes = 0;
                while successes < 10 {
                    let Some(one) = tried(locks.lock(first)).await else {
                        pass(Duration::from_micros(500)).await;
                        continue;
                    };
                    if let Some(other) = tried(locks.lock(second)).await {
                        successes += 1;
                        released(other).await;
                    }
                    released(one).await;
                    // The other task may get its turn.
                    pass(Duration::from_millis(1 + u64::from(first == "a"))).await;
                }
            })
        })
        .collect();
    for task in tasks {
        join(task).await;
    }
    trial.assert_empty(&["a", "b"], "at the end").await;
    Ok(())
}
