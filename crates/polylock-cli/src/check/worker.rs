//! The child processes of a check: the same program with the same arguments after a hidden word.

use std::{
    env,
    ffi::OsStr,
    io::{self, BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, ExitCode, Stdio},
    thread,
};

use clap::Parser;
use polylock::{Clock, Moment, SystemClock};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{conformance, faults, kill, latency::HANDED, subject::Subject};
use crate::{
    args::Cli,
    exit::{Failure, INTERNAL, USAGE},
    output::Output,
    run::this_program,
};

/// The first argument of a child process.
const WORKER: &str = "__check";

/// The work of a child process, the first line of its input. The store is that of its arguments, so that no secret is passed on.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Job {
    /// Runs the conformance suite in these namespaces, one for each of its cases.
    Suite { cases: Vec<(String, String)> },
    /// Waits for a lock at each line, and writes the time at which it had the lock.
    Waiter { namespace: String },
    /// Uses locks until its input ends.
    Client(faults::Client),
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

/// Runs this process as a child of a check, if it was started as one.
pub(crate) fn main() -> Option<ExitCode> {
    let mut arguments = env::args_os();
    let program = arguments.next()?;
    if arguments.next().as_deref() != Some(OsStr::new(WORKER)) {
        return None;
    }
    // A parent that is killed can't end a child that is stopped.
    set_parent_process_death_signal(Some(Signal::KILL)).ok();
    let Ok(cli) = Cli::try_parse_from(std::iter::once(program).chain(arguments)) else {
        return Some(USAGE.into());
    };
    let done = Subject::choose(&cli.global, &Output::of_worker()).and_then(|subject| work(&subject));
    Some(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            print(format_args!("error {}", failure.message.replace('\n', " ")));
            failure.code.into()
        }
    })
}

fn work(subject: &Subject) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::new(INTERNAL, error.to_string());
    let mut line = String::new();
    io::stdin().read_line(&mut line).map_err(failed)?;
    let job = serde_json::from_str(&line).map_err(|error| failed(error.into()))?;
    if let Job::Suite { cases } = job {
        conformance::run(subject, cases);
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        match job {
            Job::Client(client) => faults::run(subject, client, input()).await,
            Job::Waiter { namespace } => wait(subject, &namespace, input()).await,
            Job::Suite { .. } => Ok(()),
        }
    })
}

/// Returns the lines of the input.
fn input() -> UnboundedReceiver<String> {
    let (sender, lines) = unbounded_channel();
    thread::spawn(move || io::stdin().lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    lines
}

async fn wait(
    subject: &Subject,
    namespace: &str,
    mut input: UnboundedReceiver<String>,
) -> Result<(), Failure> {
    let locks = subject.open(namespace).await?;
    while input.recv().await.is_some() {
        let guard = locks.lock(HANDED).acquire().await?;
        print(SystemClock.now().as_nanos());
        guard.release().await?;
    }
    Ok(())
}

/// Writes a line to the parent.
pub(super) fn print(line: impl std::fmt::Display) {
    let mut output = io::stdout().lock();
    // A parent that is gone has no use for the line.
    output.write_all(format!("{line}\n").as_bytes()).and_then(|()| output.flush()).ok();
}
