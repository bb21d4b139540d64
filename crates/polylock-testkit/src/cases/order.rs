//! First come, first served.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use polylock_core::{Clock, KeepAlive, Mode, Operation, Request, SystemClock};

use crate::{
    faults::{Call, Gate, Recording, Side, Withheld},
    history::{self, Recorder},
    trial::{
        Outcome, SOON, Trial, acquired, join, lock_name, pass, released, released_or_lost, soon, timeout,
        tried, watched, within,
    },
};

pub(super) async fn first_come_first_served(trial: Trial) -> Outcome {
    queue_up(&trial, 20).await;
    Ok(())
}

/// `count` waiters on two connections, each in the queue before the next one comes, are served in that order.
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
    assert_eq!(*served.lock().unwrap(), Vec::<usize>::new(), "a waiter was granted a held lock");
    released(holder).await;
    for waiter in waiters {
        join(waiter).await;
    }
    assert_eq!(
        *served.lock().unwrap(),
        (0..count).collect::<Vec<_>>(),
        "the waiters were not served in order of arrival"
    );
    trial.assert_empty(&["n"], "after the queue").await;
}

pub(super) async fn a_newcomer_does_not_overtake_a_waiter(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    let request = || Request::new(lock_name("n"), Mode::Exclusive, trial.long());
    let (holder, waiter, mut newcomer) = (request(), request(), request());
    newcomer.queues = false;
    raw.hold(&holder).await;
    raw.queue(&waiter).await;
    raw.release(&holder).await;
    // The lock may be free, or already granted to the waiter: in neither case does the newcomer get it.
    raw.queue(&newcomer).await;
    raw.queue(&request()).await;
    raw.hold(&waiter).await;
    raw.release(&waiter).await;
    Ok(())
}

pub(super) async fn a_dead_waiter_is_skipped(trial: Trial) -> Outcome {
    let (locks, raw) = (trial.locks().await, trial.raw().await);
    let holder = acquired(locks.lock("n")).await;
    let dead = Request::new(lock_name("n"), Mode::Exclusive, trial.short());
    let died = SystemClock.now();
    raw.queue(&dead).await;
    let alive = tokio::spawn(acquired(locks.lock("n")));
    released(holder).await;
    let limit = dead.queue_lease() + SOON;
    let guard = within(limit, "the grant to the waiter behind a dead one", alive).await.expect("no panic");
    // It may be served early only if the queue entry of the dead waiter had expired.
    let skipped_after = SystemClock.now().since(died);
    assert!(
        skipped_after + Duration::from_millis(20) >= dead.queue_lease(),
        "the dead waiter was skipped after {skipped_after:?}, before its lease ended"
    );
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

    assert!(tried(locks.lock("n").shared()).await.is_none(), "a try of a reader overtook the waiting writer");
    // A stream of readers with holds that would overlap for ever.
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
    trial.assert_empty(&["n"], "after the readers").await;
    Ok(())
}

/// Waiters with a short timeout between waiters without one: the latter are served at once and in order.
pub(super) async fn timeouts_do_not_delay_later_waiters(trial: Trial) -> Outcome {
    let (locks, recording) = trial.recorded().await;
    let holder = acquired(locks.lock("n")).await;
    let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
    let mut waits = Vec::new();
    for number in 0..24 {
        let (lock, served) = (locks.lock("n"), served.clone());
        let has_timeout = number % 2 == 0;
        waits.push(tokio::spawn(async move {
            if has_timeout {
                let refused =
                    soon("a wait that times out", lock.wait(Duration::from_millis(200)).acquire()).await;
                // On a busy machine, the first reply may come after the timeout.
                assert!(refused.is_err_and(|error| error.is_not_acquired() || error.is_temporary()));
                return;
            }
            let guard = acquired(lock).await;
            served.send(number).ok();
            released(guard).await;
        }));
        soon("the waiter is queued", recording.queued(&lock_name("n"), number + 1)).await;
    }
    pass(Duration::from_millis(250)).await;
    let began = SystemClock.now();
    released(holder).await;
    for wait in waits {
        join(wait).await;
    }
    let took = SystemClock.now().since(began);
    assert!(took < SOON, "twelve waiters were served only after {took:?}");
    let order: Vec<_> = std::iter::from_fn(|| order.try_recv().ok()).collect();
    assert_eq!(order, (1..24).step_by(2).collect::<Vec<_>>());
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}

pub(super) async fn other_readers_do_not_extend_the_lease_of_a_dead_reader(trial: Trial) -> Outcome {
    let (raw, locks) = (trial.raw().await, trial.locks().await);
    let dead = Request::new(lock_name("n"), Mode::Shared, trial.short());
    raw.hold(&dead).await;
    let until = SystemClock.now() + trial.short();
    while SystemClock.now() < until {
        released(acquired(locks.lock("n").shared()).await).await;
        pass(Duration::from_millis(10)).await;
    }
    let writer =
        within(SOON, "the grant to a writer after the lease of a dead reader", acquired(locks.lock("n")))
            .await;
    released(writer).await;
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}

/// The waiter's process was stopped: its queue entry has expired, and the next waiter was served.
pub(super) async fn a_stopped_waiter_is_served_after_it_resumes(trial: Trial) -> Outcome {
    let here = trial.locks().await;
    let (store, gate) = watched(trial.store().await, Gate::new);
    let (store, recording) = watched(store, Recording::new);
    let there = trial.open(store);
    let holder = acquired(here.lock("n")).await;
    // The gate is shut before it waits: a notification that reached it would make it a holder with hanging renewals.
    gate.shut(Operation::Wait, Side::Request);
    let stopped = tokio::spawn(acquired(there.lock("n").ttl(trial.renewable())));
    soon("the waiter is queued", recording.queued(&lock_name("n"), 1)).await;
    gate.freeze();
    released(holder).await;
    let limit = trial.short().min(Request::MAX_QUEUE_LEASE) + SOON;
    let next = within(limit, "the grant to the waiter behind a stopped one", acquired(here.lock("n"))).await;
    gate.thaw();
    released(next).await;
    let guard = within(limit, "the grant to the stopped waiter", join(stopped)).await;
    assert!(guard.is_held());
    released(guard).await;
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}

/// The queue entry of the first waiter of a process expires, and the waiter joins the queue again behind the second one. Then the lease of
/// the holder expires, which notifies nobody.
pub(super) async fn an_expired_queue_entry_does_not_block_the_next_waiter(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    let (store, withheld) = watched(trial.store().await, Withheld::new);
    let (store, recording) = watched(store, Recording::new);
    let locks = trial.open(store);
    let holder = Request::new(lock_name("n"), Mode::Exclusive, trial.renewable());
    raw.hold(&holder).await;
    let renew = async || assert!(matches!(raw.renew(&holder).await, KeepAlive::Held { .. }));
    let mut waiters = Vec::new();
    for number in 1..=2 {
        let lock = locks.lock("n").ttl(trial.short());
        waiters.push(tokio::spawn(async move { released_or_lost(acquired(lock).await).await }));
        soon("a waiter joins the queue", recording.queued(&lock_name("n"), number)).await;
        renew().await;
    }
    let first = recording.of(Operation::Claim).remove(0).request;
    withheld.withhold(first.id);
    let expired = SystemClock.now() + first.queue_lease() + Duration::from_millis(100);
    while SystemClock.now() < expired {
        pass(holder.ttl / 8).await;
        renew().await;
    }
    let delivered = SystemClock.now();
    withheld.deliver();
    let joins_again = |call: &Call| {
        call.request.id == first.id && call.queued && call.answered.is_some_and(|(at, _)| at > delivered)
    };
    let limit = delivered + timeout();
    while !recording.of(Operation::Claim).iter().any(joins_again) {
        assert!(SystemClock.now() < limit, "the first waiter does not claim again");
        pass(holder.ttl / 8).await;
        renew().await;
    }
    let limit = holder.ttl + SOON;
    for waiter in waiters {
        within(limit, "the grant to both waiters, in any order", waiter).await.expect("no panic");
    }
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}
