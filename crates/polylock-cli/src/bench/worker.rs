//! The main function of a child process.

use std::{io, process::ExitCode};

use polylock_bench::run_child;

use super::subjects::Subjects;
use crate::{
    child,
    exit::{Failure, INTERNAL},
    output::Output,
};

/// The first argument of a child process. The second one is the number of its store.
pub(crate) const WORKER: &str = "__bench";

/// Runs this process as a child of a benchmark, if it was started as one.
pub(crate) fn main() -> Option<ExitCode> {
    let (cli, words) = match child::command_line(WORKER, 1)? {
        Ok(arguments) => arguments,
        Err(code) => return Some(code),
    };
    let number = words.first().and_then(|word| word.to_str()?.parse().ok()).unwrap_or(usize::MAX);
    let failed = |error: io::Error| Failure::new(INTERNAL, error.to_string());
    let done = Subjects::choose(&cli.global, &Output::of_worker()).and_then(|subjects| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(failed)?;
        let Some(subject) = subjects.get(number) else {
            return Err(Failure::new(INTERNAL, format!("there is no store number {number}")));
        };
        let open = |namespace: String, session| async move { subject.open(&namespace, session).await };
        Ok(runtime.block_on(run_child(open))?)
    });
    // The error was written to the parent.
    Some(done.map_or_else(|failure| failure.code.into(), |()| ExitCode::SUCCESS))
}
