//! The child processes of a check, and their work.

use std::{
    env,
    io::{self, BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    thread,
};

use polylock::{Moment, SystemClock};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::{
    exit::{Failure, INTERNAL},
    run::this_program,
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

/// A child process. It is killed when this is dropped.
pub(super) struct Worker {
    pub(super) process: Child,
    input: Option<ChildStdin>,
    lines: UnboundedReceiver<String>,
}

impl Worker {
    pub(super) fn start(job: &Job) -> Result<Self, Failure> {
        let failed =
            |error: io::Error| Failure::new(INTERNAL, format!("can't start a process of the check: {error}"));
        let mut command = Command::new(this_program().map_err(failed)?);
        command.arg(WORKER).args(env::args_os().skip(1));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().map_err(failed)?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let (sender, lines) = unbounded_channel();
        thread::spawn(move || {
            let lines = output.into_iter().flat_map(|output| BufReader::new(output).lines());
            // A last line without its end was cut by a kill; it is not a line of the protocol then, and is skipped by its reader.
            lines.map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let mut worker = Self { process, input, lines };
        worker.send(&serde_json::to_string(job).unwrap_or_default());
        Ok(worker)
    }

    /// Writes a line to the process. If it has ended, its missing output shows that.
    pub(super) fn send(&mut self, line: &str) {
        if let Some(input) = &mut self.input {
            writeln!(input, "{line}").and_then(|()| input.flush()).ok();
        }
    }

    /// Ends the input of the process.
    pub(super) fn end_input(&mut self) {
        self.input = None;
    }

    /// Returns the next line of its output; `None` at the end of the output, or at `deadline`.
    pub(super) async fn next_line(&mut self, deadline: Moment) -> Option<String> {
        SystemClock.before(deadline, self.lines.recv()).await.flatten()
    }

    /// Returns the lines that have arrived.
    pub(super) fn take_lines(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.lines.try_recv().ok()).collect()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        kill(&self.process, Signal::KILL);
        self.process.wait().ok();
    }
}

/// The work of a client.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Client {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) seed: u64,
    pub(super) lease_ms: u64,
}

/// Ends a process of the check.
pub(super) fn kill(process: &Child, signal: Signal) {
    // It has not been waited for, so its number is its own.
    kill_process(Pid::from_child(process), signal).ok();
}

/// Writes a line to the parent.
pub(super) fn print(line: impl std::fmt::Display) {
    let mut output = io::stdout().lock();
    // A parent that is gone has no use for the line.
    output.write_all(format!("{line}\n").as_bytes()).and_then(|()| output.flush()).ok();
}
