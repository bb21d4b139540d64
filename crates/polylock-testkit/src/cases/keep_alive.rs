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

/// A waiter keeps its place for many times its lease, though it does not claim: one that comes later is served later.
pub(super) async fn keeps_a_waiter_in_its_place(trial: Trial) -> Outcome {
    let (here, (there, recording)) = (trial.locks().await, trial.recorded().await);
    let holder = acquired(here.lock("n")).await;
    let ttl = trial.renewable();
    let first = tokio::spawn(acquired(there.lock("n").ttl(ttl)));
    soon("it waits", recording.queued(&lock_name("n"), 1)).await;
    let second = tokio::spawn(acquired(there.lock("n").ttl(ttl)));
    soon("the second waits", recording.queued(&lock_name("n"), 2)).await;
    pass(3 * ttl.min(Request::MAX_PLACE_TTL)).await;
    let late = tokio::spawn(acquired(here.lock("n")));
    released(holder).await;
    for (waiter, which) in [(first, "the first"), (second, "the second"), (late, "the last")] {
        released(within(SOON, which, join(waiter)).await).await;
    }
    trial.nothing_left(&["n"], "after all").await;
    Ok(())
}
