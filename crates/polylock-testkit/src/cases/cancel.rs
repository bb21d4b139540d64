//! A future that is dropped at any point leaves nothing behind.

use std::{future::Future, time::Duration};

use polylock_core::{Error, Guard, Locks, Operation};

use crate::{
    faults::{Gate, Recording, Side, Slow},
    trial::{
        CancelAt, Outcome, Trial, acquired, cancel_at, join, lock_name, pass, released, soon, until, watched,
    },
};

/// More polls than any operation takes.
const MAX_POLLS: usize = 1_000;

/// Cancels an operation at every point until it completes. It does so twice, because a store that is used often may give the caller's
/// runtime a connection of its own, and then takes another code path.
pub(super) async fn at_every_poll<F: Future<Output = bool>>(round: impl Fn(CancelAt) -> F) {
    for _ in 0..2 {
        let mut ended = false;
        for polls in 0..MAX_POLLS {
            round(CancelAt::AfterPoll(polls)).await;
            ended = round(CancelAt::AfterWake(polls)).await;
            if ended {
                break;
            }
        }
        assert!(ended, "expected the operation to end, still pending after {MAX_POLLS} polls");
    }
}

pub(super) fn no_fault<T>(outcome: Option<Result<T, Error>>) -> Option<T> {
    outcome.map(|outcome| outcome.unwrap_or_else(|error| panic!("{}", error.chain())))
}

pub(super) async fn at_every_poll_of_a_free_acquire(trial: Trial) -> Outcome {
    free_acquire(&trial).await;
    Ok(())
}

pub(super) async fn free_acquire(trial: &Trial) {
    let locks = &trial.locks().await;
    at_every_poll(|at| async move {
        let guard = no_fault(soon("a cancelled acquire", cancel_at(locks.lock("n").acquire(), at)).await);
        let ended = guard.is_some();
        drop(guard);
        assert_free(trial, locks, at).await;
        ended
    })
    .await;
}

/// Checks that nothing is left, and that the next request gets the lock.
async fn assert_free(trial: &Trial, locks: &Locks, at: CancelAt) {
    trial.assert_empty(&["n"], &format!("after the cancellation at {at:?}")).await;
    released(acquired(locks.lock("n")).await).await;
}

pub(super) async fn at_every_poll_of_a_waiting_acquire(trial: Trial) -> Outcome {
    waiting_acquire(&trial).await;
    Ok(())
}

pub(super) async fn waiting_acquire(trial: &Trial) {
    let here = &trial.locks().await;
    at_every_poll(|at| async move {
        let (there, recording) = trial.recorded().await;
        let holder = acquired(here.lock("n")).await;
        let waiting = tokio::spawn(cancel_at(there.lock("n").acquire(), at));
        let name = lock_name("n");
        // At the first poll the cancellation is certain, and must come before the lock is free, or the lock may be granted.
        let is_first_poll = matches!(at, CancelAt::AfterPoll(0 | 1));
        tokio::select! {
            () = recording.queued(&name, 1), if !is_first_poll => {}
            () = until("the cancellation or the queue entry", || waiting.is_finished()) => {}
        }
        assert!(holder.is_held());
        released(holder).await;
        let guard = no_fault(join(waiting).await);
        let ended = guard.is_some();
        drop(guard);
        assert_free(trial, &there, at).await;
        ended
    })
    .await;
}

pub(super) async fn at_every_poll_of_a_timed_acquire(trial: Trial) -> Outcome {
    let (here, there) = (&trial.locks().await, &trial.locks().await);
    let holder = &acquired(here.lock("n")).await;
    let trial = &trial;
    at_every_poll(|at| async move {
        let wait = Duration::from_millis(30);
        let outcome = soon("a cancelled wait", cancel_at(there.lock("n").wait(wait).acquire(), at)).await;
        if let Some(outcome) = &outcome {
            // On a busy machine, the first reply may come after the timeout.
            let is_timeout = |error: &Error| error.is_not_acquired() || error.is_temporary();
            assert!(outcome.as_ref().is_err_and(is_timeout), "{outcome:?}");
        }
        trial.assert_entries(1, &format!("only the holder remains after the cancellation at {at:?}")).await;
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
    at_every_poll(|at| async move {
        let outcome = no_fault(soon("a cancelled try", cancel_at(there.lock("n").try_acquire(), at)).await);
        assert!(outcome.as_ref().is_none_or(Option::is_none), "a try was granted a held lock");
        trial.assert_entries(1, &format!("only the holder remains after the cancellation at {at:?}")).await;
        assert!(holder.is_held());
        outcome.is_some()
    })
    .await;
    Ok(())
}

pub(super) async fn tries(trial: &Trial) {
    let locks = &trial.locks().await;
    at_every_poll(|at| async move {
        let outcome = no_fault(soon("a cancelled try", cancel_at(locks.lock("n").try_acquire(), at)).await);
        let ended = outcome.is_some();
        assert!(outcome.as_ref().is_none_or(Option::is_some), "the lock is free");
        drop(outcome);
        assert_free(trial, locks, at).await;
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
    at_every_poll(|at| async move {
        let guard = acquired(locks.lock("n")).await;
        let ended = no_fault(soon("a cancelled release", cancel_at(guard.release(), at)).await).is_some();
        assert_free(trial, locks, at).await;
        ended
    })
    .await;
}

pub(super) async fn at_every_poll_of_a_run(trial: Trial) -> Outcome {
    let (locks, trial) = (&trial.locks().await, &trial);
    at_every_poll(|at| async move {
        let guard = acquired(locks.lock("n")).await;
        let work = async {
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        };
        let ended = no_fault(soon("a cancelled run", cancel_at(guard.run(work), at)).await).is_some();
        assert_free(trial, locks, at).await;
        ended
    })
    .await;
    Ok(())
}

/// The claim has been sent, and may or may not have taken effect: it must be answered before it is released.
pub(super) async fn with_a_claim_in_flight(trial: Trial) -> Outcome {
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
            soon("the claim", gate.blocked(Operation::Claim)).await;
            attempt.abort();
            assert!(soon("the abort", attempt).await.is_err_and(|error| error.is_cancelled()));
            gate.open(Operation::Claim);
            trial.assert_empty(&["n"], &format!("cancelled with the claim's {side:?} in flight")).await;
            soon(
                "the reply to the release",
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
                assert!(release.sent >= latest, "a release was sent before the reply to its claim");
            }
            released(acquired(locks.lock("n")).await).await;
        }
    }
    Ok(())
}

pub(super) async fn with_a_wait_in_flight(trial: Trial) -> Outcome {
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
            // The next claim has refreshed the queue entry, and its reply is lost.
            gate.shut(Operation::Claim, side);
            soon("the next claim", gate.blocked(Operation::Claim)).await;
        }
        waiting.abort();
        assert!(soon("the abort", waiting).await.is_err_and(|error| error.is_cancelled()));
        gate.thaw();
        trial.assert_entries(1, "only the holder remains").await;
        assert!(holder.is_held());
        released(holder).await;
        trial.assert_empty(&["n"], "after a dropped wait").await;
        released(acquired(there.lock("n")).await).await;
    }
    Ok(())
}

pub(super) async fn with_a_release_in_flight(trial: Trial) -> Outcome {
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
            soon("the release", gate.blocked(Operation::Release)).await;
            releasing.abort();
            drop(soon("the abort", releasing).await);
            gate.open(Operation::Release);
            trial.assert_empty(&["n"], &format!("cancelled with the release's {side:?} in flight")).await;
            released(acquired(locks.lock("n")).await).await;
        }
    }
    Ok(())
}

/// Cancels by time instead of polls, so that a cancellation falls inside every operation of a slow store.
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
        // Other requests do not wait for a dropped one.
        released(acquired(here.lock("n")).await).await;
    }
    trial.assert_empty(&["n"], "after forty cancellations").await;
    Ok(())
}
