//! A helper program that a test runs: its output lines, its signals, its exit.

use std::{
    env,
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

use crate::clock::{self, TIMEOUT};

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
    /// Starts `program`. Its standard error is that of the test.
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
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            // Ends with the output, or when the receiver was dropped.
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { child, input, lines }
    }

    /// Returns the process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the next line of its output; `None` if there is none within `limit`.
    pub fn next_line(&mut self, limit: Duration) -> Option<String> {
        self.lines.recv_timeout(limit).ok()
    }

    /// Returns the words after `word` on its next line.
    ///
    /// # Panics
    /// If there is no line within [`TIMEOUT`], or the line begins with another word.
    pub fn expect_line(&mut self, word: &str) -> Vec<String> {
        let line = self
            .next_line(TIMEOUT)
            .unwrap_or_else(|| panic!("{self:?}: expected the line {word:?}, got none within {TIMEOUT:?}"));
        let mut words = line.split_whitespace().map(str::to_owned);
        assert_eq!(words.next().as_deref(), Some(word), "{self:?}: expected the line {word:?}, got {line:?}");
        words.collect()
    }

    /// Sends it a line.
    ///
    /// # Panics
    /// If it has closed its input.
    pub fn send_line(&mut self, line: &str) {
        let sent = writeln!(self.input, "{line}").and_then(|()| self.input.flush());
        sent.unwrap_or_else(|error| panic!("can't send {line:?} to {self:?}: {error}"));
    }

    /// Sends SIGKILL. The process has ended when this returns.
    ///
    /// # Panics
    /// If it can't be sent.
    pub fn kill(&mut self) -> ExitStatus {
        self.child.kill().unwrap_or_else(|error| panic!("can't kill {self:?}: {error}"));
        self.wait_for_exit()
    }

    /// Sends SIGSTOP. All its threads have stopped when this returns.
    ///
    /// # Panics
    /// If it can't be sent, or has no effect.
    pub fn stop(&self) {
        self.send(Signal::STOP);
        let mut states = String::new();
        let has_stopped = clock::within(TIMEOUT, || {
            states = self.thread_states();
            !states.is_empty() && states.chars().all(|state| state == 'T')
        });
        assert!(has_stopped, "{self:?} has not stopped within {TIMEOUT:?}: its threads are {states}");
    }

    /// Sends SIGCONT.
    ///
    /// # Panics
    /// If it can't be sent.
    pub fn resume(&self) {
        self.send(Signal::CONT);
    }

    /// Waits for its end, and returns its status.
    ///
    /// # Panics
    /// If it does not end within [`TIMEOUT`].
    pub fn wait_for_exit(&mut self) -> ExitStatus {
        self.wait_for_exit_within(TIMEOUT)
            .unwrap_or_else(|| panic!("{self:?} has not ended within {TIMEOUT:?}"))
    }

    /// Waits for its end, and returns its status; `None` if it has not ended within `limit`.
    pub fn wait_for_exit_within(&mut self, limit: Duration) -> Option<ExitStatus> {
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

    /// Returns the state of each of its threads, as the kernel names it.
    fn thread_states(&self) -> String {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let states = threads.into_iter().flatten().flatten().filter_map(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).ok()?;
            // The state follows the name, which is in parentheses and may contain any character.
            stat.rsplit_once(')')?.1.trim_start().chars().next()
        });
        states.collect()
    }
}

/// Generates a test for each of these functions, in a module `alone`. It runs in a process of its own, because the function sets what a
/// process has once, such as a [subscriber](crate::trace::listen).
#[macro_export]
macro_rules! alone {
    ($($test:ident)*) => {
        mod alone {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                if $crate::process::is_alone(concat!(module_path!(), "::", stringify!($test))) {
                    super::$test().await;
                }
            })*
        }
    };
}

/// Returns true in a process that runs only the test at this path. Otherwise it starts one, and returns false when the test has
/// succeeded there.
///
/// # Panics
/// If it fails there.
#[must_use]
pub fn is_alone(path: &str) -> bool {
    const ALONE: &str = "POLYLOCK_TEST_ALONE";
    if env::var_os(ALONE).is_some() {
        return true;
    }
    let (_, test) = path.split_once("::").unwrap_or_else(|| panic!("{path} has no program"));
    let program = env::current_exe().unwrap_or_else(|error| panic!("this program: {error}"));
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture"]).env(ALONE, "1");
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{text}{errors}");
    assert!(output.status.success() && text.contains("1 passed"), "{test} fails in a process of its own");
    false
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error means that it has ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
