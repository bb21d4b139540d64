//! One operation keeps everything of a process alive: each request of a batch gets an outcome of its own.

use polylock_core::{KeepAlive, LostReason, Mode, Request};

use crate::trial::{Outcome, SOON, Trial, acquired, join, lock_name, pass, released, soon, within};

pub(super) async fn answers_for_each_request_of_a_batch(trial: Trial) -> Outcome {
    let raw = trial.raw().await;
    let request = |name| Request::new(lock_name(name), Mode::Exclusive, trial.long());
    let (held, other, released, never) = (request("a"), request("b"), request("c"), request("a"));
    for request in [&held, &other, &released] {
        raw.hold(request).await;
    }
    raw.release(&released).await;
    let outcomes = raw.keep_alive(&[&released, &held, &never, &other]).await;
    let [
        KeepAlive::Lost(LostReason::Gone),
        KeepAlive::Held { .. },
        KeepAlive::Lost(_),
        KeepAlive::Held { .. },
    ] = &outcomes[..]
    else {
        panic!("each in its place: {outcomes:?}")
    };
    raw.release(&held).await;
    raw.release(&other).await;
    trial.nothing_left(&["a", "b", "c"], "after all").await;
    Ok(())
}

/// As many as the store takes in one batch, and more.
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
    assert_eq!(other, None, "each is held");
    for request in &requests {
        raw.release(request).await;
    }
    trial.keeps(0, "after all").await;
    Ok(())
}

/// A waiter keeps its place for many times its lease, though it does not claim: one that has come later is served later.
pub(super) async fn keeps_a_waiter_in_its_place(trial: Trial) -> Outcome {
    let ((here, late), (there, early)) = (trial.recorded().await, trial.recorded().await);
    let holder = acquired(here.lock("n")).await;
    let ttl = trial.renewable();
    let mut waiters = Vec::new();
    for (locks, recording, number) in [(&there, &early, 1), (&there, &early, 2), (&here, &late, 1)] {
        waiters.push(tokio::spawn(acquired(locks.lock("n").ttl(ttl))));
        soon("it waits", recording.queued(&lock_name("n"), number)).await;
    }
    pass(3 * ttl.min(Request::MAX_PLACE_TTL)).await;
    released(holder).await;
    let mut tokens = Vec::new();
    for waiter in waiters {
        let guard = within(SOON, "a waiter", join(waiter)).await;
        tokens.push(guard.fencing_token());
        released(guard).await;
    }
    assert!(tokens.is_sorted(), "in order of arrival: {tokens:?}");
    trial.nothing_left(&["n"], "after all").await;
    Ok(())
}
