//! The child processes of a check, and their work.

use std::process::Child;

use polylock_bench::process::Worker;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::{
    child,
    exit::{Failure, INTERNAL},
};

/// The first argument of a child process.
pub(super) const WORKER: &str = "__check";

/// The work of a child process, the first line of its input. The store is that of its arguments, so that no secret is passed on.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Job {
    /// Runs the conformance suite in these namespaces, one for each of its cases.
    Suite { cases: Vec<(String, String)> },
    /// Waits for a lock at each line, and writes the time at which it had the lock.
    Waiter { namespace: String },
    /// Uses locks until its input ends.
    Client(Client),
}

/// Starts a child process.
pub(super) fn start(job: &Job) -> Result<Worker, Failure> {
    let started = child::command(&[WORKER]).and_then(|command| Worker::start(command, job));
    started.map_err(|error| Failure::new(INTERNAL, format!("can't start a process of the check: {error}")))
}

/// The work of a client.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Client {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) seed: u64,
    pub(super) lease_ms: u64,
}

/// Sends a signal to a process of the check.
pub(super) fn kill(process: &Child, signal: Signal) {
    // It has not been waited for, so its number is its own.
    kill_process(Pid::from_child(process), signal).ok();
}
