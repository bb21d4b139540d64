//! Several processes on one store: no update is lost, no waiter starves, and a killed or stopped process blocks others for a limited
//! time; guards at the end of a program; late requests; and the command line. On every store that processes can share.
#![allow(clippy::unwrap_used, reason = "tests")]

mod cli;
mod dead_holders;
mod election;
mod exit;
mod guides;
mod increments;
mod kills;
mod late;
mod late_breaks;
mod late_claims;
mod late_conversions;
mod late_ends;
mod migration;
mod opening;
mod release_after;
mod service;
mod service_messages;
mod settings;
mod sqlite_users;
mod stops;
mod watchdog;

use std::time::Duration;

use polylock_integration_tests::process::Process;

const WORKER: &str = env!("CARGO_BIN_EXE_worker");

/// The tolerance for the end of a lease.
const SLACK: Duration = Duration::from_millis(500);

/// Starts a worker.
fn worker(scenario: &str, url: &str, name: &str, more: &[&str]) -> Process {
    Process::start(WORKER, [scenario, url, name].iter().chain(more))
}

/// Starts `count` workers, and lets them continue when all are ready.
fn start_together(count: usize, start: impl Fn() -> Process) -> Vec<Process> {
    let mut workers: Vec<Process> = (0..count).map(|_| start()).collect();
    workers.iter_mut().for_each(|worker| drop(worker.expect_line("ready")));
    workers.iter_mut().for_each(|worker| worker.send_line("go"));
    workers
}
