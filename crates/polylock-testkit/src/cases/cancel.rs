//! A future that is dropped, at whatever point, leaves nothing behind.

use std::{future::Future, time::Duration};

use polylock_core::{Error, Guard, Locks, Operation};

use crate::{
    faults::{Gate, Recording, Side, Slow},
    trial::{
        Cut, Outcome, Trial, acquired, chain, cut, join, lock_name, pass, released, soon, until, watched,
    },
};

/// More polls than any operation takes.
const MANY: usize = 1_000;

/// Every cut of an operation, until it comes to its end uncut; twice, because a store that is used often may give the caller's runtime a
/// connection of its own, and then another path is taken.
async fn every_cut<F: Future<Output = bool>>(round: impl Fn(Cut) -> F) {
    for _ in 0..2 {
        let mut ended = false;
        for polls in 0..MANY {
            round(Cut::After(polls)).await;
            ended = round(Cut::Woken(polls)).await;
            if ended {
                break;
            }
        }
        assert!(ended, "it does not end within {MANY} polls");
    }
}

fn no_fault<T>(outcome: Option<Result<T, Error>>) -> Option<T> {
    outcome.map(|outcome| outcome.unwrap_or_else(|error| panic!("{}", chain(&error))))
}

pub(super) async fn at_every_poll_of_a_free_acquire(trial: Trial) -> Outcome {
    free_acquire(&trial).await;
    Ok(())
}

pub(super) async fn free_acquire(trial: &Trial) {
    let locks = &trial.locks().await;
    every_cut(|at| async move {
        let guard = no_fault(soon("a cut acquire", cut(locks.lock("n").acquire(), at)).await);
        let ended = guard.is_some();
        drop(guard);
        nothing_left(trial, locks, at).await;
        ended
    })
    .await;
}

/// Nothing is left, and the next one gets the lock.
async fn nothing_left(trial: &Trial, locks: &Locks, at: Cut) {
    trial.nothing_left(&["n"], &format!("cut {at:?}")).await;
    released(acquired(locks.lock("n")).await).await;
}

pub(super) async fn at_every_poll_of_a_waiting_acquire(trial: Trial) -> Outcome {
    waiting_acquire(&trial).await;
    Ok(())
}

pub(super) async fn waiting_acquire(trial: &Trial) {
    let here = &trial.locks().await;
    every_cut(|at| async move {
        let (there, recording) = trial.recorded().await;
        let holder = acquired(here.lock("n")).await;
        let waiting = tokio::spawn(cut(there.lock("n").acquire(), at));
        let name = lock_name("n");
        // At the first poll it is cut for certain, and must be before the lock is free, or it may be granted.
        let at_once = matches!(at, Cut::After(0 | 1));
        tokio::select! {
            () = recording.queued(&name, 1), if !at_once => {}
            () = until("cut or queued", || waiting.is_finished()) => {}
        }
        assert!(holder.is_held());
        released(holder).await;
        let guard = no_fault(join(waiting).await);
        let ended = guard.is_some();
        drop(guard);
        nothing_left(trial, &there, at).await;
        ended
    })
    .await;
}

pub(super) async fn at_every_poll_of_a_timed_acquire(trial: Trial) -> Outcome {
    let (here, there) = (&trial.locks().await, &trial.locks().await);
    let holder = &acquired(here.lock("n")).await;
    let trial = &trial;
    every_cut(|at| async move {
        let wait = Duration::from_millis(30);
        let outcome = soon("a cut wait", cut(there.lock("n").wait(wait).acquire(), at)).await;
        if let Some(outcome) = &outcome {
            assert!(outcome.as_ref().is_err_and(Error::is_not_acquired), "{outcome:?}");
        }
        trial.keeps(1, &format!("the holder alone, cut {at:?}")).await;
        assert!(holder.is_held());
        outcome.is_some()
    })
    .await;
    Ok(())
}

pub(super) async fn at_every_poll_of_a_try(trial: Trial) -> Outcome {
    tries(&trial).await;
    let (here, there) = (&trial.locks().await, &trial.locks().await);
    let holder = &acquired(here.lock("n")).await;
    let trial = &trial;
    every_cut(|at| async move {
        let outcome = no_fault(soon("a cut try", cut(there.lock("n").try_acquire(), at)).await);
        assert!(outcome.as_ref().is_none_or(Option::is_none), "granted what is held");
        trial.keeps(1, &format!("the holder alone, cut {at:?}")).await;
        assert!(holder.is_held());
        outcome.is_some()
    })
    .await;
    Ok(())
}

pub(super) async fn tries(trial: &Trial) {
    let locks = &trial.locks().await;
    every_cut(|at| async move {
        let outcome = no_fault(soon("a cut try", cut(locks.lock("n").try_acquire(), at)).await);
        let ended = outcome.is_some();
        assert!(outcome.as_ref().is_none_or(Option::is_some), "the lock is free");
        drop(outcome);
        nothing_left(trial, locks, at).await;
        ended
    })
    .await;
}

pub(super) async fn at_every_poll_of_a_release(trial: Trial) -> Outcome {
    releases(&trial).await;
    Ok(())
}

pub(super) async fn releases(trial: &Trial) {
    let locks = &trial.locks().await;
    every_cut(|at| async move {
        let guard = acquired(locks.lock("n")).await;
        let ended = no_fault(soon("a cut release", cut(guard.release(), at)).await).is_some();
        nothing_left(trial, locks, at).await;
        ended
    })
    .await;
}

pub(super) async fn at_every_poll_of_a_run(trial: Trial) -> Outcome {
    let (locks, trial) = (&trial.locks().await, &trial);
    every_cut(|at| async move {
        let guard = acquired(locks.lock("n")).await;
        let work = async {
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        };
        let ended = no_fault(soon("a cut run", cut(guard.run(work), at)).await).is_some();
        nothing_left(trial, locks, at).await;
        ended
    })
    .await;
    Ok(())
}

/// The claim has been sent, and has taken effect or not: it must have answered before it is undone.
pub(super) async fn with_the_claim_on_its_way(trial: Trial) -> Outcome {
    for side in [Side::Request, Side::Reply] {
        for queues in [true, false] {
            let (store, gate) = watched(trial.store().await, Gate::new);
            let (store, recording) = watched(store, Recording::new);
            let locks = trial.open(store);
            gate.shut(Operation::Claim, side);
            let lock = locks.lock("n");
            let attempt: tokio::task::JoinHandle<Option<Guard>> = tokio::spawn(async move {
                if queues { lock.acquire().await.ok() } else { lock.try_acquire().await.ok().flatten() }
            });
            soon("the claim", gate.arrived(Operation::Claim)).await;
            attempt.abort();
            assert!(soon("the abort", attempt).await.is_err_and(|cut| cut.is_cancelled()));
            gate.open(Operation::Claim);
            trial.nothing_left(&["n"], &format!("with the claim's {side:?} on its way")).await;
            soon(
                "the claim is undone",
                recording.until(|calls| calls.last().is_some_and(|c| c.answered.is_some())),
            )
            .await;
            let calls = recording.calls();
            let claimed = calls
                .iter()
                .filter(|call| call.operation == Operation::Claim)
                .filter_map(|call| call.answered);
            let latest = claimed.map(|(at, _)| at).max().expect("the claim was answered");
            for release in calls.iter().filter(|call| call.operation == Operation::Release) {
                assert!(release.sent >= latest, "a release was sent before its claim had answered");
            }
            released(acquired(locks.lock("n")).await).await;
        }
    }
    Ok(())
}

pub(super) async fn with_the_wait_under_way(trial: Trial) -> Outcome {
    let here = trial.locks().await;
    for side in [None, Some(Side::Reply)] {
        let (store, gate) = watched(trial.store().await, Gate::new);
        let (store, recording) = watched(store, Recording::new);
        let there = trial.open(store);
        let holder = acquired(here.lock("n")).await;
        let waiting = tokio::spawn(there.lock("n").acquire());
        let waits =
            |calls: &[crate::faults::Call]| calls.iter().any(|call| call.operation == Operation::Wait);
        soon("a wait", recording.until(waits)).await;
        if let Some(side) = side {
            // The next claim has refreshed the place, and nobody hears of it.
            gate.shut(Operation::Claim, side);
            soon("the next claim", gate.arrived(Operation::Claim)).await;
        }
        waiting.abort();
        assert!(soon("the abort", waiting).await.is_err_and(|cut| cut.is_cancelled()));
        gate.thaw();
        trial.keeps(1, "the holder alone").await;
        assert!(holder.is_held());
        released(holder).await;
        trial.nothing_left(&["n"], "after a wait was dropped").await;
        released(acquired(there.lock("n")).await).await;
    }
    Ok(())
}

pub(super) async fn with_the_release_on_its_way(trial: Trial) -> Outcome {
    for side in [Side::Request, Side::Reply] {
        for explicit in [true, false] {
            let (store, gate) = watched(trial.store().await, Gate::new);
            let locks = trial.open(store);
            let guard = acquired(locks.lock("n")).await;
            gate.shut(Operation::Release, side);
            let releasing = tokio::spawn(async move {
                if explicit {
                    return guard.release().await;
                }
                drop(guard);
                Ok(())
            });
            soon("the release", gate.arrived(Operation::Release)).await;
            releasing.abort();
            drop(soon("the abort", releasing).await);
            gate.open(Operation::Release);
            trial.nothing_left(&["n"], &format!("with the release's {side:?} on its way")).await;
            released(acquired(locks.lock("n")).await).await;
        }
    }
    Ok(())
}

/// Not by polls but by time, so that the cut falls inside every operation of a slow store.
pub(super) async fn at_many_instants(trial: Trial) -> Outcome {
    let each = Duration::from_millis(3);
    let slow = trial.behind(move |inner| Slow::new(inner, each, each));
    let (here, there) = (slow.locks().await, slow.locks().await);
    for instant in 0..40 {
        let holder = if instant % 2 == 0 { Some(acquired(here.lock("n")).await) } else { None };
        let attempt = tokio::spawn(there.lock("n").acquire());
        pass(Duration::from_micros(500) * instant).await;
        attempt.abort();
        drop(soon("the abort", attempt).await);
        if let Some(holder) = holder {
            assert!(holder.is_held());
            released(holder).await;
        }
        // Others do not wait for what was cut off.
        released(acquired(here.lock("n")).await).await;
    }
    trial.nothing_left(&["n"], "after forty cuts").await;
    Ok(())
}
