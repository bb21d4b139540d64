//! First come, first served.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use polylock_core::{Clock, Mode, Request, SystemClock};

use crate::{
    history::{self, Recorder},
    trial::{Outcome, SOON, Trial, acquired, join, lock_name, pass, released, soon, tried, within},
};

pub(super) async fn first_come_first_served(trial: Trial) -> Outcome {
    queue_up(&trial, 20).await;
    Ok(())
}

/// `count` waiters on two connections, each in the queue before the next comes, are served in that order.
pub(super) async fn queue_up(trial: &Trial, count: usize) {
    let connections = [trial.recorded().await, trial.recorded().await];
    let holder = acquired(connections[0].0.lock("n")).await;
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    for number in 0..count {
        let (locks, recording) = &connections[number % 2];
        let lock = locks.lock("n");
        let served = served.clone();
        waiters.push(tokio::spawn(async move {
            let guard = acquired(lock).await;
            served.lock().unwrap().push(number);
            released(guard).await;
        }));
        soon("a waiter joins the queue", recording.queued(&lock_name("n"), number / 2 + 1)).await;
    }
    assert_eq!(*served.lock().unwrap(), Vec::<usize>::new(), "nobody is served while it is held");
    released(holder).await;
    for waiter in waiters {
        join(waiter).await;
    }
    assert_eq!(*served.lock().unwrap(), (0..count).collect::<Vec<_>>(), "served in order of arrival");
    trial.nothing_left(&["n"], "after the queue").await;
}

pub(super) async fn a_newcomer_does_not_overtake_a_waiter(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    let request = || Request::new(lock_name("n"), Mode::Exclusive, trial.long());
    let (holder, waiter, mut newcomer) = (request(), request(), request());
    newcomer.queues = false;
    raw.hold(&holder).await;
    raw.queue(&waiter).await;
    raw.release(&holder).await;
    // The lock may be free, or the waiter's by now: it is not the newcomer's in either case.
    raw.queue(&newcomer).await;
    raw.queue(&request()).await;
    raw.hold(&waiter).await;
    raw.release(&waiter).await;
    Ok(())
}

pub(super) async fn a_dead_waiter_is_passed_over(trial: Trial) -> Outcome {
    let (locks, raw) = (trial.locks().await, trial.raw().await);
    let holder = acquired(locks.lock("n")).await;
    let dead = Request::new(lock_name("n"), Mode::Exclusive, trial.short());
    let died = SystemClock.now();
    raw.queue(&dead).await;
    let alive = tokio::spawn(acquired(locks.lock("n")));
    released(holder).await;
    let limit = dead.place_ttl() + SOON;
    let guard = within(limit, "passing over a waiter that died", alive).await.expect("no panic");
    // It may be served early only if the dead one's place had ended.
    let passed = SystemClock.now().since(died);
    assert!(passed + Duration::from_millis(20) >= dead.place_ttl(), "overtaken after {passed:?}");
    released(guard).await;
    Ok(())
}

pub(super) async fn readers_do_not_starve_a_writer(trial: Trial) -> Outcome {
    let (locks, recording) = trial.recorded().await;
    let recorder = Recorder::new();
    let first = acquired(locks.lock("n").shared()).await;
    let mut attempt = recorder.invoke("n", "writer", Mode::Exclusive);
    let writer = tokio::spawn(acquired(locks.lock("n")));
    soon("the writer joins the queue", recording.queued(&lock_name("n"), 1)).await;
    attempt.queued();

    assert!(tried(locks.lock("n").shared()).await.is_none(), "a reader who tries must not pass the writer");
    // A stream of readers whose holds would overlap for ever.
    let readers: Vec<_> = (0..6)
        .map(|reader: usize| {
            let (locks, recorder) = (locks.clone(), recorder.clone());
            tokio::spawn(async move {
                for _ in 0..3 {
                    let attempt = recorder.invoke("n", reader.to_string(), Mode::Shared);
                    let guard = acquired(locks.lock("n").shared()).await;
                    let hold = attempt.acquired(&guard);
                    pass(Duration::from_millis(2)).await;
                    hold.releasing(&guard);
                    released(guard).await;
                }
            })
        })
        .collect();
    released(first).await;
    let guard = join(writer).await;
    let hold = attempt.acquired(&guard);
    hold.releasing(&guard);
    released(guard).await;
    for reader in readers {
        join(reader).await;
    }
    let sections = recorder.sections();
    let found = [history::overlaps(&sections), history::inversions(&sections)].concat();
    assert!(found.is_empty(), "{}", found[0]);
    trial.nothing_left(&["n"], "after the readers").await;
    Ok(())
}
