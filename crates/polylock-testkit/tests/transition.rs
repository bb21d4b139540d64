//! Processes that name the two stores of a transition in the opposite order.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{sync::Arc, time::Duration};

use polylock_core::{Clock, Locks, Operation, SystemClock, memory, transition::both};
use polylock_testkit::faults::{Gate, Side, wrap};

async fn soon<T>(future: impl Future<Output = T>) -> T {
    let limit = SystemClock.now() + Duration::from_secs(30);
    SystemClock.before(limit, future).await.expect("not within 30 seconds")
}

/// Each has the lock in its old store before the other one claims it there.
#[tokio::test]
async fn of_two_that_wait_for_each_other_one_fails_with_the_cause_and_the_other_goes_on() {
    let (a, b) = (memory::connect(), memory::connect());
    let mut gate = None;
    let gated = wrap(b.clone(), |inner| gate.insert(Arc::new(Gate::new(inner))).clone());
    let (gate, inspect) = (gate.unwrap(), a.inspect.clone().unwrap());
    let locks = [both(a.clone(), gated).unwrap(), both(b, a).unwrap()].map(Locks::new);

    gate.shut(Operation::Claim, Side::Request);
    let first = tokio::spawn(locks[0].lock("n").label("first").outage(Duration::from_millis(500)).acquire());
    soon(gate.blocked(Operation::Claim)).await;
    let second = tokio::spawn(locks[1].lock("n").label("second").acquire());
    soon(async {
        while inspect.inspect(&"n".parse().unwrap()).await.unwrap().waiters.is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    gate.thaw();

    let error = soon(first).await.unwrap().expect_err("the other one has the lock in its new store");
    assert!(error.is_temporary(), "{error}");
    assert!(error.chain().contains("name the stores in the same order everywhere"), "{}", error.chain());
    soon(second).await.unwrap().unwrap().release().await.unwrap();
}
