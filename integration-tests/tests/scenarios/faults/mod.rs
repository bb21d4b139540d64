//! Faults of servers and of the network: each scenario is written once, and runs on every store that can have the fault.
//!
//! What only one store promises, or does in another way, has a test in the module of that store.

mod failover;
mod freeze;
mod idle;
mod kill;
pub(crate) mod outage;
mod silence;
mod victim;

use std::time::Duration;

use polylock::{Guard, Locks, LostReason};
use polylock_core::{Moment, Order};
use polylock_integration_tests::{
    clock::{TIMEOUT, now, pause},
    stores::wait_for_waiters,
};
use tokio::task::JoinHandle;

/// The time that a busy machine may add to a bound.
const SLACK: Duration = Duration::from_secs(1);

/// Opens the store, as another process would.
async fn connect(url: &str) -> Locks {
    Locks::connect(url).await.unwrap_or_else(|error| panic!("{url}: {error:?}"))
}

/// Acquires the lock and releases it.
async fn use_lock(locks: &Locks, name: &str) {
    let used = async { locks.lock(name).acquire().await.unwrap().release().await.unwrap() };
    tokio::time::timeout(TIMEOUT, used).await.unwrap_or_else(|_| panic!("{name} is not usable"));
}

/// Requests the lock, which is held by a request that `holder` can see, in another task, and waits until the request waits.
async fn waiter(locks: &Locks, name: &str, holder: &Locks) -> Waiter {
    let waiting = spawn(locks, name);
    if locks.capabilities().order == Order::Fifo {
        wait_for_waiters(holder, name, 1).await;
    } else {
        // The store keeps no queue, or does not show it.
        pause(Duration::from_millis(300)).await;
    }
    waiting
}

/// A task that acquires a lock. It returns the guard, and the time at which it got it.
type Waiter = JoinHandle<(Guard, Moment)>;

/// Acquires the lock in another task.
fn spawn(locks: &Locks, name: &str) -> Waiter {
    let acquisition = locks.lock(name).acquire();
    tokio::spawn(async { (acquisition.await.unwrap(), now()) })
}

/// Returns the output of a waiter, which is granted the lock in time.
async fn granted(waiter: Waiter) -> (Guard, Moment) {
    let granted = tokio::time::timeout(TIMEOUT, waiter).await;
    granted.expect("the waiter is granted the lock").unwrap()
}

/// Checks that the loss is reported at the deadline, and not before, and returns the deadline.
async fn lost_at_the_deadline(guard: &Guard, what: &str) -> Moment {
    let deadline = tokio::time::timeout(TIMEOUT, last_deadline(guard)).await;
    let (lost, deadline) = (now(), deadline.unwrap_or_else(|_| panic!("{what}: the loss is not reported")));
    let after = lost.since(deadline);
    println!("{what}: lost {after:.1?} after the deadline");
    assert_eq!(guard.lost().await, LostReason::DeadlineReached, "{what}");
    // Without a timer of its own, the loss would not be reported at all: the servers do not reply.
    assert!(lost >= deadline && after < 2 * SLACK, "{what}: {after:?}");
    assert!(!guard.is_held(), "{what}");
    deadline
}

/// Waits until the hold has ended, and returns the deadline of its last renewal.
async fn last_deadline(guard: &Guard) -> Moment {
    loop {
        let (renewed, deadline) = (guard.renewed(), guard.deadline());
        if renewed.await.is_none() {
            return deadline;
        }
    }
}
