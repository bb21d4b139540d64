//! Tries, waits, timeouts, and their effect on the waiters behind.

use std::{future::Future, pin::Pin, task::Poll, time::Duration};

use polylock_core::{
    Clock, Error, Lock, LockStatus, NotAcquired, Operation, OwnerId, Progress, QueuePosition, Request,
    SystemClock,
};

use crate::{
    faults::{Call, Flaky, InjectedFault, Recording},
    trial::{Outcome, SOON, Trial, acquired, join, lock_name, pass, released, soon, tried, watched, within},
};

pub(super) async fn a_wait_of_zero_tries_once(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let guard = acquired(here.lock("n").wait(Duration::ZERO)).await;
    let outcome = soon("a try", there.lock("n").wait(Duration::ZERO).acquire()).await;
    match outcome {
        Err(Error::NotAcquired { name, reason: NotAcquired::Busy }) => assert_eq!(name, lock_name("n")),
        other => panic!("expected Busy from a try of a held lock, got {other:?}"),
    }
    assert!(tried(there.lock("n")).await.is_none());
    trial.assert_entries(1, "a failed try must leave no entry").await;
    released(guard).await;
    trial.assert_empty(&["n"], "after the release").await;
    Ok(())
}

pub(super) async fn a_timeout_is_precise(trial: Trial) -> Outcome {
    let (here, there) = (trial.locks().await, trial.locks().await);
    let guard = acquired(here.lock("n")).await;
    let sent = SystemClock.now();
    assert!(tried(there.lock("n")).await.is_none());
    let round_trip = SystemClock.now().since(sent);
    let mut unanswered = 0;
    for millis in [40, 300, 2000] {
        // This is enough time for the store to answer that the lock is held.
        let wait = Duration::from_millis(millis) + 4 * round_trip;
        let (error, took) = time_to_error(there.lock("n").wait(wait)).await;
        match error {
            Error::NotAcquired { reason: NotAcquired::TimedOut { waited }, .. } => {
                assert!(
                    waited >= wait && waited <= took,
                    "reported a wait of {waited:?}, but the timeout is {wait:?} and the call took {took:?}"
                );
            }
            // On a busy machine, one answer may take longer.
            other => {
                unanswered += 1;
                assert!(
                    other.is_temporary() && unanswered == 1,
                    "expected a timeout, got: {}",
                    other.chain()
                );
            }
        }
        assert!(took >= wait, "timed out after {took:?}, before the timeout of {wait:?}");
        assert!(took < wait + SOON, "timed out after {took:?}, long after the timeout of {wait:?}");
    }
    // The store may have no time to answer at all. Then the state of the lock is unknown, and the wait ends all the same.
    let (error, took) = time_to_error(there.lock("n").wait(Duration::from_millis(1))).await;
    assert!(error.is_not_acquired() || error.is_temporary(), "{}", error.chain());
    assert!(took < SOON, "timed out after {took:?}, long after the timeout of a millisecond");
    released(guard).await;
    trial.assert_empty(&["n"], "after the timeouts").await;
    Ok(())
}

async fn time_to_error(lock: Lock) -> (Error, Duration) {
    let began = SystemClock.now();
    match soon("a wait that times out", lock.acquire()).await {
        Ok(guard) => panic!("a held lock was granted: {guard:?}"),
        Err(error) => (error, SystemClock.now().since(began)),
    }
}

/// The time after a timeout for which the caller waits until the store has answered that the request has left the queue. It is that of
/// the first answer to a claim, too.
const WITHDRAWAL: Duration = Duration::from_millis(500);

/// The instant after a writer's timeout, the writer does not block a reader, if the store answers in time.
pub(super) async fn a_timed_out_request_has_left_the_queue(trial: Trial) -> Outcome {
    let (here, (there, recording)) = (trial.locks().await, trial.recorded().await);
    let reader = acquired(here.lock("n").shared()).await;
    for round in 0..5 {
        let began = SystemClock.now();
        let writer = there.lock("n").wait(Duration::from_millis(20)).acquire();
        let refused = soon("a wait that times out", writer).await;
        let is_slow = SystemClock.now().since(began) >= WITHDRAWAL;
        assert!(refused.is_err_and(|error| error.is_not_acquired() || is_slow && error.is_temporary()));
        let withdrawals = recording.of(Operation::Release);
        let is_out = withdrawals.iter().all(|call| call.answered.is_some_and(|(_, is_ok)| is_ok));
        match tried(here.lock("n").shared()).await {
            Some(other) => released(other).await,
            None => {
                assert!(
                    is_slow && !is_out,
                    "round {round}: a request that has timed out blocks the next one"
                );
            }
        }
    }
    released(reader).await;
    trial.assert_empty(&["n"], "after the timeouts").await;
    Ok(())
}

/// A caller that has polled once and does not poll any more, like an unused arm of a `select!`.
pub(super) async fn an_acquire_that_is_not_polled_does_not_keep_the_lock(trial: Trial) -> Outcome {
    let (here, (there, recording)) = (trial.locks().await, trial.recorded().await);
    let holder = acquired(here.lock("n")).await;
    let mut unpolled = Box::pin(there.lock("n").ttl(trial.renewable()).acquire());
    assert!(poll_once(&mut unpolled).await.is_none());
    soon("the waiter is queued", recording.queued(&lock_name("n"), 1)).await;
    released(holder).await;
    // The lock was granted to it, and is renewed while nothing receives the guard: for the time of a waiter's lease, no longer.
    let limit = Request::MAX_QUEUE_LEASE + SOON;
    released(within(limit, "the next waiter", acquired(here.lock("n"))).await).await;
    // When it is polled again, it queues like a new request.
    let guard = soon("the acquire that was not polled", unpolled).await.expect("it is free");
    assert!(guard.is_held());
    released(guard).await;
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}

async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|context| match Pin::new(&mut *future).poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

pub(super) async fn a_timed_out_waiter_leaves_no_entry(trial: Trial) -> Outcome {
    let locks = trial.locks().await;
    let guard = acquired(locks.lock("n")).await;
    for _ in 0..5 {
        let refused =
            soon("a wait that times out", locks.lock("n").wait(Duration::from_millis(10)).acquire()).await;
        // On a busy machine, the first reply may come after the timeout.
        assert!(refused.is_err_and(|error| error.is_not_acquired() || error.is_temporary()));
    }
    trial.assert_entries(1, "only the holder remains").await;
    released(guard).await;
    trial.assert_empty(&["n"], "after the release").await;
    Ok(())
}

/// A reader holds, a writer waits, a reader waits for the writer. When the writer gives up, the second reader is granted the lock.
pub(super) async fn a_timed_out_waiter_wakes_the_waiters_behind_it(trial: Trial) -> Outcome {
    let (locks, recording) = trial.recorded().await;
    let first = acquired(locks.lock("n").shared()).await;
    // Long enough for the second reader to join the queue before.
    let writer = tokio::spawn(locks.lock("n").wait(Duration::from_secs(3)).acquire());
    soon("the writer joins the queue", recording.queued(&lock_name("n"), 1)).await;
    let reader = tokio::spawn(acquired(locks.lock("n").shared()));
    soon("the reader joins the queue", recording.queued(&lock_name("n"), 2)).await;
    assert!(join(writer).await.is_err_and(|error| error.is_not_acquired()), "the writer times out");
    let second = within(SOON, "the grant to the reader after the timeout of the writer", reader)
        .await
        .expect("no panic");
    assert!(first.is_held() && second.is_held());
    released(first).await;
    released(second).await;
    trial.assert_empty(&["n"], "after the readers").await;
    Ok(())
}

pub(super) async fn a_release_wakes_the_next_waiter(trial: Trial) -> Outcome {
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
        // A store without a queue also answers that the request is queued.
        soon("the waiter is queued", waits.1.queued(&lock_name(&name), 1)).await;
        released(guard).await;
        let next =
            within(SOON, "the grant to the next waiter after a release", waiter).await.expect("no panic");
        released(next).await;
        trial.assert_empty(&[&name], "after the hand-over").await;
    }
}

/// A missed wake-up costs a second at most. If the store pushes, most wake-ups are not missed.
pub(super) async fn a_push_is_faster_than_the_recheck(trial: Trial) -> Outcome {
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
        waits_for_notification(&waits.1, &name).await;
        let freed = SystemClock.now();
        released(guard).await;
        let (served, next) = join(waiter).await;
        took.push(served.since(freed));
        released(next).await;
    }
    assert_pushed(took);
    Ok(())
}

/// Waits until a request for `name` waits for a notification.
pub(super) async fn waits_for_notification(recording: &Recording, name: &str) {
    let waits = |calls: &[Call]| {
        calls.iter().any(|call| call.operation == Operation::Wait && call.request.name.as_str() == name)
    };
    soon("the waiter waits for a notification", recording.until(waits)).await;
}

/// Asserts that most hand-overs, which took these times, did not wait for the next claim of the waiter.
pub(super) fn assert_pushed(mut took: Vec<Duration>) {
    took.sort_unstable();
    assert!(
        took[took.len() / 2] < QueuePosition::MAX_RECHECK / 3,
        "expected a median hand-over well below the recheck interval of {:?}, took {took:?}",
        QueuePosition::MAX_RECHECK
    );
}

pub(super) async fn a_short_outage_is_retried(trial: Trial) -> Outcome {
    let (store, flaky) = watched(trial.store().await, Flaky::new);
    let locks = trial.open(store);
    flaky.fail_next(Operation::Claim, InjectedFault::RequestLost, 2);
    flaky.fail_next(Operation::Claim, InjectedFault::ReplyLost, 2);
    let guard = acquired(locks.lock("n")).await;
    assert_eq!(flaky.failed(), 4);
    assert!(guard.is_held());
    flaky.fail_next(Operation::Release, InjectedFault::ReplyLost, 2);
    released(guard).await;
    trial.assert_empty(&["n"], "after an outage").await;
    Ok(())
}

pub(super) async fn a_long_outage_ends_the_wait(trial: Trial) -> Outcome {
    let (store, flaky) = watched(trial.store().await, Flaky::new);
    let locks = trial.open(store);
    flaky.fail_next(Operation::Claim, InjectedFault::ReplyLost, 100_000);
    // A busy machine may need a longer outage for a second attempt.
    for outage in [200, 1_000, 5_000].map(Duration::from_millis) {
        let failed = flaky.failed();
        let began = SystemClock.now();
        let refused = soon("an outage", locks.lock("n").outage(outage).acquire()).await;
        let took = SystemClock.now().since(began);
        match refused {
            Err(error @ Error::Unavailable(_)) => assert!(error.is_temporary(), "{}", error.chain()),
            other => panic!("expected Unavailable after an outage, got {other:?}"),
        }
        assert!(
            took >= outage && took < Duration::from_secs(15),
            "expected an error after the outage limit of {outage:?}, got it after {took:?}"
        );
        if flaky.failed() > failed + 1 {
            break;
        }
    }
    flaky.recover();
    // The replies were lost, the claims were not.
    trial.assert_empty(&["n"], "after an outage").await;
    released(acquired(locks.lock("n")).await).await;
    Ok(())
}

pub(super) async fn a_permanent_fault_ends_the_wait(trial: Trial) -> Outcome {
    for fault in [InjectedFault::Permanent, InjectedFault::Panic] {
        let (store, flaky) = watched(trial.store().await, Flaky::new);
        let locks = trial.open(store);
        flaky.fail_next(Operation::Claim, fault, 1);
        let refused = soon("a permanent fault", locks.lock("n").acquire()).await;
        match refused {
            Err(error @ Error::Unavailable(_)) => assert!(!error.is_temporary(), "{}", error.chain()),
            other => panic!("expected Unavailable after {fault:?}, got {other:?}"),
        }
        assert_eq!(flaky.failed(), 1, "a permanent fault was retried");
        released(acquired(locks.lock("n")).await).await;
        trial.assert_empty(&["n"], "after a permanent fault").await;
    }
    Ok(())
}

/// The holder releases at about the instant at which the waiter gives up: either the grant or the timeout happens, never half of both.
pub(super) async fn a_grant_at_the_instant_of_the_timeout_is_not_lost(trial: Trial) -> Outcome {
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
                assert!(error.is_not_acquired() || error.is_temporary(), "{}", error.chain());
            }
        }
        trial.assert_empty(&["n"], "at the end").await;
    }
    Ok(())
}

/// Waits that are given up while the holder stays, at times before, during and after a claim.
pub(super) async fn time_out(trial: &Trial, rounds: u64) {
    let store = trial.store().await;
    let (store, recording) = watched(store, Recording::new);
    let locks = trial.open(store);
    let guard = acquired(locks.lock("n")).await;
    for round in 0..rounds {
        let wait = Duration::from_millis(1 + 3 * round);
        let refused = soon("a wait that times out", locks.lock("n").wait(wait).acquire()).await;
        match refused {
            // A claim without a reply is an outage, not a busy lock.
            Err(error) => assert!(error.is_not_acquired() || error.is_temporary(), "{}", error.chain()),
            Ok(guard) => panic!("a held lock was granted: {guard:?}"),
        }
    }
    trial.assert_entries(1, "only the holder remains").await;
    assert!(guard.is_held());
    released(guard).await;
    trial.assert_empty(&["n"], "after waits that timed out").await;
    assert!(recording.ids().len() as u64 > rounds / 2, "the waits sent too few claims");
}

pub(super) async fn the_queue_is_read_for_a_display(trial: Trial) -> Outcome {
    let (holder, other) = (trial.locks().await, trial.locks().await);
    let (locks, recording) = trial.recorded().await;
    let guard = acquired(holder.lock("n").label("the holder")).await;
    let owners = [OwnerId::unique(), OwnerId::unique()];
    let first = tokio::spawn(other.lock("n").owner(&owners[0]).acquire());
    soon("the first waiter", async {
        while trial.status("n").await.waiters.is_empty() {
            pass(Duration::from_millis(2)).await;
        }
    })
    .await;
    let progress = Progress::default();
    let second = tokio::spawn(locks.lock("n").owner(&owners[1]).progress(&progress).acquire());
    soon("the second waiter", recording.queued(&lock_name("n"), 1)).await;
    pass(Duration::from_millis(50)).await;
    assert!(progress.queue().is_none(), "the queue was read without a display");
    progress.read_queue(Some(Duration::from_millis(20)));
    let queue = shown(&progress, |queue| queue.queue_position(&owners[1]).is_some()).await;
    let holders: Vec<&str> = queue.holders.iter().map(|holder| holder.label.as_str()).collect();
    assert_eq!(holders, ["the holder"]);
    let positions = owners.each_ref().map(|owner| queue.queue_position(owner));
    assert_eq!(positions, [Some(1), Some(2)], "the positions of the waiters in {queue:?}");
    released(guard).await;
    let queue = shown(&progress, |queue| queue.queue_position(&owners[1]) == Some(1)).await;
    assert_eq!(queue.holders.first().map(|holder| &holder.owner), Some(&owners[0]));
    for waiter in [first, second] {
        let guard = join(waiter).await.unwrap_or_else(|error| panic!("acquire: {}", error.chain()));
        released(guard).await;
    }
    trial.assert_empty(&["n"], "after the waiters").await;
    Ok(())
}

/// Waits until the progress shows a queue with this property.
async fn shown(progress: &Progress, has: impl Fn(&LockStatus) -> bool + Send + Sync) -> LockStatus {
    soon("the queue in the progress", async {
        loop {
            match progress.queue().filter(&has) {
                Some(queue) => return queue,
                None => pass(Duration::from_millis(2)).await,
            }
        }
    })
    .await
}
