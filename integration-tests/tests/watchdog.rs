//! The watchdog alone must end a hold at its deadline. Everything that looks at a guard reads the clock, and would end
//! it, too; so here nobody looks.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{future::pending, sync::Arc, time::Duration};

use polylock_core::{Clock, Locks, LostReason, Operation, Store, io};
use polylock_integration_tests::{
    clock::{PATIENCE, until},
    targets,
};
use polylock_testkit::{
    ManualClock, Target,
    faults::{Gate, Side},
};

const TTL: Duration = Duration::from_secs(60);

/// As many steps as a lease is divided into: many fall into each of the watchdog's own pauses.
const STEPS: u32 = 200;

/// Lets the store's I/O thread do everything that is due.
async fn settle(backend: &'static str) {
    for _ in 0..4 {
        let turns = io::run(backend, async {
            for _ in 0..16 {
                tokio::task::yield_now().await;
            }
        });
        turns.await.unwrap();
    }
}

/// Goes up to the deadline with renewals that hang, and expects the loss at that instant.
async fn is_lost_at_its_deadline(target: &str, side: Side) {
    let clock = ManualClock::new();
    let spot = targets::make(target).await.unwrap();
    let Store { backend, inspect, .. } = spot.connect().await.unwrap();
    let name = backend.capabilities().backend;
    let gate = Arc::new(Gate::new(backend));
    let mut store = Store::new(gate.clone());
    store.inspect = inspect;
    let locks = Locks::builder(store).clock(Arc::new(clock.clone())).build();

    let guard = locks.lock("n").ttl(TTL).acquire().await.unwrap();
    gate.shut(Operation::Renew, side);
    let (deadline, lost) = (guard.deadline(), tokio::spawn(guard.lost()));
    let work = tokio::spawn(guard.run(pending::<()>()));
    settle(name).await;
    while clock.now() + TTL / STEPS < deadline {
        clock.advance(TTL / STEPS);
        settle(name).await;
    }
    // A server takes real time to answer, which this clock knows nothing of.
    until(&format!("{target}: renewals are sent, and sent again"), async || {
        gate.held_up(Operation::Renew) > 1
    })
    .await;
    assert!(!lost.is_finished() && !work.is_finished(), "{target}: lost before the deadline");
    clock.advance(deadline.since(clock.now()));
    let reason = tokio::time::timeout(PATIENCE, lost).await.expect("told at the deadline").unwrap();
    assert_eq!(reason, LostReason::DeadlineReached);
    let stopped = tokio::time::timeout(PATIENCE, work).await.expect("stopped at the deadline").unwrap();
    assert_eq!(stopped.unwrap_err().lost(), Some(&LostReason::DeadlineReached));
    gate.thaw();
}

/// Before their answer comes, and before they even arrive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_renewal_does_not_delay_the_loss_though_nobody_looks() {
    for target in targets::NAMES {
        for side in [Side::Request, Side::Reply] {
            // With a clock that stands still, a store that is unavailable for a moment is never claimed again.
            let ends = tokio::time::timeout(PATIENCE, is_lost_at_its_deadline(target, side)).await;
            assert!(ends.is_ok(), "{target}, {side:?}: not within {PATIENCE:?}");
        }
    }
}

/// The reply counts from the sending of its own renewal, at whatever moment it comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_reply_counts_in_the_pause_before_the_next_attempt() {
    let clock = ManualClock::new();
    let spot = targets::make("memory").await.unwrap();
    let gate = Arc::new(Gate::new(spot.connect().await.unwrap().backend));
    let locks = Locks::builder(Store::new(gate.clone())).clock(Arc::new(clock.clone())).build();
    let guard = locks.lock("n").ttl(TTL).acquire().await.unwrap();
    let deadline = guard.deadline();
    gate.shut(Operation::Renew, Side::Reply);
    settle("memory").await;
    clock.advance(TTL / 3 + Duration::from_nanos(1));
    gate.arrived(Operation::Renew).await;
    settle("memory").await;
    // The time limit of the attempt. The next one is sent after a pause, and this clock stands still.
    clock.advance(TTL / 6);
    settle("memory").await;
    gate.open(Operation::Renew);
    until("the hold is extended", async || guard.deadline() > deadline).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
}
