//! Several processes on one store: nothing is lost, nobody starves, and who is killed or stopped harms nobody for long. On
//! every store that processes share.
#![allow(clippy::unwrap_used, reason = "tests")]

mod increments;
mod kills;
mod opening;
mod stops;

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{clock, process::Process};

const WORKER: &str = env!("CARGO_BIN_EXE_worker");

/// What a lease may be late by.
const SLACK: Duration = Duration::from_millis(500);

/// Starts a worker.
fn worker(scenario: &str, url: &str, name: &str, more: &[&str]) -> Process {
    Process::start(WORKER, [scenario, url, name].iter().chain(more))
}

/// Starts that many, and lets them go when all are ready.
fn at_once(count: usize, start: impl Fn() -> Process) -> Vec<Process> {
    let mut workers: Vec<Process> = (0..count).map(|_| start()).collect();
    workers.iter_mut().for_each(|worker| drop(worker.hears("ready")));
    workers.iter_mut().for_each(|worker| worker.tell("go"));
    workers
}

/// Waits until that many wait for the lock.
async fn waiters(locks: &Locks, name: &str, count: usize) {
    clock::until("the queue is as long as that", async || {
        locks.inspect(name).await.unwrap().waiters.len() == count
    })
    .await;
}
