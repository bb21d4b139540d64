//! Child processes of `check` and `bench`: the same program with the same arguments, after hidden words. So the store's URL is passed to
//! nobody.

use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    process::{Command, ExitCode},
};

use clap::Parser;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::{args::Cli, exit::USAGE, run::this_program};

/// Returns the command that starts a child process. The first one of `words` is its kind.
pub(crate) fn command(words: &[&str]) -> io::Result<Command> {
    let mut command = Command::new(this_program()?);
    command.args(words).args(env::args_os().skip(1));
    Ok(command)
}

/// Returns the command line of this process, and the `count` hidden words before it, if this process is a child of this kind. The kernel
/// kills it when its parent ends.
pub(crate) fn command_line(kind: &str, count: usize) -> Option<Result<(Cli, Vec<OsString>), ExitCode>> {
    let mut arguments = env::args_os();
    let program = arguments.next()?;
    if arguments.next().as_deref() != Some(OsStr::new(kind)) {
        return None;
    }
    // A parent that is killed can't end a child that is stopped.
    set_parent_process_death_signal(Some(Signal::KILL)).ok();
    let words = arguments.by_ref().take(count).collect();
    let cli = Cli::try_parse_from(std::iter::once(program).chain(arguments));
    Some(cli.map(|cli| (cli, words)).map_err(|_| USAGE.into()))
}
