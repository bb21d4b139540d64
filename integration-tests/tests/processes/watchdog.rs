//! The watchdog alone must end a hold at its deadline. Every method of a guard reads the clock and would end the hold,
//! too, so these tests do not call the guard.

use std::{future::pending, pin::pin, sync::Arc, time::Duration};

use polylock_core::{Clock, Guard, Lock, Locks, LostReason, Operation, Store, io};
use polylock_integration_tests::{
    clock::{TIMEOUT, pause, until},
    targets,
};
use polylock_testkit::{
    ManualClock, Target,
    faults::{Gate, Side},
};

const TTL: Duration = Duration::from_secs(60);

/// The number of clock steps per lease: many fall into each pause of the watchdog.
const STEPS: u32 = 200;

/// Acquires a lock while the clock runs, so that a failed claim is retried.
async fn acquired(lock: Lock, clock: &ManualClock) -> Guard {
    const STEP: Duration = Duration::from_millis(50);
    let mut acquiring = pin!(lock.acquire());
    loop {
        tokio::select! {
            biased;
            guard = &mut acquiring => return guard.unwrap(),
            () = pause(STEP) => clock.advance(STEP),
        }
    }
}

/// Lets the I/O thread of the store run everything that is due.
async fn settle(backend: &'static str) {
    for _ in 0..4 {
        let yields = io::run(backend, async {
            for _ in 0..16 {
                tokio::task::yield_now().await;
            }
        });
        yields.await.unwrap();
    }
}

/// Advances the clock to the deadline while renewals hang, and checks that the loss is signalled at that instant.
async fn assert_lost_at_deadline(target: &str, side: Side) {
    let clock = ManualClock::new();
    let namespace = targets::create(target).await.unwrap();
    let Store { backend, inspect, .. } = namespace.connect().await.unwrap();
    let name = backend.capabilities().backend;
    let gate = Arc::new(Gate::new(backend));
    let mut store = Store::new(gate.clone());
    store.inspect = inspect;
    let locks = Locks::builder(store).clock(Arc::new(clock.clone())).build();

    let guard = acquired(locks.lock("n").ttl(TTL), &clock).await;
    gate.shut(Operation::Renew, side);
    let (deadline, lost) = (guard.deadline(), tokio::spawn(guard.lost()));
    let work = tokio::spawn(guard.run(pending::<()>()));
    settle(name).await;
    while clock.now() + TTL / STEPS < deadline {
        clock.advance(TTL / STEPS);
        settle(name).await;
    }
    // A server needs real time to reply, in which the manual clock stands still.
    until(&format!("{target}: renewals are sent and retried"), async || {
        gate.blocked_count(Operation::Renew) > 1
    })
    .await;
    assert!(!lost.is_finished() && !work.is_finished(), "{target}: lost before the deadline");
    clock.advance(deadline.since(clock.now()));
    let reason = tokio::time::timeout(TIMEOUT, lost).await.expect("signalled at the deadline").unwrap();
    assert_eq!(reason, LostReason::DeadlineReached);
    let stopped = tokio::time::timeout(TIMEOUT, work).await.expect("stopped at the deadline").unwrap();
    assert_eq!(stopped.unwrap_err().lost(), Some(&LostReason::DeadlineReached));
    gate.thaw();
}

/// The renewals hang before or after they take effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_renewal_does_not_delay_the_loss_without_a_call_on_the_guard() {
    for target in targets::NAMES {
        for side in [Side::Request, Side::Reply] {
            let ends = tokio::time::timeout(TIMEOUT, assert_lost_at_deadline(target, side)).await;
            assert!(ends.is_ok(), "{target}, {side:?}: not within {TIMEOUT:?}");
        }
    }
}

/// The lease of a reply counts from the send time of its renewal, even if it arrives between two attempts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_reply_counts_in_the_pause_before_the_next_attempt() {
    let clock = ManualClock::new();
    let namespace = targets::create("memory").await.unwrap();
    let gate = Arc::new(Gate::new(namespace.connect().await.unwrap().backend));
    let locks = Locks::builder(Store::new(gate.clone())).clock(Arc::new(clock.clone())).build();
    let guard = locks.lock("n").ttl(TTL).acquire().await.unwrap();
    let deadline = guard.deadline();
    gate.shut(Operation::Renew, Side::Reply);
    settle("memory").await;
    clock.advance(TTL / 3 + Duration::from_nanos(1));
    gate.blocked(Operation::Renew).await;
    settle("memory").await;
    // The time limit of the attempt. The next one is sent after a pause, and this clock stands still.
    clock.advance(TTL / 6);
    settle("memory").await;
    gate.open(Operation::Renew);
    until("the hold is extended", async || guard.deadline() > deadline).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
}
