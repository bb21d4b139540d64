//! Holders on SQLite that are killed: the kernel knows that they have ended, so the next request does not wait for the lease.
#![cfg(target_os = "linux")]

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{
    clock::now,
    stores::{namespace, wait_for_waiters},
};

use crate::{kills::assert_within, worker};

/// Longer than a test takes: no lease expires.
const TTL: &str = "600s";
const LIMIT: Duration = Duration::from_millis(500);

#[tokio::test]
async fn a_killed_holder_is_superseded_at_once() {
    let namespace = namespace("sqlite_full").await;
    let url = namespace.url_with("polylock.ttl", TTL);
    let locks = Locks::connect(&url).await.unwrap();
    let mut times = Vec::new();
    for number in 0..5 {
        let name = format!("killed/{number}");
        let mut holder = worker("hold", &url, &name, &["1"]);
        let token = holder.expect_line("held")[0].parse().unwrap();
        assert!(locks.lock(&name).try_acquire().await.unwrap().is_none());
        let waiter = tokio::spawn(locks.lock(&name).acquire());
        wait_for_waiters(&locks, &name, 1).await;
        holder.kill();
        let killed = now();
        let guard = waiter.await.unwrap().unwrap();
        times.push(now().since(killed));
        assert!(guard.fencing_token().get() > token);
        guard.release().await.unwrap();
    }
    assert_within(LIMIT, times);
}

#[tokio::test]
async fn a_stopped_holder_is_not_superseded() {
    let namespace = namespace("sqlite_full").await;
    let url = namespace.url_with("polylock.ttl", TTL);
    let locks = Locks::connect(&url).await.unwrap();
    let mut holder = worker("hold", &url, "stopped", &["1"]);
    holder.expect_line("held");
    holder.stop();
    assert!(locks.lock("stopped").wait(LIMIT).acquire().await.is_err());
    holder.kill();
    assert!(locks.lock("stopped").acquire().await.is_ok());
}

/// The work of a holder may continue in the processes that it has started.
#[tokio::test]
async fn a_killed_holder_is_not_superseded_while_its_child_runs() {
    let namespace = namespace("sqlite_full").await;
    let url = namespace.url_with("polylock.ttl", TTL);
    let locks = Locks::connect(&url).await.unwrap();
    let mut holder = worker("hold-with-child", &url, "n", &[]);
    holder.expect_line("held");
    holder.kill();
    assert!(locks.lock("n").wait(LIMIT).acquire().await.is_err());
    // The end of the input ends the child.
    drop(holder);
    let guard = tokio::time::timeout(LIMIT * 4, locks.lock("n").acquire()).await.unwrap();
    guard.unwrap().release().await.unwrap();
}
