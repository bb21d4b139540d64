//! The entries of processes that have ended. The kernel unlocks the byte of a process in the side file when its store is closed, too, so a
//! closed store stands for a process that has ended.
#![cfg(target_os = "linux")]

use std::time::Duration;

use polylock_core::{KeepAlive, Mode, Request};
use tokio::time::timeout;

use crate::common::{TestFile, acquire, held, keep_alive, queued, request_with_ttl};

/// Longer than a test takes: no lease expires.
const TTL: Duration = Duration::from_secs(600);
const SOON: Duration = Duration::from_secs(5);

fn request(mode: Mode) -> Request {
    request_with_ttl("n", mode, TTL)
}

fn without_process() -> Request {
    let mut request = request(Mode::Exclusive);
    request.outlives_process = true;
    request
}

#[tokio::test]
async fn a_claim_supersedes_the_holds_of_a_process_that_has_ended() {
    for queues in [true, false] {
        let file = TestFile::new();
        let (dead, alive) = (file.store().await, file.store().await);
        let mut last = held(&dead, &request(Mode::Shared)).await;
        for _ in 0..3 {
            last = held(&dead, &request(Mode::Shared)).await;
        }
        let mut next = request(Mode::Exclusive);
        next.queues = queues;
        queued(&alive, &next).await;
        drop(dead);
        assert!(held(&alive, &next).await.token > last.token);
        assert_eq!(file.rows().await, 1);
    }
}

#[tokio::test]
async fn a_waiter_is_granted_the_lock_of_a_process_that_ends() {
    let file = TestFile::new();
    let (dead, alive) = (file.store().await, file.store().await);
    held(&dead, &request(Mode::Exclusive)).await;
    // A waiter of the same process is ahead.
    queued(&dead, &request(Mode::Exclusive)).await;
    let next = request(Mode::Exclusive);
    queued(&alive, &next).await;
    assert!(timeout(Duration::from_millis(100), alive.backend.wait(&next)).await.is_err(), "it is alive");
    drop(dead);
    // Without another claim.
    timeout(SOON, alive.backend.wait(&next)).await.unwrap().unwrap();
    timeout(SOON, acquire(&alive, &next)).await.unwrap();
}

#[tokio::test]
async fn a_hold_that_may_outlive_its_process_ends_with_its_lease() {
    let file = TestFile::new();
    let (dead, alive) = (file.store().await, file.store().await);
    held(&dead, &without_process()).await;
    drop(dead);
    let next = request(Mode::Exclusive);
    queued(&alive, &next).await;
    assert!(timeout(Duration::from_millis(200), acquire(&alive, &next)).await.is_err());
}

#[tokio::test]
async fn a_keep_alive_makes_a_hold_outlive_its_process() {
    let file = TestFile::new();
    let (dead, alive) = (file.store().await, file.store().await);
    let mut first = request(Mode::Exclusive);
    held(&dead, &first).await;
    let next = request(Mode::Exclusive);
    // This waiter knows the process of the hold from before.
    queued(&alive, &next).await;
    assert!(timeout(Duration::from_millis(50), alive.backend.wait(&next)).await.is_err());
    first.outlives_process = true;
    assert!(matches!(keep_alive(&dead, &first).await.unwrap(), KeepAlive::Held { .. }));
    drop(dead);
    assert!(timeout(Duration::from_millis(200), acquire(&alive, &next)).await.is_err());
}

#[tokio::test]
async fn a_waiter_passes_those_of_a_process_that_has_ended() {
    let file = TestFile::new();
    let (holder, dead, alive) = (file.store().await, file.store().await, file.store().await);
    let first = request(Mode::Exclusive);
    held(&holder, &first).await;
    for _ in 0..3 {
        queued(&dead, &request(Mode::Exclusive)).await;
    }
    let next = request(Mode::Exclusive);
    queued(&alive, &next).await;
    drop(dead);
    holder.backend.release(&first).await.unwrap();
    // Each of the dead waiters was granted the lock, or was passed, without the time of its queue entry.
    timeout(SOON, acquire(&alive, &next)).await.unwrap();
}

#[tokio::test]
async fn a_hold_that_was_handed_over_ends_with_the_process_of_its_holder() {
    let file = TestFile::new();
    let (first, dead, alive) = (file.store().await, file.store().await, file.store().await);
    let [a, b, c] = [(); 3].map(|()| request(Mode::Exclusive));
    held(&first, &a).await;
    queued(&dead, &b).await;
    queued(&alive, &c).await;
    first.backend.release(&a).await.unwrap();
    timeout(SOON, acquire(&dead, &b)).await.unwrap();
    drop(dead);
    timeout(SOON, acquire(&alive, &c)).await.unwrap();
}
