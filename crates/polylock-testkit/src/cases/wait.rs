//! Trying, waiting, giving up, and what happens to those behind.

use std::{future::Future, pin::Pin, task::Poll, time::Duration};

use polylock_core::{Clock, Error, Lock, NotAcquired, Operation, Place, Request, SystemClock};

use crate::{
    faults::{Call, Flaky, Recording, Trouble},
    trial::{
        Outcome, SOON, Trial, acquired, chain, join, lock_name, pass, released, soon, tried, watched, within,
    },
};

pub(super) async fn zero_tries_once(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let guard = acquired(here.lock("n").wait(Duration::ZERO)).await;
    let refused = soon("a try", there.lock("n").wait(Duration::ZERO).acquire()).await;
    match refused {
        Err(Error::NotAcquired { name, reason: NotAcquired::Busy }) => assert_eq!(name, lock_name("n")),
        other => panic!("a try of a held lock should be busy: {other:?}"),
    }
    assert!(tried(there.lock("n")).await.is_none());
    trial.keeps(1, "a try leaves nothing").await;
    released(guard).await;
    trial.nothing_left(&["n"], "after the release").await;
    Ok(())
}

pub(super) async fn a_time_out_is_precise(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let guard = acquired(here.lock("n")).await;
    let asked = SystemClock.now();
    assert!(tried(there.lock("n")).await.is_none());
    let trip = SystemClock.now().since(asked);
    for millis in [40, 300] {
        // Time enough for the store to say that it is held.
        let wait = Duration::from_millis(millis) + 4 * trip;
        let (refused, took) = refused_after(there.lock("n").wait(wait)).await;
        match refused {
            Error::NotAcquired { reason: NotAcquired::TimedOut { waited }, .. } => {
                assert!(waited >= wait && waited <= took, "told {waited:?} of {wait:?}, took {took:?}");
            }
            other => panic!("should have timed out: {}", chain(&other)),
        }
        assert!(took >= wait, "gave up after {took:?} of {wait:?}");
        assert!(took < wait + Duration::from_secs(2), "took {took:?} to wait {wait:?}");
    }
    // Perhaps the store has no time to answer at all. Then nobody knows whether it is held, and the wait ends all the
    // same.
    let (refused, took) = refused_after(there.lock("n").wait(Duration::from_millis(1))).await;
    assert!(refused.is_not_acquired() || refused.is_temporary(), "{}", chain(&refused));
    assert!(took < Duration::from_secs(2), "took {took:?} to wait a millisecond");
    released(guard).await;
    trial.nothing_left(&["n"], "after the time-outs").await;
    Ok(())
}

async fn refused_after(lock: Lock) -> (Error, Duration) {
    let began = SystemClock.now();
    match soon("a wait that times out", lock.acquire()).await {
        Ok(guard) => panic!("granted what is held: {guard:?}"),
        Err(error) => (error, SystemClock.now().since(began)),
    }
}

/// The instant after a writer's time-out, a reader is not held up by it.
pub(super) async fn a_timed_out_request_has_left_the_queue(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let reader = acquired(here.lock("n").shared()).await;
    for round in 0..5 {
        let writer = there.lock("n").wait(Duration::from_millis(20)).acquire();
        let refused = soon("a wait that times out", writer).await;
        assert!(refused.is_err_and(|error| error.is_not_acquired()));
        let other = tried(here.lock("n").shared()).await;
        released(
            other.unwrap_or_else(|| panic!("round {round}: a request that has timed out is in the way")),
        )
        .await;
    }
    released(reader).await;
    trial.nothing_left(&["n"], "after the time-outs").await;
    Ok(())
}

/// A caller that asked once and does not poll any more, as an arm of a `select!` that is kept aside.
pub(super) async fn an_acquire_that_is_not_polled_is_passed_on(trial: Trial) -> Outcome {
    let (here, (there, recording)) = (trial.locks().await, trial.recorded().await);
    let holder = acquired(here.lock("n")).await;
    let mut kept = Box::pin(there.lock("n").ttl(trial.renewable()).acquire());
    assert!(poll_once(&mut kept).await.is_none());
    soon("it waits", recording.queued(&lock_name("n"), 1)).await;
    released(holder).await;
    // Granted to it, and renewed while nothing receives the guard: for the time of a waiter's lease, no longer.
    let limit = Request::MAX_PLACE_TTL + SOON;
    released(within(limit, "the next in line", acquired(here.lock("n"))).await).await;
    // Polled again, it takes its turn as if it had just come.
    let guard = soon("the acquire that was kept aside", kept).await.expect("it is free");
    assert!(guard.is_held());
    released(guard).await;
    trial.nothing_left(&["n"], "after both").await;
    Ok(())
}

async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|context| match Pin::new(&mut *future).poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

pub(super) async fn who_timed_out_leaves_nothing(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let guard = acquired(locks.lock("n")).await;
    for _ in 0..5 {
        let refused = soon("a time-out", locks.lock("n").wait(Duration::from_millis(10)).acquire()).await;
        assert!(refused.is_err_and(|error| error.is_not_acquired()));
    }
    trial.keeps(1, "the holder alone").await;
    released(guard).await;
    trial.nothing_left(&["n"], "after the release").await;
    Ok(())
}

/// A reader holds, a writer waits, a reader waits for the writer. When the writer gives up, the second reader may in.
pub(super) async fn who_timed_out_wakes_those_behind(trial: Trial) -> Outcome {
    let (locks, recording) = trial.recorded().await;
    let first = acquired(locks.lock("n").shared()).await;
    // Long enough that the second reader is in the queue before.
    let writer = tokio::spawn(locks.lock("n").wait(Duration::from_millis(1500)).acquire());
    soon("the writer joins the queue", recording.queued(&lock_name("n"), 1)).await;
    let reader = tokio::spawn(acquired(locks.lock("n").shared()));
    soon("the reader joins the queue", recording.queued(&lock_name("n"), 2)).await;
    assert!(join(writer).await.is_err_and(|error| error.is_not_acquired()), "the writer times out");
    let second =
        within(SOON, "the reader is served when the writer has given up", reader).await.expect("no panic");
    assert!(first.is_held() && second.is_held());
    released(first).await;
    released(second).await;
    trial.nothing_left(&["n"], "after the readers").await;
    Ok(())
}

pub(super) async fn a_release_wakes_the_next(trial: Trial) -> Outcome {
    hand_over(&trial, 6).await;
    Ok(())
}

/// Hand-overs within and across connections, each within much less than a lease.
pub(super) async fn hand_over(trial: &Trial, rounds: usize) {
    let connections = [trial.recorded().await, trial.recorded().await];
    for round in 0..rounds {
        let (holds, waits) = (&connections[round % 2], &connections[(round / 2) % 2]);
        let name = format!("round-{round}");
        let guard = acquired(holds.0.lock(&name)).await;
        let waiter = tokio::spawn(acquired(waits.0.lock(&name)));
        // A store without a queue tells the same: not yours.
        soon("the waiter is told to wait", waits.1.queued(&lock_name(&name), 1)).await;
        released(guard).await;
        let next = within(SOON, "the next is served soon after a release", waiter).await.expect("no panic");
        released(next).await;
        trial.nothing_left(&[&name], "after the hand-over").await;
    }
}

/// A wake-up that is missed costs a second at most. Where the store pushes, most are not missed.
pub(super) async fn a_push_is_quicker_than_the_recheck(trial: Trial) -> Outcome {
    let connections = [trial.recorded().await, trial.recorded().await];
    let mut took = Vec::new();
    for round in 0..9 {
        let (holds, waits) = (&connections[round % 2], &connections[(round / 2) % 2]);
        let name = format!("round-{round}");
        let guard = acquired(holds.0.lock(&name)).await;
        let waiting = waits.0.lock(&name);
        let waiter = tokio::spawn(async move {
            let guard = acquired(waiting).await;
            (SystemClock.now(), guard)
        });
        let waits_for_news = |calls: &[Call]| {
            calls.iter().any(|call| call.operation == Operation::Wait && call.request.name.as_str() == name)
        };
        soon("the waiter waits for news", waits.1.until(waits_for_news)).await;
        let freed = SystemClock.now();
        released(guard).await;
        let (served, next) = join(waiter).await;
        took.push(served.since(freed));
        released(next).await;
    }
    took.sort_unstable();
    assert!(
        took[4] < Place::MAX_RECHECK / 3,
        "half of the hand-overs took longer than {:?}: {took:?}",
        took[4]
    );
    Ok(())
}

pub(super) async fn a_short_outage_is_borne(trial: Trial) -> Outcome {
    let (store, flaky) = watched(trial.store().await, Flaky::new);
    let locks = trial.open(store);
    flaky.next(Operation::Claim, Trouble::RequestLost, 2);
    flaky.next(Operation::Claim, Trouble::ReplyLost, 2);
    let guard = acquired(locks.lock("n")).await;
    assert_eq!(flaky.failed(), 4);
    assert!(guard.is_held());
    flaky.next(Operation::Release, Trouble::ReplyLost, 2);
    released(guard).await;
    trial.nothing_left(&["n"], "after an outage").await;
    Ok(())
}

pub(super) async fn a_long_outage_ends_the_wait(trial: Trial) -> Outcome {
    let (store, flaky) = watched(trial.store().await, Flaky::new);
    let locks = trial.open(store);
    flaky.next(Operation::Claim, Trouble::ReplyLost, 100_000);
    let outage = Duration::from_millis(200);
    let began = SystemClock.now();
    let refused = soon("an outage", locks.lock("n").outage(outage).acquire()).await;
    let took = SystemClock.now().since(began);
    match refused {
        Err(error @ Error::Unavailable(_)) => assert!(error.is_temporary(), "{}", chain(&error)),
        other => panic!("should be unavailable: {other:?}"),
    }
    assert!(
        took >= outage && took < Duration::from_secs(15),
        "an outage of {outage:?} is borne, not {took:?}"
    );
    flaky.recover();
    // The replies were lost, the claims were not.
    trial.nothing_left(&["n"], "after an outage").await;
    released(acquired(locks.lock("n")).await).await;
    Ok(())
}

pub(super) async fn a_fault_for_good_ends_the_wait(trial: Trial) -> Outcome {
    for trouble in [Trouble::Permanent, Trouble::Panic] {
        let (store, flaky) = watched(trial.store().await, Flaky::new);
        let locks = trial.open(store);
        flaky.next(Operation::Claim, trouble, 1);
        let refused = soon("a fault for good", locks.lock("n").acquire()).await;
        match refused {
            Err(error @ Error::Unavailable(_)) => assert!(!error.is_temporary(), "{}", chain(&error)),
            other => panic!("{trouble:?} should be unavailable: {other:?}"),
        }
        assert_eq!(flaky.failed(), 1, "it is not tried again");
        released(acquired(locks.lock("n")).await).await;
        trial.nothing_left(&["n"], "after a fault for good").await;
    }
    Ok(())
}

/// The holder leaves at about the instant at which the waiter gives up: one of the two happens, never half of both.
pub(super) async fn a_grant_at_the_instant_of_the_time_out_is_not_lost(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let wait = Duration::from_millis(30);
    for round in 0..15 {
        let holder = acquired(here.lock("n")).await;
        let waiting = tokio::spawn(there.lock("n").wait(wait).acquire());
        pass(wait + Duration::from_millis(round) - Duration::from_millis(10)).await;
        released(holder).await;
        match soon("the wait", join(waiting)).await {
            Ok(guard) => {
                assert!(guard.is_held());
                released(guard).await;
            }
            Err(error) => {
                assert!(error.is_not_acquired() || error.is_temporary(), "{}", chain(&error));
            }
        }
        trial.nothing_left(&["n"], "after both").await;
    }
    Ok(())
}

/// Waits that are given up while the holder stays, at moments that fall on all sides of a claim.
pub(super) async fn give_up(trial: &Trial, rounds: u64) {
    let store = trial.store().await;
    let (store, recording) = watched(store, Recording::new);
    let locks = trial.open(store);
    let guard = acquired(locks.lock("n")).await;
    for round in 0..rounds {
        let wait = Duration::from_millis(1 + 3 * round);
        let refused = soon("a wait that times out", locks.lock("n").wait(wait).acquire()).await;
        match refused {
            // A claim that was never answered is an outage, not a busy lock.
            Err(error) => assert!(error.is_not_acquired() || error.is_temporary(), "{}", chain(&error)),
            Ok(guard) => panic!("granted what is held: {guard:?}"),
        }
    }
    trial.keeps(1, "the holder alone").await;
    assert!(guard.is_held());
    released(guard).await;
    trial.nothing_left(&["n"], "after waits that were given up").await;
    assert!(recording.ids().len() as u64 > rounds / 2, "they asked the store");
}
