//! `polylock run` with a lock that the holder before handed over: its first lease is what was left of its place in the
//! queue, a few seconds, whatever `--ttl` says.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    path::{Path, PathBuf},
    sync::LazyLock,
    time::Duration,
};

use polylock::Locks;
use polylock_integration_tests::{
    cargo,
    clock::{now, until},
    on_queues,
    process::Process,
    stores::spot,
    targets::Spot,
};

on_queues! {
    a_command_that_waited_is_not_asked_to_stop
    a_lock_that_was_waited_for_is_kept_for_its_min_hold
}

/// More than any place in the queue lasts, and less than a lease of this file.
const BEYOND_A_PLACE: Duration = Duration::from_secs(10);

/// `polylock run` with these arguments.
fn run(spot: &Spot, arguments: &[&str]) -> Process {
    static PROGRAM: LazyLock<PathBuf> =
        LazyLock::new(|| cargo::program("polylock-cli", "polylock", Path::new(env!("CARGO_BIN_EXE_worker"))));
    Process::start(&*PROGRAM, ["-S", spot.url(), "run"].iter().chain(arguments))
}

/// A command that waits for a lock which is then released, beginning with `arguments`.
async fn handed_over(spot: &Spot, locks: &Locks, arguments: &[&str]) -> Process {
    let guard = locks.lock("x").acquire().await.unwrap();
    let waiter = run(spot, arguments);
    until("it waits", async || locks.inspect("x").await.unwrap().waiters.len() == 1).await;
    guard.release().await.unwrap();
    waiter
}

async fn a_command_that_waited_is_not_asked_to_stop(store: &str) {
    let spot = spot(store).await;
    let locks = Locks::connect(spot.url()).await.unwrap();
    let command = ["x", "--", "sh", "-c", "echo runs; read go; echo done"];
    let mut waiter = handed_over(&spot, &locks, &command).await;
    waiter.hears("runs");
    until("the lease is a whole one", async || {
        let lock = locks.inspect("x").await.unwrap();
        lock.holders.first().is_some_and(|holder| holder.expires_in > BEYOND_A_PLACE)
    })
    .await;
    waiter.tell("go");
    waiter.hears("done");
    assert!(waiter.ends().success());
}

async fn a_lock_that_was_waited_for_is_kept_for_its_min_hold(store: &str) {
    let spot = spot(store).await;
    let locks = Locks::connect(spot.url()).await.unwrap();
    let mut waiter = handed_over(&spot, &locks, &["--min-hold", "7s", "x", "true"]).await;
    let began = now();
    locks.lock("x").wait(Duration::from_secs(60)).acquire().await.unwrap().release().await.unwrap();
    let free_after = now().since(began);
    println!("{store}: free after {free_after:?}");
    // It may have been acquired a moment before this was noticed. Longer than any place in the queue lasts, though.
    assert!(free_after > Duration::from_secs(6) && free_after < Duration::from_secs(12), "{free_after:?}");
    assert!(waiter.ends().success());
}
