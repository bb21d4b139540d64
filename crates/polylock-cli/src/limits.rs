//! The limits of the process, without which the command would end far from the cause, by a panic or a signal.

use std::{
    fs::File,
    io,
    sync::mpsc,
    thread::{self, JoinHandle},
};

use rustix::{
    io::Errno,
    process::{Resource, getrlimit},
};

/// The stack of the main thread; a build without optimization needs more.
const STACK: u64 = if cfg!(debug_assertions) { 1024 * 1024 } else { 512 * 1024 };

/// The files that a command opens at least, with the event queues of the runtime.
const FILES: usize = 20;

/// The threads that a command starts at least: those of the store and of its driver.
const THREADS: usize = 4;

const TOO_FEW_PROCESSES: &str = "this user may start no more processes and threads: raise the limit (ulimit -u, or pids.max of the container)";

/// Checks the limits before anything needs them. Returns the problem, and what to do.
pub(crate) fn problem() -> Option<String> {
    if let Some(bytes) = getrlimit(Resource::Stack).current.filter(|bytes| *bytes < STACK) {
        let [bytes, needed] = [bytes, STACK].map(|bytes| bytes / 1024);
        return Some(format!(
            "the stack is limited to {bytes} KiB: raise the limit (ulimit -s) to {needed} at least"
        ));
    }
    // The caller may have opened any number of files.
    let opened: io::Result<Vec<File>> = (0..FILES).map(|_| File::open("/dev/null")).collect();
    let error = opened.err()?;
    let advice = match Errno::from_io_error(&error)? {
        Errno::MFILE => format!(
            "this process may open too few files: {FILES} more are needed, raise the limit (ulimit -n)"
        ),
        Errno::NFILE => "this machine may open no more files: raise the limit (fs.file-max)".to_owned(),
        // It has another cause.
        _ => return None,
    };
    Some(advice)
}

/// Checks that threads can be started: the runtime and the drivers panic otherwise. Returns the problem, and what to do.
pub(crate) fn threads_problem() -> Option<String> {
    let start = || -> io::Result<(mpsc::Sender<()>, JoinHandle<()>)> {
        let (end, ended) = mpsc::channel();
        let thread = thread::Builder::new().spawn(move || {
            // It ends when the other side is dropped.
            ended.recv().ok();
        })?;
        Ok((end, thread))
    };
    let started: Vec<_> = (0..THREADS).map(|_| start()).collect();
    let problem = started.iter().find_map(|thread| process_advice(thread.as_ref().err()?));
    for (end, thread) in started.into_iter().flatten() {
        drop(end);
        // It does not panic.
        thread.join().ok();
    }
    problem.map(str::to_owned)
}

/// Returns what to do if a process or thread could not be started because of a limit.
pub(crate) fn process_advice(error: &io::Error) -> Option<&'static str> {
    (Errno::from_io_error(error) == Some(Errno::AGAIN)).then_some(TOO_FEW_PROCESSES)
}
