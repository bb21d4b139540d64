//! One test program and everything that it starts: a planted bug may let a process live.

use std::{
    fs, io,
    process::{Command, ExitCode},
    time::Duration,
};

use polylock_integration_tests::clock::within;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, set_child_subreaper, wait,
};

/// The mode of this program that runs one test program.
pub(crate) const SUPERVISE: &str = "--supervise";
/// The time limit of a test.
const TIMEOUT: Duration = Duration::from_secs(300);
/// The time limit for everything else to end, in which the servers of the test remove their files.
const GRACE: Duration = Duration::from_secs(5);

/// Runs a program to its end, and then ends every process that it has left. Fails if the program fails, or has not ended within
/// [`TIMEOUT`].
///
/// # Errors
/// If the program can't be started.
pub(crate) fn supervise(program: &str, arguments: &[&str]) -> io::Result<ExitCode> {
    // Descendants whose parent has ended become children of this process, so none escapes, and no id is reused before `wait`.
    set_child_subreaper(Some(getpid()))?;
    let child = Pid::from_child(&Command::new(program).args(arguments).spawn()?);
    let mut status = None;
    within(TIMEOUT, || {
        reap(|id, ended| {
            if id == child {
                status = Some(ended);
            }
        });
        status.is_some()
    });
    if status.is_none() {
        println!("not finished within {TIMEOUT:?}");
    }
    if status.is_none() || !within(GRACE, || reap(|_, _| ())) {
        within(GRACE, || {
            for child in children() {
                // An error means that it has ended already.
                kill_process(child, Signal::KILL).ok();
            }
            reap(|_, _| ())
        });
    }
    let succeeded = status.and_then(WaitStatus::exit_status) == Some(0);
    Ok(if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Passes each child that has ended to `seen`. Returns true if none is left.
fn reap(mut seen: impl FnMut(Pid, WaitStatus)) -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((id, status))) => seen(id, status),
            Ok(None) => return false,
            Err(_) => return true,
        }
    }
}

/// Returns the children of this process, which has one thread.
fn children() -> Vec<Pid> {
    let list = fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    list.split_whitespace().filter_map(|id| Pid::from_raw(id.parse().ok()?)).collect()
}
