//! Several locks that are acquired and held together: all of them or none.

use std::{pin::pin, sync::Arc, time::Duration};

use polylock_core::{
    Clock, Error, Fencing, Guard, LockName, LostReason, Mode, MultiGuard, MultiLock, NotAcquired, Operation,
    Request, Store,
};

use super::{
    cancel::{at_every_poll, no_fault},
    exclusion::{Contention, NAMES, increment},
};
use crate::{
    ManualClock,
    faults::{Flaky, Gate, InjectedFault, Recording, Side},
    trial::{
        CancelAt, Outcome, Raw, SOON, Trial, acquired, cancel_at, join, lock_name, pass, released, scale,
        soon, tried, until, watched, while_running, within,
    },
};

const INSTANT: Duration = Duration::from_nanos(1);

pub(super) async fn all(locks: MultiLock) -> MultiGuard {
    soon("acquire", locks.acquire()).await.unwrap_or_else(|error| panic!("acquire: {}", error.chain()))
}

pub(super) async fn try_all(locks: MultiLock) -> Option<MultiGuard> {
    let outcome = soon("try_acquire", locks.try_acquire()).await;
    outcome.unwrap_or_else(|error| panic!("try_acquire: {}", error.chain()))
}

pub(super) async fn released_all(guard: MultiGuard) {
    soon("release", guard.release()).await.unwrap_or_else(|error| panic!("release: {}", error.chain()));
}

pub(super) async fn tasks_lose_no_update(trial: Trial) -> Outcome {
    const TASKS: usize = 12;
    let rounds = 3 * scale();
    let connections = [trial.locks().await, trial.locks().await];
    let contention = Arc::new(Contention::default());
    let workers: Vec<_> = (0..TASKS)
        .map(|task| {
            let (locks, contention) = (connections[task % 2].clone(), contention.clone());
            tokio::spawn(async move {
                // One to three of the locks, in an order of the names that depends on the task.
                for count in (0..rounds).flat_map(|_| 1..=NAMES.len()) {
                    let numbers: Vec<_> = (0..count).map(|step| contention.number(task + step)).collect();
                    let invoke = |name| contention.recorder.invoke(name, task.to_string(), Mode::Exclusive);
                    let attempts: Vec<_> = numbers.iter().map(|number| invoke(number.name)).collect();
                    let guard = all(locks.lock_many(numbers.iter().map(|number| number.name))).await;
                    assert_eq!(guard.guards().len(), count);
                    let of = |name: &str| guard.guard(name).expect("one of the locks");
                    let attempts = numbers.iter().zip(attempts);
                    let holds: Vec<_> = attempts
                        .map(|(number, attempt)| (number, attempt.acquired(of(number.name))))
                        .collect();
                    for number in &numbers {
                        increment(number).await;
                    }
                    guard.ensure_held().expect("holds with a lease of a minute were lost at once");
                    for (number, hold) in holds {
                        hold.releasing(of(number.name));
                    }
                    released_all(guard).await;
                }
            })
        })
        .collect();
    for worker in workers {
        join(worker).await;
    }
    contention.check(&trial, TASKS * rounds * (1 + 2 + 3)).await;
    Ok(())
}

pub(super) async fn overlapping_sets_exclude_each_other(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let guard = all(here.lock_many(["b", "a", "b"])).await;
    assert!(guard.names().map(LockName::as_str).eq(["a", "b"]), "{guard:?}");
    assert!(guard.is_held());
    for locks in [&here, &there] {
        for names in [["b", "c"], ["c", "a"]] {
            assert!(try_all(locks.lock_many(names)).await.is_none(), "{names:?} were granted: {guard:?}");
        }
        assert!(tried(locks.lock("b")).await.is_none(), "a lock of the set was granted");
        let others = try_all(locks.lock_many(["d", "c"])).await.expect("free: only other names are held");
        released_all(others).await;
    }
    trial.assert_entries(2, "only the two locks are held").await;
    let (a, b) = (guard.fencing_token("a"), guard.fencing_token("b"));
    released_all(guard).await;
    let next = try_all(there.lock_many(["b", "c"])).await.expect("free again");
    if trial.capabilities().fencing != Fencing::Absent {
        assert!(a.is_some() && next.fencing_token("b") > b, "{next:?}");
    }
    drop(next);
    trial.assert_empty(&["a", "b", "c", "d"], "at the end").await;
    Ok(())
}

pub(super) async fn a_busy_lock_leaves_no_entry(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let holder = acquired(here.lock("b")).await;
    assert!(try_all(there.lock_many(["a", "b"])).await.is_none(), "a held lock was granted");
    trial.assert_entries(1, "only the holder remains after a try").await;
    for wait in [Duration::ZERO, Duration::from_millis(300)] {
        let refused = soon("a wait", there.lock_many(["c", "b", "a"]).wait(wait).acquire()).await;
        match refused {
            Err(Error::NotAcquired { name, reason }) => {
                assert_eq!(name, lock_name("b"), "another lock is the busy one");
                assert_eq!(reason == NotAcquired::Busy, wait.is_zero(), "{reason} after a wait of {wait:?}");
            }
            // On a busy machine, the first reply may come after the timeout.
            Err(error) => assert!(error.is_temporary() && !wait.is_zero(), "{}", error.chain()),
            Ok(guard) => panic!("a held lock was granted: {guard:?}"),
        }
        trial.assert_entries(1, "only the holder remains after a wait").await;
    }
    released(holder).await;
    trial.assert_empty(&["a", "b", "c"], "after the release").await;
    Ok(())
}

/// A store of which the claims can be made to fail, with a recording of its requests.
async fn flaky(trial: &Trial) -> (Store, Arc<Recording>, Arc<Flaky>) {
    let (store, recording) = watched(trial.store().await, Recording::new);
    let (store, flaky) = watched(store, Flaky::new);
    (store, recording, flaky)
}

pub(super) async fn a_fault_leaves_no_entry(trial: Trial) -> Outcome {
    let here = trial.locks().await;
    let (store, recording, flaky) = flaky(&trial).await;
    let holder = acquired(here.lock("b")).await;
    let waiting = tokio::spawn(trial.open(store).lock_many(["a", "b"]).acquire());
    soon("the waiter is queued", recording.queued(&lock_name("b"), 1)).await;
    // The waiter claims again about once a second.
    flaky.fail_next(Operation::Claim, InjectedFault::Permanent, 1);
    match join(waiting).await {
        Err(error @ Error::Unavailable(_)) => assert!(!error.is_temporary(), "{}", error.chain()),
        other => panic!("expected Unavailable after a permanent fault, got {other:?}"),
    }
    trial.assert_entries(1, "only the holder remains").await;
    released(holder).await;
    trial.assert_empty(&["a", "b"], "after the release").await;
    Ok(())
}

/// The limit for the releases is measured by a clock that stands still, so the error has to wait for them.
pub(super) async fn a_failure_is_returned_after_the_releases(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let here = trial.locks().await;
    let (store, gate) = watched(trial.store().await, Gate::new);
    let there = trial.open_by(store, &clock);
    let holder = acquired(here.lock("b")).await;
    gate.shut(Operation::Release, Side::Request);
    let trying = tokio::spawn(there.lock_many(["a", "b"]).try_acquire());
    soon("the release of the first lock", gate.blocked(Operation::Release)).await;
    pass(Duration::from_millis(50)).await;
    assert!(!trying.is_finished(), "the error came before the release");
    gate.thaw();
    assert!(matches!(join(trying).await, Ok(None)), "a held lock was granted");
    assert!(trial.bare().try_once("a", Mode::Exclusive).await, "not released");
    released(holder).await;
    trial.assert_empty(&["a", "b"], "at the end").await;
    Ok(())
}

pub(super) async fn a_wait_is_for_all_locks_together(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let here = trial.locks().await;
    let (store, recording) = watched(trial.store().await, Recording::new);
    let there = trial.open_by(store, &clock);
    let (a, b) = (acquired(here.lock("a")).await, acquired(here.lock("b")).await);
    // The lease of the first lock may count from the begin of the wait, and must last longer.
    let wait = trial.long() / 2;
    // A caller that is not polled for a whole queue lease begins again with the first lock.
    let rest = Request::MAX_QUEUE_LEASE * 4 / 5;
    let waiting = tokio::spawn(there.lock_many(["a", "b"]).wait(wait).acquire());
    soon("the wait for the first lock", recording.queued(&lock_name("a"), 1)).await;
    clock.advance(wait - rest);
    released(a).await;
    let second = lock_name("b");
    let queued = recording.queued(&second, 1);
    soon("the wait for the second lock", while_running(&clock, queued)).await;
    assert!(!waiting.is_finished());
    clock.advance(rest / 3);
    match while_running(&clock, join(waiting)).await {
        Err(Error::NotAcquired { name, reason: NotAcquired::TimedOut { waited } }) => {
            assert_eq!(name, lock_name("b"));
            // A limit for each lock would be almost twice as long.
            let expected = wait..wait * 3 / 2;
            assert!(expected.contains(&waited), "reported a wait of {waited:?}, but the timeout is {wait:?}");
        }
        other => panic!("expected a timeout after {wait:?} for both locks, got {other:?}"),
    }
    trial.assert_entries(1, "only the holder of the second lock remains").await;
    released(b).await;
    trial.assert_empty(&["a", "b"], "at the end").await;
    Ok(())
}

/// Three locks by `clock`, with the store and the recording of their requests.
async fn three(trial: &Trial, clock: &ManualClock) -> (MultiGuard, Store, Arc<Recording>) {
    let (store, recording) = watched(trial.store().await, Recording::new);
    let locks = trial.open_by(store.clone(), clock);
    (while_running(clock, all(locks.lock_many(["a", "b", "c"]))).await, store, recording)
}

/// Removes the entry of the last claim of `name` from the store, as its expiry or a manual deletion does.
async fn remove_entry(store: &Store, recording: &Recording, name: &str) {
    let mut claims = recording.of(Operation::Claim).into_iter();
    let claim = claims.rfind(|claim| claim.request.name == lock_name(name)).expect("it was claimed");
    Raw(store.backend.clone()).release(&claim.request).await;
}

pub(super) async fn losing_one_is_losing_all(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let (guard, store, recording) = three(&trial, &clock).await;
    let lost = tokio::spawn(guard.lost());
    remove_entry(&store, &recording, "b").await;
    clock.advance(trial.long() / 3 + INSTANT);
    let (name, reason) = while_running(&clock, join(lost)).await;
    assert_eq!(name, lock_name("b"));
    assert_ne!(reason, LostReason::DeadlineReached);
    assert!(!guard.is_held() && guard.remaining().is_zero(), "held without one of the locks: {guard:?}");
    assert_lost(guard.ensure_held(), "b");
    // The work may not have stopped yet.
    assert!(guard.guard("a").is_some_and(Guard::is_held), "{guard:?}");
    assert!(tried(trial.locks().await.lock("c")).await.is_none(), "another lock was released");
    assert_lost(while_running(&clock, soon("the release", guard.release())).await, "b");
    trial.assert_empty(&["a", "b", "c"], "after the release").await;
    Ok(())
}

fn assert_lost<T: std::fmt::Debug>(outcome: Result<T, Error>, expected: &str) {
    match outcome {
        Err(Error::Lost { name, .. }) => {
            assert_eq!(name, lock_name(expected), "another lock is reported as lost");
        }
        other => panic!("expected the loss of {expected}, got {other:?}"),
    }
}

pub(super) async fn the_earliest_deadline_is_that_of_all(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let here = trial.locks().await;
    let (store, gate) = watched(trial.store().await, Gate::new);
    let (store, recording) = watched(store, Recording::new);
    let there = trial.open_by(store, &clock);
    let holder = acquired(here.lock("b")).await;
    let waiting = tokio::spawn(there.lock_many(["a", "b"]).acquire());
    soon("the wait for the second lock", recording.queued(&lock_name("b"), 1)).await;
    gate.shut(Operation::Renew, Side::Request);
    // The holds of the two locks begin at different times, unless a claim of the second one was on its way.
    clock.advance(trial.long() / 10);
    released(holder).await;
    let guard = while_running(&clock, join(waiting)).await.expect("both are free");
    gate.freeze();
    let deadline = guard.deadline();
    let earliest = guard.guards().iter().map(Guard::deadline).min();
    assert_eq!(earliest, Some(deadline));
    let (lost, renewed) = (tokio::spawn(guard.lost()), tokio::spawn(guard.renewed()));
    clock.advance(deadline.since(clock.now()) - INSTANT);
    assert!(guard.is_held() && guard.remaining() == INSTANT, "lost before the deadline");
    assert!(!lost.is_finished());
    clock.advance(INSTANT);
    assert!(!guard.is_held() && guard.remaining().is_zero(), "held after the deadline");
    let (name, reason) = join(lost).await;
    assert_eq!(reason, LostReason::DeadlineReached);
    let ends_first = guard.guard(name.as_str()).is_some_and(|lost| lost.deadline() == deadline);
    assert!(ends_first, "{name} is lost, and another lock ends before: {guard:?}");
    assert_eq!(join(renewed).await, None, "a lock that was lost was renewed");
    gate.thaw();
    drop(guard);
    trial.assert_empty(&["a", "b"], "after a loss").await;
    Ok(())
}

pub(super) async fn run_stops_at_the_loss_of_one(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let (guard, store, recording) = three(&trial, &clock).await;
    let work = Arc::new(());
    let held = work.clone();
    let running = tokio::spawn(guard.run(async move {
        let _held = held;
        std::future::pending::<()>().await;
    }));
    remove_entry(&store, &recording, "c").await;
    clock.advance(trial.long() / 3 + INSTANT);
    assert_lost(while_running(&clock, join(running)).await, "c");
    assert_eq!(Arc::strong_count(&work), 1, "the work was not dropped");
    trial.assert_empty(&["a", "b", "c"], "after the loss").await;

    // The output of work that ends in time is returned, and the locks are released.
    let output = soon("run", all(trial.locks().await.lock_many(["a", "b"])).await.run(async { 7 })).await;
    assert_eq!(output.ok(), Some(7));
    trial.assert_empty(&["a", "b"], "after the work").await;
    Ok(())
}

pub(super) async fn a_lock_that_is_lost_while_waiting_is_acquired_again(trial: Trial) -> Outcome {
    let clock = ManualClock::new();
    let here = trial.locks().await;
    let (store, recording) = watched(trial.store().await, Recording::new);
    let there = trial.open_by(store.clone(), &clock);
    let holder = acquired(here.lock("b")).await;
    let waiting = tokio::spawn(there.lock_many(["a", "b"]).acquire());
    soon("the wait for the second lock", recording.queued(&lock_name("b"), 1)).await;
    remove_entry(&store, &recording, "a").await;
    clock.advance(trial.long() / 3 + INSTANT);
    let second = lock_name("b");
    let again = recording.queued(&second, 2);
    soon("the loss of the first lock", while_running(&clock, again)).await;
    released(holder).await;
    let guard = while_running(&clock, join(waiting)).await.expect("both are free");
    assert!(guard.is_held(), "returned a lock that was lost before: {guard:?}");
    assert!(tried(trial.locks().await.lock("a")).await.is_none(), "the store does not have the hold");
    while_running(&clock, released_all(guard)).await;
    trial.assert_empty(&["a", "b"], "at the end").await;
    Ok(())
}

pub(super) async fn an_acquire_that_is_not_polled_keeps_no_lock(trial: Trial) -> Outcome {
    let (here, (there, recording)) = (trial.locks().await, trial.recorded().await);
    let holder = acquired(here.lock("b")).await;
    let mut unpolled = Box::pin(there.lock_many(["a", "b"]).ttl(trial.renewable()).acquire());
    {
        let name = lock_name("b");
        let mut queued = pin!(soon("the waiter is queued", recording.queued(&name, 1)));
        tokio::select! {
            outcome = &mut unpolled => panic!("a held lock was granted: {outcome:?}"),
            () = &mut queued => {}
        }
    }
    // From here on it is not polled. It gives up the first lock although the second one is not granted to it.
    let limit = Request::MAX_QUEUE_LEASE + SOON;
    released(within(limit, "the first lock", acquired(here.lock("a"))).await).await;
    released(holder).await;
    released(within(limit, "the second lock", acquired(here.lock("b"))).await).await;
    // When it is polled again, it begins again.
    let guard = soon("the acquire that was not polled", unpolled).await.expect("both are free");
    assert!(guard.is_held());
    released_all(guard).await;
    trial.assert_empty(&["a", "b"], "at the end").await;
    Ok(())
}

pub(super) async fn at_every_poll_of_a_free_acquire(trial: Trial) -> Outcome {
    let (trial, locks) = (&trial, &trial.locks().await);
    at_every_poll(|at| async move {
        let acquiring = cancel_at(locks.lock_many(["a", "b"]).acquire(), at);
        let guard = no_fault(soon("a cancelled acquire", acquiring).await);
        let ended = guard.is_some();
        drop(guard);
        trial.assert_empty(&["a", "b"], &format!("after the cancellation at {at:?}")).await;
        ended
    })
    .await;
    Ok(())
}

/// The first lock is free, and the second one is held until the acquisition waits for it or was cancelled.
pub(super) async fn at_every_poll_of_a_waiting_acquire(trial: Trial) -> Outcome {
    let (trial, here) = (&trial, &trial.locks().await);
    at_every_poll(|at| async move {
        let (there, recording) = trial.recorded().await;
        let holder = acquired(here.lock("b")).await;
        let waiting = tokio::spawn(cancel_at(there.lock_many(["a", "b"]).acquire(), at));
        let name = lock_name("b");
        // At the first poll the cancellation is certain, and must come before the lock is free.
        let is_first_poll = matches!(at, CancelAt::AfterPoll(0 | 1));
        tokio::select! {
            () = recording.queued(&name, 1), if !is_first_poll => {}
            () = until("the cancellation or the queue entry", || waiting.is_finished()) => {}
        }
        released(holder).await;
        let guard = no_fault(join(waiting).await);
        let ended = guard.is_some();
        drop(guard);
        trial.assert_empty(&["a", "b"], &format!("after the cancellation at {at:?}")).await;
        released_all(all(there.lock_many(["b", "a"])).await).await;
        ended
    })
    .await;
    Ok(())
}
