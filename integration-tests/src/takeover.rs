//! The time between the last sign of life of a command and the start of the next holder's command.
//!
//! The first command, or a process that it has started, writes the time to a file periodically. The next one, which waits for
//! the same lock, writes the time at which it starts. Both use the clock that all processes of a machine share. A negative gap
//! means that both ran at the same time.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use polylock::{Clock, Moment, SystemClock};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::clock::{TIMEOUT, now, pause, until};

/// The fault of the first holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL to its polylock.
    Kill,
    /// SIGSTOP to its polylock.
    Stop,
    /// `polylock break`.
    Break,
    /// `--max-hold`.
    MaxHold,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 4] = [Self::Kill, Self::Stop, Self::Break, Self::MaxHold];
}

/// The programs of a trial.
#[derive(Debug, Clone)]
pub struct Programs {
    /// The program `polylock`.
    pub polylock: PathBuf,
    /// The program `takeover`, which writes the signs of life.
    pub takeover: PathBuf,
}

/// One lock that goes from one command to the next.
#[derive(Debug)]
pub struct Trial {
    directory: TempDir,
    programs: Programs,
    fault: Fault,
    ttl: Duration,
    first: Running,
    next: Running,
}

/// The outcome of a trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// The time from the last sign of life to the start of the next command, in milliseconds.
    pub gap: f64,
    /// The exit code of the first polylock; `None` if it was killed.
    pub code: Option<i32>,
}

/// A program that is killed when this is dropped.
#[derive(Debug)]
struct Running(Child);

impl Running {
    /// Waits for its end, which must come at the end of a lease at the latest.
    async fn wait_for_exit(&mut self, ttl: Duration) -> ExitStatus {
        let limit = now() + ttl + TIMEOUT;
        loop {
            match self.0.try_wait() {
                Ok(Some(status)) => return status,
                Ok(None) if now() < limit => pause(Duration::from_millis(1)).await,
                other => panic!("the process has not ended within {TIMEOUT:?} and a lease: {other:?}"),
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Trial {
    /// Starts the first command, the shell script `script`, in which `"$T" beat life` writes signs of life, and the next one.
    /// Returns when the first one runs and the next one waits.
    ///
    /// # Panics
    /// If that does not happen.
    pub async fn start(programs: &Programs, ttl: Duration, fault: Fault, script: &str) -> Self {
        let directory = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let url = format!("sqlite://{}", directory.path().join("locks.db").display());
        let lease = format!("{}ms", ttl.as_millis());
        let polylock = |arguments: &[&str]| {
            let mut command = Command::new(&programs.polylock);
            command.args(["-q", "-S", &url]).args(arguments).current_dir(directory.path());
            command.env("POLYLOCK_CONFIG", "/dev/null").env("T", &programs.takeover);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            Running(command.spawn().unwrap_or_else(|error| panic!("can't run polylock: {error}")))
        };
        // On a busy machine, the command needs a while for its first sign of life.
        let limit: &[&str] = if fault == Fault::MaxHold { &["--max-hold", "3s"] } else { &[] };
        // So the command is not stopped if a renewal is late on a busy machine.
        let grace = format!("{}ms", ttl.as_millis() / 4);
        let run = [&["run", "--ttl", &lease, "--grace", &grace], limit, &["x", "sh", "-c", script]].concat();
        let first = polylock(&run);
        let file = |name| directory.path().join(name);
        until("signs of life", async || stamp(&file("life")).is_some() || file("ready").exists()).await;

        let next = ["run", "--ttl", &lease, "x", "sh", "-c", "exec \"$T\" start begun"];
        let next = polylock(&next);
        if fault != Fault::MaxHold {
            let status = || {
                let mut command = Command::new(&programs.polylock);
                command.args(["-S", &url, "status", "x"]).env("POLYLOCK_CONFIG", "/dev/null").output()
            };
            until("the next one waits", async || {
                status().is_ok_and(|status| String::from_utf8_lossy(&status.stdout).contains("1st in line"))
            })
            .await;
        }
        Self { directory, programs: programs.clone(), fault, ttl, first, next }
    }

    /// Injects the fault, and waits until the next command has run.
    ///
    /// # Panics
    /// If it does not run.
    pub async fn finish(mut self) -> Outcome {
        let id = Pid::from_child(&self.first.0);
        let signal = |signal| kill_process(id, signal).unwrap_or_else(|error| panic!("{error}"));
        match self.fault {
            Fault::Kill => signal(Signal::KILL),
            Fault::Stop => signal(Signal::STOP),
            Fault::Break => {
                let url = format!("sqlite://{}", self.path("locks.db").display());
                let mut command = Command::new(&self.programs.polylock);
                command.args(["-q", "-S", &url, "break", "--yes", "x"]).env("POLYLOCK_CONFIG", "/dev/null");
                let broken = command.stdin(Stdio::null()).output();
                assert!(broken.is_ok_and(|output| output.status.success()), "polylock break");
            }
            Fault::MaxHold => {}
        }
        let status = self.next.wait_for_exit(self.ttl).await;
        assert!(status.success(), "the next command failed: {status:?}");
        if self.fault == Fault::Stop {
            signal(Signal::CONT);
        }
        let code = self.first.wait_for_exit(self.ttl).await.code();
        let (Some(life), Some(begun)) = (stamp(&self.path("life")), stamp(&self.path("begun"))) else {
            panic!("a file with a time is missing");
        };
        Outcome { gap: milliseconds(begun) - milliseconds(life), code }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// Writes the time to `file` every half millisecond until it is killed.
///
/// # Errors
/// If the file can't be written.
pub fn beat(file: &Path) -> io::Result<()> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(file)?;
    loop {
        write(&file, now())?;
        std::thread::park_timeout(Duration::from_micros(500));
    }
}

/// Writes the time to `file` once.
///
/// # Errors
/// If the file can't be written.
pub fn start(file: &Path) -> io::Result<()> {
    let time = SystemClock.now();
    write(&File::create(file)?, time)
}

fn write(file: &File, time: Moment) -> io::Result<()> {
    file.write_all_at(&time.as_nanos().to_le_bytes(), 0)
}

/// Returns the time in a file that was written by [`beat`] or [`start`].
fn stamp(file: &Path) -> Option<Moment> {
    let bytes = std::fs::read(file).ok()?;
    Some(Moment::from_nanos(u64::from_le_bytes(bytes.try_into().ok()?)))
}

fn milliseconds(time: Moment) -> f64 {
    time.since(Moment::default()).as_secs_f64() * 1000.0
}

/// Idle processes, which are killed on drop.
#[derive(Debug, Default)]
pub struct IdleProcesses(Vec<Child>);

impl IdleProcesses {
    /// Starts `number` processes.
    ///
    /// # Errors
    /// If the system does not allow so many.
    pub fn start(number: usize) -> io::Result<Self> {
        let mut all = Self::default();
        for _ in 0..number {
            let mut sleep = Command::new("sleep");
            sleep.arg("86400").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            all.0.push(sleep.spawn()?);
        }
        Ok(all)
    }
}

impl Drop for IdleProcesses {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(|child| drop(child.kill()));
        self.0.iter_mut().for_each(|child| drop(child.wait()));
    }
}
