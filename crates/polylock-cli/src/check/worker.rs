//! The main function of a child process: the same program with the same arguments after a hidden word.

use std::{env, ffi::OsStr, io, process::ExitCode, thread};

use clap::Parser;
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{
    conformance, faults, latency,
    process::{Job, WORKER, print},
    subject::Subject,
};
use crate::{
    args::Cli,
    exit::{Failure, INTERNAL, USAGE},
    output::Output,
};

/// Runs this process as a child of a check, if it was started as one.
pub(crate) fn main() -> Option<ExitCode> {
    let mut arguments = env::args_os();
    let program = arguments.next()?;
    if arguments.next().as_deref() != Some(OsStr::new(WORKER)) {
        return None;
    }
    // A parent that is killed can't end a child that is stopped.
    set_parent_process_death_signal(Some(Signal::KILL)).ok();
    let Ok(cli) = Cli::try_parse_from(std::iter::once(program).chain(arguments)) else {
        return Some(USAGE.into());
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

/// Returns the lines of the input.
fn input() -> UnboundedReceiver<String> {
    let (sender, lines) = unbounded_channel();
    thread::spawn(move || io::stdin().lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    lines
}
