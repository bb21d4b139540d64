//! What can be written on the command line.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use polylock::Mode;

use crate::{exit, help, signals};

/// Runs a command under a distributed lock, and stops it before the lock can go to another.
#[derive(Debug, Parser)]
#[command(name = "polylock", version, about, after_long_help = help::EVERYWHERE, max_term_width = 110)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Everywhere")]
pub(crate) struct Global {
    /// The store, by URL: sqlite:///path/to/locks.db, redis://host, …; or env:VAR, or file:PATH
    ///
    /// Without it: $POLYLOCK_STORE, else the store of the run around this one, else `store` of the config file, else a SQLite
    /// file in your state directory. A URL
    /// with a password does not belong on a command line, where everybody can read it: use --store-env, env:VAR or
    /// file:PATH.
    #[arg(short = 'S', long, global = true, value_name = "URL", group = "which_store")]
    pub(crate) store: Option<String>,
    /// Take the store's URL from this environment variable
    #[arg(long, global = true, value_name = "VAR", group = "which_store")]
    pub(crate) store_env: Option<String>,
    /// Take the store and its settings from this profile of the config file
    #[arg(short = 'p', long, global = true, value_name = "NAME", group = "which_store")]
    pub(crate) profile: Option<String>,
    /// The config file [default: polylock/config.toml in your config directory]
    #[arg(long, global = true, value_name = "PATH", env = "POLYLOCK_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Output format
    #[arg(long, global = true, value_name = "FORMAT", value_enum, default_value_t)]
    pub(crate) output: Format,
    /// When to use colours; NO_COLOR, CLICOLOR_FORCE and TERM=dumb count, too
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value_t)]
    pub(crate) color: Color,
    /// Print nothing but errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Print more
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Text,
    /// One JSON document
    Json,
    /// One JSON object per line
    Jsonl,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command under a lock
    #[command(after_long_help = help::RUN)]
    Run(Box<Run>),
    /// Show who holds a lock and who waits for it
    #[command(after_long_help = help::STATUS)]
    Status {
        /// The lock
        name: String,
    },
    /// Show all locks in use
    #[command(after_long_help = help::STATUS)]
    List {
        /// Only those whose name starts with this
        #[arg(default_value = "", hide_default_value = true)]
        prefix: String,
    },
    /// Have the holder of a lock stop and release it
    #[command(after_long_help = help::BREAK)]
    Break(Break),
    /// End the start-up delay of Redlock servers that are known to be new
    #[command(after_long_help = help::ADMIT)]
    Admit {
        /// Don't ask for a confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Print the statements that make the store's tables, for an administrator to run
    #[command(after_long_help = help::SCHEMA)]
    Schema,
    /// Print the completions of a shell
    Completions {
        /// Which shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man {
        /// The page of this command instead of the main one
        command: Option<String>,
        /// Write all pages into this directory instead
        #[arg(long, value_name = "DIR", conflicts_with = "command")]
        dir: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Don't wait: give up at once if the lock is held elsewhere
    #[arg(short = 'n', long, visible_aliases = ["nb", "nonblock"], conflicts_with = "wait", help_heading = WAITING)]
    pub(crate) no_wait: bool,
    /// Wait at most this long; 0 is --no-wait [default: for ever]
    #[arg(short, long, visible_alias = "timeout", value_name = "DUR", value_parser = duration, help_heading = WAITING)]
    pub(crate) wait: Option<Duration>,
    /// How long the store may be unreachable before polylock gives up, also at the start [default: 30s]
    #[arg(long, value_name = "DUR", value_parser = duration, help_heading = WAITING)]
    pub(crate) outage: Option<Duration>,
    /// Exit with this code if the lock was not acquired
    #[arg(short = 'E', long, value_name = "N", default_value_t = exit::NOT_ACQUIRED, help_heading = WAITING)]
    pub(crate) conflict_exit_code: u8,
    /// Exit 0 without running the command if the lock is busy
    #[arg(long, help_heading = WAITING)]
    pub(crate) skip_ok: bool,
    /// Wait a random time up to this before trying to acquire the lock
    #[arg(long, value_name = "DUR", value_parser = duration, help_heading = WAITING)]
    pub(crate) jitter: Option<Duration>,

    /// Share the lock with others who share it (the same as --mode PR)
    #[arg(short, long, group = "how", help_heading = HOLDING)]
    pub(crate) shared: bool,
    /// Hold the lock alone (the same as --mode EX; the default)
    #[arg(short = 'x', long, group = "how", help_heading = HOLDING)]
    pub(crate) exclusive: bool,
    /// Hold the lock in one of the six modes NL, CR, CW, PR, PW, EX
    #[arg(long, value_name = "MODE", group = "how", help_heading = HOLDING)]
    pub(crate) mode: Option<Mode>,
    /// How long the lock outlives this process if it dies; it is renewed every third of it [default: 30s]
    #[arg(long, value_name = "DUR", value_parser = duration, help_heading = HOLDING)]
    pub(crate) ttl: Option<Duration>,
    /// Keep the lock at least this long, though the command ends sooner
    ///
    /// polylock does not wait for it: a last renewal sets the lease to what is left of this time. It does wait if the store can't give
    /// that lease: where a lock lives in a session (ZooKeeper, polylock.strategy=pessimistic), or beyond the store's longest lease.
    #[arg(long, value_name = "DUR", value_parser = duration, help_heading = HOLDING)]
    pub(crate) min_hold: Option<Duration>,
    /// Stop the command if it still runs after this long, and exit with 124
    #[arg(long, value_name = "DUR", value_parser = duration, help_heading = HOLDING)]
    pub(crate) max_hold: Option<Duration>,
    /// What it is for, shown to others who look or wait [default: user and command]
    #[arg(long, value_name = "TEXT", help_heading = HOLDING)]
    pub(crate) label: Option<String>,
    /// Inside another `polylock run` of the same lock: run under that one's hold instead of refusing
    #[arg(long, help_heading = HOLDING)]
    pub(crate) reentrant: bool,

    /// What to do with the command when the lock is lost
    #[arg(long, value_name = "WHAT", value_enum, default_value_t, help_heading = STOPPING)]
    pub(crate) on_lost: OnLost,
    /// The time between the signal and the kill [default: a third of the TTL]
    #[arg(long, value_name = "DUR", value_parser = duration, help_heading = STOPPING)]
    pub(crate) grace: Option<Duration>,
    /// The signal that requests the command to stop
    #[arg(long, value_name = "SIG", value_parser = signals::parse, default_value = "TERM", help_heading = STOPPING)]
    pub(crate) signal: rustix::process::Signal,
    /// Exit with this code if the lock was lost
    #[arg(long, value_name = "N", default_value_t = exit::LOST, value_parser = clap::value_parser!(u8).range(1..), help_heading = STOPPING)]
    pub(crate) lost_exit_code: u8,

    /// Leave the command in the terminal's foreground [default: if polylock itself is there]
    #[arg(long, help_heading = COMMAND)]
    pub(crate) foreground: bool,
    /// Leave the variable that holds the store's URL in the command's environment
    #[arg(long, help_heading = COMMAND)]
    pub(crate) keep_store_env: bool,
    /// Write events as JSON lines to this open file descriptor
    #[arg(long, value_name = "N", group = "status", help_heading = COMMAND)]
    pub(crate) status_fd: Option<u32>,
    /// Write events as JSON lines to this file
    #[arg(long, value_name = "PATH", group = "status", help_heading = COMMAND)]
    pub(crate) status_file: Option<PathBuf>,
    /// Run this command line with `sh -c`
    #[arg(short = 'c', long = "command", value_name = "CMDLINE", action = ArgAction::Set, conflicts_with = "command", help_heading = COMMAND)]
    pub(crate) command_line: Option<OsString>,

    /// The lock
    pub(crate) name: String,
    /// The command and its arguments, run without a shell; its own flags need no `--`
    #[arg(value_name = "CMD", trailing_var_arg = true, required_unless_present = "command_line")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Break {
    /// The lock
    pub(crate) name: String,
    /// Take the lock at once, though its holder may still be working
    ///
    /// The holder notices at its next renewal, within a third of its TTL. Until then it and the next holder may both work. Only
    /// what checks fencing tokens refuses the former holder at once.
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Don't ask for a confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// For what reason: the holder shows and logs it
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Wait at most this long until the holder has stopped; exit code 75 if it has not
    #[arg(short, long, value_name = "DUR", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
}

const WAITING: &str = "Waiting";
const HOLDING: &str = "Holding";
const STOPPING: &str = "When the lock is lost";
const COMMAND: &str = "The command";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum OnLost {
    /// Send --signal one grace period before another process can acquire the lock, then SIGKILL
    #[default]
    Term,
    /// Send SIGKILL only
    Kill,
    /// Let it run on; the exit code still shows the loss
    Continue,
}

impl Run {
    /// The mode that the flags ask for.
    pub(crate) fn mode(&self) -> Mode {
        match self.mode {
            Some(mode) => mode,
            None if self.shared => Mode::Shared,
            None => Mode::Exclusive,
        }
    }

    /// How long to wait: `None` is for ever, zero not at all.
    pub(crate) fn wait(&self) -> Option<Duration> {
        if self.no_wait { Some(Duration::ZERO) } else { self.wait }
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    polylock::duration::parse(text)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn run(args: &str) -> Result<Box<Run>, clap::Error> {
        match Cli::try_parse_from(format!("polylock run {args}").split(' '))?.command {
            Command::Run(run) => Ok(run),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_childs_flags_need_no_dashes() {
        let parsed = run("-n orders ls -l -n --wait 3").unwrap();
        assert_eq!(parsed.command, ["ls", "-l", "-n", "--wait", "3"]);
        assert!(parsed.no_wait && parsed.wait.is_none());
        assert_eq!(run("orders -n ls").unwrap().command, ["ls"]);
        assert_eq!(run("orders -- -odd").unwrap().command, ["-odd"]);
    }

    #[test]
    fn aliases_and_durations() {
        for same in ["--no-wait", "--nb", "--nonblock", "-n", "-w 0", "--timeout 0"] {
            assert_eq!(run(&format!("{same} x true")).unwrap().wait(), Some(Duration::ZERO), "{same}");
        }
        assert_eq!(run("-w 0.2 x true").unwrap().wait(), Some(Duration::from_millis(200)));
        assert_eq!(run("--timeout 1m30s x true").unwrap().wait(), Some(Duration::from_secs(90)));
        assert_eq!(run("x true").unwrap().wait(), None);
    }

    #[test]
    fn modes() {
        assert_eq!(run("x true").unwrap().mode(), Mode::Exclusive);
        assert_eq!(run("-s x true").unwrap().mode(), Mode::Shared);
        assert_eq!(run("--mode cw x true").unwrap().mode(), Mode::ConcurrentWrite);
    }

    #[test]
    fn contradictions_are_refused() {
        for odd in [
            "-s -x x true",
            "-n -w 3 x true",
            "-c true x true",
            "x",
            "--lost-exit-code 0 x true",
            "--signal NO x true",
            "-q -v x true",
            "-S memory: --store-env A x true",
        ] {
            assert!(run(odd).is_err(), "{odd}");
        }
        assert_eq!(run("x -c true").unwrap().command_line.unwrap(), "true");
    }
}
