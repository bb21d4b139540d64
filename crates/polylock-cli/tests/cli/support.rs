//! An isolated environment for each test: a directory, a store in it, and the real program.

use std::{
    fs, io,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use polylock::{Clock, Moment, SystemClock};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sqlx::{Connection, Row};
use tempfile::TempDir;

/// The time limit of all steps of a test.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct Workspace {
    pub(crate) directory: TempDir,
}

impl Workspace {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite://{}", self.path("locks.db").display())
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Returns the program in this environment, without the caller's variables, and with the store in a variable.
    pub(crate) fn polylock(&self) -> Command {
        let mut command = self.polylock_without_store();
        command.env("POLYLOCK_STORE", self.url());
        command
    }

    /// Returns the program in this environment without a store.
    pub(crate) fn polylock_without_store(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_polylock"));
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", self.directory.path());
        command.current_dir(self.directory.path()).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs `polylock` with these arguments, separated by blanks, to completion.
    pub(crate) fn call(&self, arguments: &str) -> Output {
        self.polylock().args(arguments.split(' ')).output().unwrap()
    }

    /// Starts `polylock run` with these flags and this shell script in the background.
    pub(crate) fn start(&self, flags: &str, script: &str) -> Running {
        let mut command = self.polylock();
        command.arg("run").args(flags.split(' ')).args(["sh", "-c", script]);
        Running::spawn(command)
    }

    /// Returns the status of a lock.
    pub(crate) fn status(&self, name: &str) -> Value {
        let output = self.polylock().args(["status", "--output", "json", name]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Waits until `name` has this many waiters.
    pub(crate) fn wait_for_waiters(&self, name: &str, number: usize) {
        eventually("waiters", || self.status(name)["waiters"].as_array().unwrap().len() == number);
    }

    /// Waits until a script has written a pid to this file, and returns it.
    pub(crate) fn wait_for_pid(&self, file: &str) -> Pid {
        self.wait_for_file(file);
        Pid::from_raw(self.read(file).trim().parse().unwrap()).unwrap()
    }

    /// Waits until a script has written a line to this file.
    pub(crate) fn wait_for_file(&self, file: &str) {
        eventually(file, || self.read(file).ends_with('\n'));
    }
}

/// A program in the background; killed at the end of the test.
pub(crate) struct Running(pub(crate) Option<Child>);

impl Running {
    pub(crate) fn spawn(mut command: Command) -> Self {
        Self(Some(command.spawn().unwrap()))
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(self.0.as_ref().unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Waits for its end, with a limit.
    pub(crate) fn finish(mut self) -> Output {
        eventually("the end of the program", || self.0.as_mut().unwrap().try_wait().unwrap().is_some());
        self.0.take().unwrap().wait_with_output().unwrap()
    }

    pub(crate) fn code(self) -> Option<i32> {
        let output = self.finish();
        println!("{}", stderr(&output));
        output.status.code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// Polls until the condition holds.
pub(crate) fn eventually(condition: &str, mut is_true: impl FnMut() -> bool) {
    let limit = now() + TIMEOUT;
    while !is_true() {
        assert!(now() < limit, "{condition}: not true within {TIMEOUT:?}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

pub(crate) fn now() -> Moment {
    SystemClock.now()
}

/// Returns true if a process runs: neither gone nor a zombie.
pub(crate) fn is_alive(pid: Pid) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => !matches!(stat.rsplit_once(") ").unwrap().1.as_bytes()[0], b'Z' | b'X'),
        Err(error) => {
            let gone = [io::ErrorKind::NotFound, io::ErrorKind::Other].contains(&error.kind())
                || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error());
            assert!(gone, "{error}");
            false
        }
    }
}

/// Returns the warden of a `polylock run`, when it waits for events: before that, polylock may not know yet that the command has begun.
pub(crate) fn warden_of(pid: Pid) -> Pid {
    let mut found = None;
    eventually("a warden", || {
        found = fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
            let id = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            let mut fields = stat.rsplit_once(") ")?.1.split(' ');
            let (state, parent) = (fields.next()?, fields.next()?);
            let is_warden = line.split(|byte| *byte == 0).nth(1) == Some(b"__warden");
            (is_warden && state == "S" && parent == pid.to_string()).then_some(id)
        });
        found.is_some()
    });
    found.unwrap()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Returns the standard error without the report of a wait: any wait may take longer than half a second on a busy machine.
pub(crate) fn stderr_without_waits(output: &Output) -> String {
    let text = stderr(output);
    let lines = text.lines().filter(|line| !line.starts_with("polylock: waiting for "));
    lines.map(|line| format!("{line}\n")).collect()
}

/// Parses the lines of a status file.
pub(crate) fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the names of the tables in the workspace's store.
pub(crate) fn tables(workspace: &Workspace) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut connection = sqlx::SqliteConnection::connect(&workspace.url()).await.unwrap();
        let tables = sqlx::query("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite%'");
        let tables = tables.fetch_all(&mut connection).await.unwrap();
        tables.iter().map(|row| row.get(0)).collect()
    })
}

/// Checks the exit code, and that stderr contains `expected`.
#[track_caller]
pub(crate) fn assert_code(output: &Output, code: i32, expected: &str) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.contains(expected), "{text}");
}
