//! One operation keeps all requests of a process alive: each request of a batch gets an outcome of its own.

use polylock_core::{KeepAlive, LostReason, Mode, Operation, Request};

use crate::trial::{Outcome, SOON, Trial, acquired, join, lock_name, pass, released, soon, within};

pub(super) async fn returns_an_outcome_for_each_request_of_a_batch(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    let request = |name| Request::new(lock_name(name), Mode::Exclusive, trial.long());
    let (held, other, released, unclaimed) = (request("a"), request("b"), request("c"), request("a"));
    for request in [&held, &other, &released] {
        raw.hold(request).await;
    }
    raw.release(&released).await;
    let outcomes = raw.keep_alive(&[&released, &held, &unclaimed, &other]).await;
    let [
        KeepAlive::Lost(LostReason::Gone),
        KeepAlive::Held { .. },
        KeepAlive::Lost(_),
        KeepAlive::Held { .. },
    ] = &outcomes[..]
    else {
        panic!("expected the outcomes in the order of the batch, got {outcomes:?}")
    };
    raw.release(&held).await;
    raw.release(&other).await;
    trial.assert_empty(&["a", "b", "c"], "at the end").await;
    Ok(())
}

/// A batch of the store's maximum size, 300 at most.
pub(super) async fn extends_a_full_batch(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    let count = trial.capabilities().keep_alive_batch.min(300);
    let requests: Vec<Request> = (0..count)
        .map(|number| Request::new(lock_name(&format!("lock {number}")), Mode::Exclusive, trial.long()))
        .collect();
    for request in &requests {
        raw.hold(request).await;
    }
    let batch: Vec<&Request> = requests.iter().collect();
    let outcomes = raw.keep_alive(&batch).await;
    assert_eq!(outcomes.len(), count);
    let other = outcomes.iter().find(|outcome| !matches!(outcome, KeepAlive::Held { .. }));
    assert_eq!(other, None, "expected every request of the batch to be held");
    for request in &requests {
        raw.release(request).await;
    }
    trial.assert_entries(0, "at the end").await;
    Ok(())
}

/// A waiter keeps its queue position for longer than its lease without claiming: a later waiter is served later.
pub(super) async fn keeps_the_queue_position_of_a_waiter(trial: Trial) -> Outcome {
    let ((here, late), (there, early)) = (trial.recorded().await, trial.recorded().await);
    let holder = acquired(here.lock("n")).await;
    let ttl = trial.renewable();
    let mut waiters = Vec::new();
    for (locks, recording, number) in [(&there, &early, 1), (&there, &early, 2), (&here, &late, 1)] {
        waiters.push(tokio::spawn(acquired(locks.lock("n").ttl(ttl))));
        soon("the waiter is queued", recording.queued(&lock_name("n"), number)).await;
    }
    pass(2 * ttl.min(Request::MAX_QUEUE_LEASE)).await;
    // Only the first waiter of a process claims again from time to time. The second one does if its entry has expired.
    let second = early.ids()[1];
    let of_second = early.of(Operation::Claim).iter().filter(|call| call.request.id == second).count();
    assert!(of_second <= 2, "the entry of a waiter was not kept alive: {of_second} claims in two leases");
    released(holder).await;
    let mut tokens = Vec::new();
    for waiter in waiters {
        let guard = within(SOON, "the grant to a waiter", join(waiter)).await;
        tokens.push(guard.fencing_token());
        released(guard).await;
    }
    assert!(tokens.is_sorted(), "the waiters were not served in order of arrival: {tokens:?}");
    trial.assert_empty(&["n"], "at the end").await;
    Ok(())
}
