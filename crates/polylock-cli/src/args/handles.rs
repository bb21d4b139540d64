//! The arguments of the commands for holds without a process.

use std::time::Duration;

use clap::{Args, value_parser};
use polylock::Mode;

use super::{Waiting, duration, supervised::HOLDING};

#[derive(Debug, Args)]
pub(crate) struct Acquire {
    #[command(flatten)]
    pub(crate) waiting: Waiting,

    /// Lease of the hold: it ends after this time unless `polylock renew` extends it
    #[arg(long = "for", value_name = "DUR", value_parser = duration, allow_hyphen_values = true, default_value = "1h", help_heading = HOLDING)]
    pub(crate) lease: Duration,
    /// Renew the hold until this command gets SIGTERM or SIGINT, and release it then
    #[arg(long, group = "keeper", conflicts_with = "lease", help_heading = HOLDING)]
    pub(crate) hold: bool,
    /// Renew the hold in the background as long as the process PID exists, and release it then
    #[arg(long, value_name = "PID", group = "keeper", conflicts_with = "lease", value_parser = value_parser!(i32).range(1..), help_heading = HOLDING)]
    pub(crate) while_pid: Option<i32>,
    /// Share the lock with other shared holders (the same as --mode PR)
    #[arg(short, long, conflicts_with = "mode", help_heading = HOLDING)]
    pub(crate) shared: bool,
    /// Hold the lock in one of the six modes NL, CR, CW, PR, PW, EX
    #[arg(long, value_name = "MODE", help_heading = HOLDING)]
    pub(crate) mode: Option<Mode>,
    /// Purpose of the hold, shown by `polylock status` and to waiters [default: your user name]
    #[arg(long, value_name = "TEXT", help_heading = HOLDING)]
    pub(crate) label: Option<String>,

    /// Name of the lock
    pub(crate) name: String,
}

impl Acquire {
    /// Returns the mode of the flags.
    pub(crate) fn mode(&self) -> Mode {
        self.mode.unwrap_or(if self.shared { Mode::Shared } else { Mode::Exclusive })
    }
}

#[derive(Debug, Args)]
pub(crate) struct Renew {
    /// Lease of the hold from now on [default: the lease before]
    #[arg(long = "for", value_name = "DUR", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) lease: Option<Duration>,
    #[command(flatten)]
    pub(crate) handle: Handle,
}

#[derive(Debug, Args)]
pub(crate) struct Handle {
    /// Handle that `polylock acquire` has printed, or - to read it from stdin
    ///
    /// The handle suffices to release the lock, and other users of the machine can read command lines: pass it by stdin there.
    pub(crate) handle: String,
}
