//! The command line of the command.

use std::{ffi::OsString, io, os::unix::process::CommandExt, path::Path, process::Command};

use crate::{
    args::Supervised,
    exit::{CANT_RUN, Failure, INTERNAL, NOT_FOUND},
    limits::process_advice,
};

/// A program and its arguments.
#[derive(Debug)]
pub(super) struct CommandLine(Vec<OsString>);

impl CommandLine {
    /// Returns the command line of a command under a lock.
    pub(super) fn new(args: &Supervised) -> Self {
        Self(match &args.command_line {
            Some(line) => vec!["/bin/sh".into(), "-c".into(), line.clone()],
            None => args.command.clone(),
        })
    }

    pub(super) fn arguments(&self) -> &[OsString] {
        &self.0
    }

    /// Replaces this process by the command, without the variables in `hidden`. Returns only if that fails.
    pub(super) fn exec(&self, hidden: &[String]) -> Failure {
        let Some((program, arguments)) = self.0.split_first() else {
            return self.start_failure(&io::ErrorKind::InvalidInput.into());
        };
        let mut command = Command::new(program);
        for variable in hidden {
            command.env_remove(variable);
        }
        self.start_failure(&command.args(arguments).exec())
    }

    /// Returns the failure of a command that could not be run.
    pub(super) fn start_failure(&self, error: &io::Error) -> Failure {
        let program = self.0.first().map(|program| program.to_string_lossy()).unwrap_or_default();
        if let Some(advice) = process_advice(error) {
            return Failure::new(INTERNAL, format!("{program} can't be run: {advice}"));
        }
        match error.kind() {
            io::ErrorKind::NotFound => {
                let is_line = program.contains(char::is_whitespace);
                let advice =
                    if is_line { "run a command line with -c" } else { "check its name and the PATH" };
                Failure::new(NOT_FOUND, format!("{program}: command not found; {advice}"))
            }
            _ if Path::new(program.as_ref()).is_dir() => {
                Failure::new(CANT_RUN, format!("{program} can't be run: it is a directory"))
            }
            _ => Failure::new(
                CANT_RUN,
                format!("{program} can't be run: {error}; check that it is an executable file"),
            ),
        }
    }
}
