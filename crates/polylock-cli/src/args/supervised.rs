//! The arguments of the commands that run a command under a lock.

use std::{ffi::OsString, net::SocketAddr, path::PathBuf, time::Duration};

use clap::{ArgAction, Args, ValueEnum};

use crate::signals;

/// The options of a command under a lock that `run` and `elect` share.
#[derive(Debug, Args)]
pub(crate) struct Supervised {
    /// Length of the lease: the time until the lock of a dead holder is free; renewed at every third of it [default: 30s]
    #[arg(long, value_name = "DUR", value_parser = duration, help_heading = HOLDING)]
    pub(crate) ttl: Option<Duration>,
    /// Purpose of the hold, shown by `polylock status` and to waiters [default: user and program name]
    #[arg(long, value_name = "TEXT", help_heading = HOLDING)]
    pub(crate) label: Option<String>,

    /// Time between the signal and SIGKILL, at most half of the TTL [default: a third of the TTL]
    #[arg(long, value_name = "DUR", value_parser = duration, help_heading = STOPPING)]
    pub(crate) grace: Option<Duration>,
    /// Signal that requests the command to stop
    #[arg(long, value_name = "SIG", value_parser = signals::parse, default_value = "TERM", help_heading = STOPPING)]
    pub(crate) signal: rustix::process::Signal,

    /// Run the command in the terminal's foreground [default: if polylock itself runs there]
    #[arg(long, help_heading = COMMAND)]
    pub(crate) foreground: bool,
    /// Keep the variable with the store's URL in the command's environment
    #[arg(long, help_heading = COMMAND)]
    pub(crate) keep_store_env: bool,
    /// Write events as JSON lines to this open file descriptor
    #[arg(long, value_name = "N", group = "status", help_heading = COMMAND)]
    pub(crate) status_fd: Option<u32>,
    /// Write events as JSON lines to this file, which is truncated first
    #[arg(long, value_name = "PATH", group = "status", help_heading = COMMAND)]
    pub(crate) status_file: Option<PathBuf>,
    /// Serve the metrics of this run to Prometheus at http://ADDR/metrics, such as 127.0.0.1:9464, until the command has ended
    #[arg(long, value_name = "ADDR", help_heading = COMMAND, hide = !cfg!(feature = "metrics"))]
    pub(crate) metrics_listen: Option<SocketAddr>,
    /// Run this command line with `sh -c`
    #[arg(short = 'c', long = "command", value_name = "CMDLINE", action = ArgAction::Set, conflicts_with = "command", help_heading = COMMAND)]
    pub(crate) command_line: Option<OsString>,

    /// Name of the lock
    pub(crate) name: String,
    /// Command and its arguments, run without a shell; no `--` is needed before its flags
    #[arg(value_name = "CMD", trailing_var_arg = true, required_unless_present = "command_line")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Elect {
    /// When to campaign again after the command has exited by itself, instead of exiting with its code
    #[arg(long, value_name = "WHEN", value_enum, default_value_t, help_heading = COMMAND)]
    pub(crate) restart: Restart,
    /// Time before this process campaigns again after the command has exited by itself
    #[arg(long, value_name = "DUR", value_parser = duration, default_value = "1s", help_heading = COMMAND)]
    pub(crate) restart_delay: Duration,

    #[command(flatten)]
    pub(crate) common: Supervised,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Restart {
    /// Never: exit with the code of the command
    #[default]
    No,
    /// If the command has failed: its code is not 0, or a signal has ended it
    OnFailure,
    /// After every exit
    Always,
}

pub(super) const HOLDING: &str = "Holding";
pub(super) const STOPPING: &str = "When the lock is lost";
const COMMAND: &str = "The command";

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    polylock::duration::parse(text)
}
