//! `polylock run` with a lock that the previous holder hands over: the first lease is the rest of the queue lease, a few seconds,
//! independently of `--ttl`.

use std::time::Duration;

use polylock::{Locks, Moment};
use polylock_integration_tests::{
    cargo::polylock,
    clock::{now, until},
    on_queues,
    process::Process,
    stores::namespace,
    targets::Namespace,
};

on_queues! {
    a_command_is_not_stopped_after_a_hand_over
    min_hold_applies_after_a_hand_over
}

/// Longer than any queue lease, and shorter than a hold's lease of this file.
const LONGER_THAN_QUEUE_LEASE: Duration = Duration::from_secs(10);

/// Starts `polylock run` with these arguments.
fn run(namespace: &Namespace, arguments: &[&str]) -> Process {
    Process::start(polylock(), ["-S", namespace.url(), "run"].iter().chain(arguments))
}

/// Starts a run with `arguments`, which waits for a lock that is then released. Returns the time before the release, too.
async fn start_and_hand_over(namespace: &Namespace, locks: &Locks, arguments: &[&str]) -> (Process, Moment) {
    let guard = locks.lock("x").acquire().await.unwrap();
    let waiter = run(namespace, arguments);
    until("the run is queued", async || locks.inspect("x").await.unwrap().waiters.len() == 1).await;
    let began = now();
    guard.release().await.unwrap();
    (waiter, began)
}

async fn a_command_is_not_stopped_after_a_hand_over(store: &str) {
    let namespace = namespace(store).await;
    let locks = Locks::connect(namespace.url()).await.unwrap();
    let command = ["x", "--", "sh", "-c", "echo runs; read go; echo done"];
    let (mut waiter, _) = start_and_hand_over(&namespace, &locks, &command).await;
    waiter.expect_line("runs");
    until("the lease is renewed to the TTL", async || {
        let lock = locks.inspect("x").await.unwrap();
        lock.holders.first().is_some_and(|holder| holder.expires_in > LONGER_THAN_QUEUE_LEASE)
    })
    .await;
    waiter.send_line("go");
    waiter.expect_line("done");
    assert!(waiter.wait_for_exit().success());
}

async fn min_hold_applies_after_a_hand_over(store: &str) {
    let namespace = namespace(store).await;
    let locks = Locks::connect(namespace.url()).await.unwrap();
    let arguments = ["--min-hold", "7s", "x", "true"];
    let (mut waiter, began) = start_and_hand_over(&namespace, &locks, &arguments).await;
    locks.lock("x").wait(Duration::from_secs(60)).acquire().await.unwrap().release().await.unwrap();
    let free_after = now().since(began);
    println!("{store}: free after {free_after:?}");
    // A queue lease is shorter than six seconds.
    assert!(free_after > Duration::from_secs(6) && free_after < Duration::from_secs(12), "{free_after:?}");
    assert!(waiter.wait_for_exit().success());
}
