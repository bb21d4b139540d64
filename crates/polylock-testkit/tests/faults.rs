//! Every fault bites: what it does to a store is seen here without core, and with a careless client.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{sync::Arc, time::Duration};

use polylock_core::{
    Backend, Clock, KeepAlive, LockName, Mode, Operation, Request, Result, Standing, Store, SystemClock,
    memory,
};
use polylock_testkit::faults::{Flaky, Gate, Overtaking, Recording, Side, Slow, Trouble, wrap};

fn request() -> Request {
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
    let by = SystemClock.now() + Duration::from_secs(20);
    while !condition().await {
        assert!(SystemClock.now() < by, "in vain");
        tokio::task::yield_now().await;
    }
}

/// The careless client: the claim is dropped half-way, and its release sent at once.
#[tokio::test]
async fn overtaking_leaves_the_orphan_that_a_careless_client_makes() {
    let (store, backend) = behind(|inner| Overtaking::new(inner, Duration::from_millis(20)));
    let me = request();
    let claim = tokio::spawn({
        let (backend, me) = (backend.clone(), me.clone());
        async move { backend.claim(&me).await }
    });
    tokio::task::yield_now().await;
    claim.abort();
    assert!(claim.await.is_err_and(|cut| cut.is_cancelled()));
    backend.release(&me).await.unwrap();
    assert_eq!(entries(&store).await, 0, "the release finds nothing");
    until(async || entries(&store).await == 1).await;
    backend.release(&me).await.unwrap();
}

#[tokio::test]
async fn a_lost_reply_has_taken_effect_and_a_lost_request_has_not() {
    let (store, flaky) = behind(Flaky::new);
    let me = request();
    flaky.next(Operation::Claim, Trouble::RequestLost, 1);
    flaky.next(Operation::Claim, Trouble::ReplyLost, 1);
    assert!(flaky.claim(&me).await.unwrap_err().is_temporary());
    assert_eq!(entries(&store).await, 0);
    assert!(flaky.claim(&me).await.unwrap_err().is_temporary());
    assert_eq!(entries(&store).await, 1);
    assert!(matches!(flaky.claim(&me).await, Ok(Standing::Held(_))));
    flaky.next(Operation::Release, Trouble::ReplyLost, 1);
    assert!(flaky.release(&me).await.is_err());
    assert_eq!((entries(&store).await, flaky.failed()), (0, 3));
    flaky.next(Operation::Renew, Trouble::Permanent, 5);
    assert!(flaky.keep_alive(&[me.clone().into()]).await.is_err_and(|error| !error.is_temporary()));
    flaky.recover();
    assert!(matches!(flaky.keep_alive(&[me.clone().into()]).await.unwrap()[..], [KeepAlive::Lost(_)]));
}

#[tokio::test]
async fn a_seed_gives_the_same_faults_again_and_about_as_many_as_asked() {
    let run = async |seed| {
        let (_, flaky) = behind(|inner| Flaky::seeded(inner, seed, 20));
        let me = request();
        let mut failed = Vec::new();
        for _ in 0..500 {
            failed.push(flaky.claim(&me).await.is_err());
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
async fn a_gate_holds_an_operation_on_either_side_of_its_effect_though_it_is_dropped() -> Result<()> {
    for (side, kept) in [(Side::Request, 0), (Side::Reply, 1)] {
        let (store, gate) = behind(Gate::new);
        let me = request();
        gate.shut(Operation::Claim, side);
        let claim = tokio::spawn({
            let (gate, me) = (gate.clone(), me.clone());
            async move { gate.claim(&me).await }
        });
        gate.arrived(Operation::Claim).await;
        assert_eq!(entries(&store).await, kept, "{side:?}");
        claim.abort();
        assert!(claim.await.is_err_and(|cut| cut.is_cancelled()));
        gate.open(Operation::Claim);
        until(async || entries(&store).await == 1).await;
        gate.release(&me).await?;
        assert_eq!((entries(&store).await, gate.held_up(Operation::Claim)), (0, 1));
    }
    Ok(())
}

#[tokio::test]
async fn a_frozen_store_answers_nothing_until_it_thaws() {
    let (_, gate) = behind(Gate::new);
    gate.freeze();
    let me = request();
    let operations = {
        let (gate, me) = (gate.clone(), me.clone());
        let batch = [me.clone().into()];
        tokio::spawn(async move { tokio::join!(gate.claim(&me), gate.keep_alive(&batch), gate.release(&me)) })
    };
    for operation in [Operation::Claim, Operation::Renew, Operation::Release] {
        gate.arrived(operation).await;
    }
    assert!(!operations.is_finished());
    gate.thaw();
    assert!(operations.await.is_ok());
}

#[tokio::test]
async fn slow_takes_its_time_each_way_and_recording_sees_it() {
    let each = Duration::from_millis(15);
    let (store, slow) = behind(|inner| Slow::new(inner, each, each));
    let recording = Recording::new(slow.clone());
    let me = request();
    assert!(matches!(recording.claim(&me).await, Ok(Standing::Held(_))));
    let other = request();
    assert!(matches!(recording.claim(&other).await, Ok(Standing::Queued(_))));
    let calls = recording.calls();
    for call in &calls {
        let (answered, ok) = call.answered.unwrap();
        assert!(ok && answered.since(call.sent) >= 2 * each, "{:?}", answered.since(call.sent));
    }
    assert_eq!(calls.iter().map(|call| call.queued).collect::<Vec<_>>(), [false, true]);
    assert_eq!(recording.ids(), [me.id, other.id]);
    recording.queued(&me.name, 1).await;
    assert_eq!(recording.of(Operation::Release).len(), 0);
    assert_eq!(entries(&store).await, 2);
}
