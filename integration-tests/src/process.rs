//! A helper program that runs beside the test: its lines, its signals, its end.

use std::{
    ffi::OsStr,
    fmt,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::clock::{self, PATIENCE};

/// A running program. It is killed when this is dropped.
pub struct Process {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("id", &self.child.id()).finish_non_exhaustive()
    }
}

impl Process {
    /// Starts `program`; what it writes to its standard error shows in the test's.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn start(program: impl AsRef<Path>, arguments: impl IntoIterator<Item: AsRef<OsStr>>) -> Self {
        let program = program.as_ref();
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let started = command.spawn();
        let mut child = started.unwrap_or_else(|error| panic!("can't start {}: {error}", program.display()));
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both are piped")
        };
        let (say, lines) = mpsc::channel();
        thread::spawn(move || {
            // Until it is over, or nobody listens any more.
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| say.send(line))
        });
        Self { child, input, lines }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it writes, if it comes in time.
    pub fn line_within(&mut self, limit: Duration) -> Option<String> {
        self.lines.recv_timeout(limit).ok()
    }

    /// What follows `word` on its next line.
    ///
    /// # Panics
    /// If there is no such line in time, or it begins with another word.
    pub fn hears(&mut self, word: &str) -> Vec<String> {
        let line =
            self.line_within(PATIENCE).unwrap_or_else(|| panic!("{self:?} said nothing, not {word:?}"));
        let mut words = line.split_whitespace().map(str::to_owned);
        assert_eq!(words.next().as_deref(), Some(word), "{self:?} said {line:?}");
        words.collect()
    }

    /// Sends it a line.
    ///
    /// # Panics
    /// If it does not listen any more.
    pub fn tell(&mut self, line: &str) {
        let told = writeln!(self.input, "{line}").and_then(|()| self.input.flush());
        told.unwrap_or_else(|error| panic!("{self:?} does not hear {line:?}: {error}"));
    }

    /// SIGKILL: no last act of any kind. It is gone when this returns.
    ///
    /// # Panics
    /// If it can't be sent.
    pub fn kill(&mut self) -> ExitStatus {
        self.child.kill().unwrap_or_else(|error| panic!("can't kill {self:?}: {error}"));
        self.ends()
    }

    /// SIGSTOP. It stands still when this returns.
    ///
    /// # Panics
    /// If it can't be sent, or has no effect.
    pub fn stop(&self) {
        self.send(Signal::STOP);
        assert!(clock::within(PATIENCE, || self.all_stopped()), "{self:?} does not stop");
    }

    /// SIGCONT.
    ///
    /// # Panics
    /// If it can't be sent.
    pub fn go_on(&self) {
        self.send(Signal::CONT);
    }

    /// How it ended.
    ///
    /// # Panics
    /// If it goes on for longer than [`PATIENCE`].
    pub fn ends(&mut self) -> ExitStatus {
        self.ends_within(PATIENCE).unwrap_or_else(|| panic!("{self:?} does not end"))
    }

    /// How it ended, if it has in time.
    pub fn ends_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        let mut status = None;
        clock::within(limit, || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        });
        status
    }

    fn send(&self, signal: Signal) {
        let sent = kill_process(Pid::from_child(&self.child), signal);
        sent.unwrap_or_else(|error| panic!("can't send {signal:?} to {self:?}: {error}"));
    }

    /// Whether every thread of it has stopped: the signal reaches them one by one.
    fn all_stopped(&self) -> bool {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", self.child.id())) else { return false };
        threads.flatten().all(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            // The state stands behind the name, which is in parentheses and may hold any character.
            stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error means that it has ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
