//! A child process that is controlled by lines on its standard input, and replies with lines on its standard output.

use std::{
    io::{self, BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    thread,
};

use polylock::{Moment, SystemClock};
use serde::Serialize;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// A child process. It is killed when this is dropped.
#[derive(Debug)]
pub struct Worker {
    process: Child,
    input: Option<ChildStdin>,
    lines: UnboundedReceiver<String>,
}

impl Worker {
    /// Starts `command`, and sends `job` as JSON in the first line.
    ///
    /// # Errors
    /// If it can't be started.
    pub fn start(mut command: Command, job: &impl Serialize) -> io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn()?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let (sender, lines) = unbounded_channel();
        thread::spawn(move || {
            let lines = output.into_iter().flat_map(|output| BufReader::new(output).lines());
            // A last line without its end was cut by a kill; it is not a line of the protocol then, and is skipped by its reader.
            lines.map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let mut worker = Self { process, input, lines };
        worker.send(&serde_json::to_string(job)?);
        Ok(worker)
    }

    /// Writes a line to the process. If it has ended, its missing output shows that.
    pub fn send(&mut self, line: &str) {
        if let Some(input) = &mut self.input {
            writeln!(input, "{line}").and_then(|()| input.flush()).ok();
        }
    }

    /// Ends the input of the process.
    pub fn end_input(&mut self) {
        self.input = None;
    }

    /// Returns the next line of its output; `None` at the end of the output, or at `deadline`.
    ///
    /// # Cancel safety
    /// Dropping the future loses no line.
    pub async fn next_line(&mut self, deadline: Moment) -> Option<String> {
        SystemClock.before(deadline, self.lines.recv()).await.flatten()
    }

    /// Returns the lines that have arrived.
    pub fn take_lines(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.lines.try_recv().ok()).collect()
    }

    /// Returns the process, to send signals to it. It has not been waited for, so its number is its own.
    #[must_use]
    pub const fn process(&self) -> &Child {
        &self.process
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        // An error means that it has ended.
        self.process.kill().ok();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
        self.process.wait().ok();
    }
}

/// Writes a line to the parent.
pub fn print_line(line: impl std::fmt::Display) {
    let mut output = io::stdout().lock();
    // A parent that is gone has no use for the line.
    output.write_all(format!("{line}\n").as_bytes()).and_then(|()| output.flush()).ok();
}

/// Returns the lines of the standard input of this process.
#[must_use]
pub fn input_lines() -> UnboundedReceiver<String> {
    let (sender, lines) = unbounded_channel();
    thread::spawn(move || io::stdin().lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    lines
}
