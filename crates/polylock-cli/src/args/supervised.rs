//! The arguments of the commands that run a command under a lock.

use std::{ffi::OsString, net::SocketAddr, path::PathBuf, time::Duration};

use clap::{ArgAction, Args, ValueEnum};
use polylock::{InvalidTimeZone, LocksBuilder, TimeZone};

use crate::{exit, signals};

/// The options of a command under a lock that `run`, `elect` and `once` share.
#[derive(Debug, Args)]
pub(crate) struct Supervised {
    /// Length of the lease: the time until the lock of a dead holder is free; renewed at every third of it [default: 30s]
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true, help_heading = HOLDING)]
    pub(crate) ttl: Option<Duration>,
    /// Purpose of the hold, shown by `polylock status` and to waiters [default: user and program name]
    #[arg(long, value_name = "TEXT", help_heading = HOLDING)]
    pub(crate) label: Option<String>,

    /// Time between the signal and SIGKILL, at most half of the TTL [default: a third of the TTL]
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true, help_heading = STOPPING)]
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
    ///
    /// It may be a FIFO that nobody reads yet: polylock says so, and writes the events when somebody reads it.
    #[arg(long, value_name = "PATH", group = "status", help_heading = COMMAND)]
    pub(crate) status_file: Option<PathBuf>,
    /// Serve the metrics of this run to Prometheus at http://ADDR/metrics, such as 127.0.0.1:9464, until the command has ended
    #[arg(long, value_name = "ADDR", value_parser = address, help_heading = COMMAND, hide = !cfg!(feature = "metrics"))]
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

/// The options of a wait that `run` and `once` share.
#[derive(Debug, Args)]
pub(crate) struct Waiting {
    /// Do not wait: fail at once if the lock is held elsewhere
    #[arg(short = 'n', long, visible_aliases = ["nb", "nonblock"], conflicts_with = "wait", help_heading = WAITING)]
    pub(crate) no_wait: bool,
    /// Maximum time to wait for the lock; 0 is the same as --no-wait [default: no limit]
    #[arg(short, long, visible_alias = "timeout", value_name = "DUR", value_parser = duration, allow_hyphen_values = true, help_heading = WAITING)]
    pub(crate) wait: Option<Duration>,
    /// Maximum time for which the store may be unreachable, also at the start, before polylock gives up [default: 30s]
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true, help_heading = WAITING)]
    pub(crate) outage: Option<Duration>,
    /// Exit code if the lock was not acquired
    #[arg(short = 'E', long, value_name = "N", default_value_t = exit::NOT_ACQUIRED, help_heading = WAITING)]
    pub(crate) conflict_exit_code: u8,
    /// Wait a random time, up to this duration, before requesting the lock
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true, help_heading = WAITING)]
    pub(crate) jitter: Option<Duration>,
}

impl Waiting {
    /// Returns a wait for other holders and for the store without a limit.
    pub(crate) const fn forever() -> Self {
        Self {
            no_wait: false,
            wait: Some(FOREVER),
            outage: Some(FOREVER),
            conflict_exit_code: exit::NOT_ACQUIRED,
            jitter: None,
        }
    }

    /// Returns the time limit of the wait: `None` is no limit, zero is one try.
    pub(crate) fn limit(&self) -> Option<Duration> {
        if self.no_wait { Some(Duration::ZERO) } else { self.wait }
    }

    /// Returns the `--outage` of a request that is tried once: it waits for the store, and not for other holders.
    pub(crate) fn outage_of_try(&self) -> Option<Duration> {
        self.outage.filter(|_| self.limit() == Some(Duration::ZERO))
    }

    /// Draws the time to wait before the lock is requested.
    pub(crate) fn delay(&self) -> Option<Duration> {
        // Without a random source it is all of it.
        let part = || f64::from(getrandom::u32().unwrap_or(u32::MAX)) / f64::from(u32::MAX);
        self.jitter.map(|whole| whole.mul_f64(part()))
    }

    /// Applies the limits to the opening of the store, with which the wait begins.
    pub(crate) fn limit_connect(&self, mut locks: LocksBuilder) -> LocksBuilder {
        if let Some(outage) = self.outage {
            locks = locks.outage(outage);
        }
        if let Some(wait) = self.limit()
            // A command that does not wait for other holders may still wait for the store.
            && self.outage_of_try().is_none()
        {
            locks = locks.wait(wait);
        }
        locks
    }
}

#[derive(Debug, Args)]
pub(crate) struct Elect {
    /// When to campaign again after the command has exited by itself, instead of exiting with its code
    #[arg(long, value_name = "WHEN", value_enum, default_value_t, help_heading = COMMAND)]
    pub(crate) restart: Restart,
    /// Time before this process campaigns again after the command has exited by itself
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true, default_value = "1s", help_heading = COMMAND)]
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

#[derive(Debug, Args)]
pub(crate) struct Once {
    /// Length of a period, in which the command runs once, from 1s
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true, default_value = "1d", help_heading = PERIOD)]
    pub(crate) every: Duration,
    /// Begin of a period, as a time of day in the time zone, if a period divides a day or consists of whole days
    #[arg(long, value_name = "HH:MM", value_parser = time_of_day, default_value = "00:00", help_heading = PERIOD)]
    pub(crate) at: Duration,
    /// Time zone whose days the periods are, such as Europe/London; local is that of this machine [default: UTC]
    #[arg(long, value_name = "ZONE", value_parser = time_zone, help_heading = PERIOD)]
    pub(crate) time_zone: Option<TimeZone>,
    /// Number of further attempts in a period, on any machine, after one that has failed or whose machine has died
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true, help_heading = PERIOD)]
    pub(crate) retries: u32,

    #[command(flatten)]
    pub(crate) waiting: Waiting,
    #[command(flatten)]
    pub(crate) common: Supervised,
}

pub(super) const HOLDING: &str = "Holding";
pub(super) const STOPPING: &str = "When the lock is lost";
pub(super) const WAITING: &str = "Waiting";
const PERIOD: &str = "The period";
const COMMAND: &str = "The command";

/// A wait without an end: longer than the clock counts.
pub(crate) const FOREVER: Duration = Duration::from_secs(1000 * 365 * 24 * 3600);

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    polylock::duration::parse(text)
}

/// Parses a duration that may not be 0.
pub(super) fn longer_than_zero(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("it would stop the command at once: omit it for no limit".to_owned()),
        duration => Ok(duration),
    }
}

/// Parses the time for which a lock is kept after a short command. polylock waits for the end of a long one, so a typing error would show late.
pub(super) fn min_hold(text: &str) -> Result<Duration, String> {
    const LONGEST: Duration = Duration::from_secs(31 * 24 * 3600);
    let hold = duration(text)?;
    if hold > LONGEST {
        return Err("it is longer than 31d; a job that must not run again is one of `polylock once --every`"
            .to_owned());
    }
    Ok(hold)
}

/// Parses an address to listen at.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let port = if text.parse::<u16>().is_ok() { text } else { "9464" };
        format!("write an IP address and a port, such as 127.0.0.1:{port} or [::]:{port}")
    })
}

/// Parses a time of day, as the time since midnight.
fn time_of_day(text: &str) -> Result<Duration, String> {
    let two_digits = |part: &str, end: u64| {
        let number =
            part.parse::<u64>().ok().filter(|_| part.len() == 2 && part.bytes().all(|b| b.is_ascii_digit()));
        number.filter(|number| *number < end)
    };
    let time = text.split_once(':').and_then(|(hours, minutes)| {
        Some(Duration::from_secs(3600 * two_digits(hours, 24)? + 60 * two_digits(minutes, 60)?))
    });
    time.ok_or_else(|| format!("{text:?} is not a time of day: write hours and minutes, such as 02:30"))
}

/// Parses the name of a time zone.
fn time_zone(text: &str) -> Result<TimeZone, InvalidTimeZone> {
    if text == "local" { TimeZone::local() } else { TimeZone::named(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_day_has_two_numbers() {
        assert_eq!(time_of_day("02:30"), Ok(Duration::from_secs(9000)));
        assert_eq!(time_of_day("23:59"), Ok(Duration::from_secs(24 * 3600 - 60)));
        for invalid in ["", "2:30", "24:00", "02:60", "02", "02:30:00", "+2:30", "-1:00", "\u{0662}:30"] {
            assert!(time_of_day(invalid).is_err(), "{invalid}");
        }
    }
}
