//! The command line of the command.

use std::{ffi::OsString, io, os::unix::process::CommandExt, process::Command};

use crate::{
    args::Run,
    exit::{CANT_RUN, Failure, NOT_FOUND},
};

/// A program and its arguments.
#[derive(Debug)]
pub(super) struct CommandLine(Vec<OsString>);

impl CommandLine {
    /// The command as it was given.
    pub(super) fn of(run: &Run) -> Self {
        Self(match &run.command_line {
            Some(line) => vec!["/bin/sh".into(), "-c".into(), line.clone()],
            None => run.command.clone(),
        })
    }

    pub(super) fn words(&self) -> &[OsString] {
        &self.0
    }

    /// Replaces this process by the command, without the variables in `hidden`. Returns why that was not possible.
    pub(super) fn become_it(&self, hidden: &[String]) -> Failure {
        let Some((program, arguments)) = self.0.split_first() else {
            return self.not_run(&io::ErrorKind::InvalidInput.into());
        };
        let mut command = Command::new(program);
        for variable in hidden {
            command.env_remove(variable);
        }
        self.not_run(&command.args(arguments).exec())
    }

    /// Why the command could not be run.
    pub(super) fn not_run(&self, error: &io::Error) -> Failure {
        let program = self.0.first().map(|program| program.to_string_lossy()).unwrap_or_default();
        match error.kind() {
            io::ErrorKind::NotFound => {
                Failure::new(NOT_FOUND, format!("{program}: there is no such command"))
            }
            _ => Failure::new(CANT_RUN, format!("{program} can't be run: {error}")),
        }
    }
}
