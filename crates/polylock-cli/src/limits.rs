//! The limits of the process, without which the command would end far from the cause, by a panic or a signal.

use std::{fs::File, io};

use rustix::{
    io::Errno,
    process::{Resource, getrlimit},
};

/// The stack of the main thread; a build without optimization needs more.
const STACK: u64 = if cfg!(debug_assertions) { 1024 * 1024 } else { 512 * 1024 };

/// The files that a command opens at least, with the event queues of the runtime.
const FILES: usize = 20;

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
