//! Tests the effect of every fault on a store, without core, and with a careless client.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{sync::Arc, time::Duration};

use polylock_core::{
    Backend, ClaimOutcome, Clock, KeepAlive, LockName, Mode, Operation, Request, Result, Store, SystemClock,
    memory,
};
use polylock_testkit::faults::{Flaky, Gate, InjectedFault, Overtaking, Recording, Side, Slow, wrap};

fn new_request() -> Request {
    Request::new(LockName::new("n").unwrap(), Mode::Exclusive, Duration::from_secs(60))
}

fn behind<B: Backend>(fault: impl FnOnce(Arc<dyn Backend>) -> B) -> (Store, Arc<B>) {
    let mut handle = None;
    let store = wrap(memory::connect(), |inner| handle.insert(Arc::new(fault(inner))).clone());
    (store, handle.unwrap())
}

async fn entries(store: &Store) -> usize {
    let locks = store.inspect.as_ref().unwrap().list("").await.unwrap();
    locks.iter().map(|lock| lock.holders.len() + lock.waiters.len()).sum()
}

async fn until(condition: impl AsyncFn() -> bool) {
    let limit = SystemClock.now() + Duration::from_secs(20);
    while !condition().await {
        assert!(SystemClock.now() < limit, "not within 20 seconds");
        tokio::task::yield_now().await;
    }
}

/// The careless client drops its claim halfway, and sends its release at once.
#[tokio::test]
async fn overtaking_leaves_an_orphan_if_the_release_does_not_wait_for_the_claim() {
    let (store, backend) = behind(|inner| Overtaking::new(inner, Duration::from_secs(2)));
    let request = new_request();
    let claim = tokio::spawn({
        let (backend, request) = (backend.clone(), request.clone());
        async move { backend.claim(&request).await }
    });
    tokio::task::yield_now().await;
    claim.abort();
    assert!(claim.await.is_err_and(|error| error.is_cancelled()));
    backend.release(&request).await.unwrap();
    assert_eq!(entries(&store).await, 0, "the release found an entry");
    until(async || entries(&store).await == 1).await;
    backend.release(&request).await.unwrap();
}

#[tokio::test]
async fn a_lost_reply_has_taken_effect_and_a_lost_request_has_not() {
    let (store, flaky) = behind(Flaky::new);
    let request = new_request();
    flaky.fail_next(Operation::Claim, InjectedFault::RequestLost, 1);
    flaky.fail_next(Operation::Claim, InjectedFault::ReplyLost, 1);
    assert!(flaky.claim(&request).await.unwrap_err().is_temporary());
    assert_eq!(entries(&store).await, 0);
    assert!(flaky.claim(&request).await.unwrap_err().is_temporary());
    assert_eq!(entries(&store).await, 1);
    assert!(matches!(flaky.claim(&request).await, Ok(ClaimOutcome::Granted(_))));
    flaky.fail_next(Operation::Release, InjectedFault::ReplyLost, 1);
    assert!(flaky.release(&request).await.is_err());
    assert_eq!((entries(&store).await, flaky.failed()), (0, 3));
    flaky.fail_next(Operation::Renew, InjectedFault::Permanent, 5);
    assert!(flaky.keep_alive(&[request.clone().into()]).await.is_err_and(|error| !error.is_temporary()));
    flaky.recover();
    assert!(matches!(flaky.keep_alive(&[request.clone().into()]).await.unwrap()[..], [KeepAlive::Lost(_)]));
}

#[tokio::test]
async fn a_seed_reproduces_the_faults_in_about_the_wanted_number() {
    let run = async |seed| {
        let (_, flaky) = behind(|inner| Flaky::seeded(inner, seed, 20));
        let request = new_request();
        let mut failed = Vec::new();
        for _ in 0..500 {
            failed.push(flaky.claim(&request).await.is_err());
        }
        failed
    };
    let (first, again, other) = (run(1).await, run(1).await, run(2).await);
    assert_eq!(first, again);
    assert_ne!(first, other);
    let failures = first.iter().filter(|failed| **failed).count();
    assert!((60..140).contains(&failures), "{failures} of 500");
}

#[tokio::test]
async fn a_gate_blocks_an_operation_before_or_after_its_effect_even_if_it_is_dropped() -> Result<()> {
    for (side, expected) in [(Side::Request, 0), (Side::Reply, 1)] {
        let (store, gate) = behind(Gate::new);
        let request = new_request();
        gate.shut(Operation::Claim, side);
        let claim = tokio::spawn({
            let (gate, request) = (gate.clone(), request.clone());
            async move { gate.claim(&request).await }
        });
        gate.blocked(Operation::Claim).await;
        assert_eq!(entries(&store).await, expected, "{side:?}");
        claim.abort();
        assert!(claim.await.is_err_and(|error| error.is_cancelled()));
        gate.open(Operation::Claim);
        until(async || entries(&store).await == 1).await;
        gate.release(&request).await?;
        assert_eq!((entries(&store).await, gate.blocked_count(Operation::Claim)), (0, 1));
    }
    Ok(())
}

#[tokio::test]
async fn a_frozen_store_answers_nothing_until_it_thaws() {
    let (_, gate) = behind(Gate::new);
    gate.freeze();
    let request = new_request();
    let operations = {
        let (gate, request) = (gate.clone(), request.clone());
        let batch = [request.clone().into()];
        tokio::spawn(async move {
            tokio::join!(gate.claim(&request), gate.keep_alive(&batch), gate.release(&request))
        })
    };
    for operation in [Operation::Claim, Operation::Renew, Operation::Release] {
        gate.blocked(operation).await;
    }
    assert!(!operations.is_finished());
    gate.thaw();
    assert!(operations.await.is_ok());
}

#[tokio::test]
async fn slow_delays_requests_and_replies_and_recording_measures_it() {
    let each = Duration::from_millis(15);
    let (store, slow) = behind(|inner| Slow::new(inner, each, each));
    let recording = Recording::new(slow.clone());
    let request = new_request();
    assert!(matches!(recording.claim(&request).await, Ok(ClaimOutcome::Granted(_))));
    let other = new_request();
    assert!(matches!(recording.claim(&other).await, Ok(ClaimOutcome::Queued(_))));
    let calls = recording.calls();
    for call in &calls {
        let (answered, ok) = call.answered.unwrap();
        assert!(ok && answered.since(call.sent) >= 2 * each, "{:?}", answered.since(call.sent));
    }
    assert_eq!(calls.iter().map(|call| call.queued).collect::<Vec<_>>(), [false, true]);
    assert_eq!(recording.ids(), [request.id, other.id]);
    recording.queued(&request.name, 1).await;
    assert_eq!(recording.of(Operation::Release).len(), 0);
    assert_eq!(entries(&store).await, 2);
}
