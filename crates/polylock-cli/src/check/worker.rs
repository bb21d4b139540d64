//! The main function of a child process: the same program with the same arguments after a hidden word.

use std::{io, process::ExitCode};

use polylock_bench::process::{input_lines as input, print_line as print};

use super::{
    conformance, faults, latency,
    process::{Job, WORKER},
    subject::Subject,
};
use crate::{
    child,
    exit::{Failure, INTERNAL},
    output::Output,
};

/// Runs this process as a child of a check, if it was started as one.
pub(crate) fn main() -> Option<ExitCode> {
    let cli = match child::command_line(WORKER, 0)? {
        Ok((cli, _)) => cli,
        Err(code) => return Some(code),
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
            Job::Waiter { namespace } => latency::run(subject, &namespace, input()).await,
            Job::Suite { .. } => Ok(()),
        }
    })
}
