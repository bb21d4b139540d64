//! The definition of the command line.

mod handles;
mod nearest_command;
mod serve;
mod supervised;

use std::{path::PathBuf, time::Duration};

#[cfg(feature = "check")]
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use polylock::Mode;

pub(crate) use self::handles::{Acquire, Handle, Renew};
pub(crate) use self::nearest_command::with_nearest_command;
pub(crate) use self::serve::Serve;
pub(crate) use self::supervised::{Elect, FOREVER, Once, Restart, Supervised, Waiting, duration};
use self::supervised::{HOLDING, STOPPING, WAITING, longer_than_zero, min_hold};
use crate::{exit, help};

/// Runs a command under a distributed lock, and stops it before another process can acquire the lock
#[derive(Debug, Parser)]
#[command(name = "polylock", version, about, after_long_help = help::MAIN, max_term_width = 110)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// URL of the store (sqlite:///path/to/locks.db, redis://host, …), or env:VAR or file:PATH to read it from there
    ///
    /// The default is $POLYLOCK_STORE, else the store of the outer `polylock run`, else `store` of the config file, else a SQLite
    /// file in your state directory. Other users can read a password on a command line: use --store-env, env:VAR or file:PATH for
    /// a URL with a password. `polylock bench` accepts it several times.
    #[arg(short = 'S', long, global = true, value_name = "URL", group = "store_source", action = ArgAction::Append)]
    pub(crate) store: Vec<String>,
    /// Read the store's URL from this environment variable
    #[arg(long, global = true, value_name = "VAR", group = "store_source")]
    pub(crate) store_env: Option<String>,
    /// Use the store and the settings of this profile of the config file
    #[arg(short = 'p', long, global = true, value_name = "NAME", group = "store_source")]
    pub(crate) profile: Option<String>,
    /// Path of the config file [default: polylock/config.toml in your config directory]
    #[arg(long, global = true, value_name = "PATH", env = "POLYLOCK_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Output format
    #[arg(long, global = true, value_name = "FORMAT", value_enum, default_value_t)]
    pub(crate) output: Format,
    /// When to use colours; auto also respects NO_COLOR, CLICOLOR_FORCE and TERM=dumb
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value_t)]
    pub(crate) color: Color,
    /// Print only errors and critical warnings
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Print details: the token, the store, the command's exit code, and the progress of a wait
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// Plain text
    #[default]
    Text,
    /// One JSON document
    Json,
    /// One JSON object per line
    Jsonl,
    /// Markdown; only of `polylock bench`
    Markdown,
}

impl Format {
    /// Returns true if messages are JSON objects.
    pub(crate) const fn is_json(self) -> bool {
        matches!(self, Self::Json | Self::Jsonl)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Color {
    /// Only on a terminal
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
    /// Keep a command running on exactly one machine: run it while this process leads an election
    #[command(after_long_help = help::ELECT)]
    Elect(Box<Elect>),
    /// Run a command once per period, over all machines
    #[command(after_long_help = help::ONCE)]
    Once(Box<Once>),
    /// Acquire a lock for a script, and print the handle with which `renew` and `release` find it
    #[command(after_long_help = help::ACQUIRE)]
    Acquire(Box<Acquire>),
    /// Extend the lease of a lock that `acquire` has acquired
    #[command(after_long_help = help::ACQUIRE)]
    Renew(Renew),
    /// Release a lock that `acquire` has acquired
    #[command(after_long_help = help::ACQUIRE)]
    Release(Handle),
    /// Show the holders and the waiters of a lock
    #[command(after_long_help = help::STATUS)]
    Status {
        /// Exit with 75 if the lock, or a slot with its name, has a holder
        #[arg(short, long)]
        exit_code: bool,
        /// Name of the lock
        name: String,
    },
    /// Show all locks that have a holder or a waiter
    #[command(after_long_help = help::STATUS)]
    List {
        /// Show only locks with names that start with this prefix
        #[arg(default_value = "", hide_default_value = true)]
        prefix: String,
    },
    /// Print grants, waits, losses and breaks as they happen
    #[command(after_long_help = help::WATCH)]
    Watch(Watch),
    /// Show all locks in use on the whole terminal, live
    #[command(after_long_help = help::TOP, hide = !cfg!(feature = "top"))]
    Top {
        /// Show only locks with names that start with this prefix
        #[arg(default_value = "", hide_default_value = true)]
        prefix: String,
    },
    /// Serve the locks of the store to programs in any language, over HTTP
    #[command(after_long_help = help::SERVE, hide = !cfg!(feature = "serve"))]
    Serve(Serve),
    /// Request the holder of a lock to stop and release it
    #[command(after_long_help = help::BREAK)]
    Break(Break),
    /// Check that the store keeps its promises
    #[command(after_long_help = help::CHECK, hide = !cfg!(feature = "check"))]
    Check(Check),
    /// Measure stores: latency, fairness, many waiters and locks, and the time until the lock of a killed process is free
    #[command(after_long_help = help::BENCH, hide = !cfg!(feature = "check"))]
    Bench(Bench),
    /// End the start-up delay of Redlock servers that are known to be new
    #[command(after_long_help = help::ADMIT)]
    Admit {
        /// Skip the confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Print the statements that create the store's tables, or a fence for your own, for an administrator to run
    #[command(after_long_help = help::SCHEMA)]
    Schema(Schema),
    /// Print the script for shell completions, which complete the names of locks, too
    Completions {
        /// Shell to generate them for
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man {
        /// Print the page of this command instead of the main page
        command: Option<String>,
        /// Write all pages into this existing directory instead
        #[arg(long, value_name = "DIR", conflicts_with = "command")]
        dir: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) waiting: Waiting,
    /// Exit 0 without running the command if the lock is busy
    #[arg(long, help_heading = WAITING)]
    pub(crate) skip_ok: bool,

    /// Share the lock with other shared holders (the same as --mode PR)
    #[arg(short, long, group = "lock_mode", help_heading = HOLDING)]
    pub(crate) shared: bool,
    /// Hold the lock exclusively (the same as --mode EX; the default)
    #[arg(short = 'x', long, group = "lock_mode", help_heading = HOLDING)]
    pub(crate) exclusive: bool,
    /// Hold the lock in one of the six modes NL, CR, CW, PR, PW, EX
    #[arg(long, value_name = "MODE", group = "lock_mode", help_heading = HOLDING)]
    pub(crate) mode: Option<Mode>,
    /// Keep the lock at least this long, even if the command ends sooner; at most 31d
    ///
    /// polylock does not wait until then: a last renewal sets the lease to the remaining time. It waits only if the lock belongs to a
    /// session (ZooKeeper, polylock.strategy=pessimistic), and while the remaining time is longer than the longest lease of the store
    /// or less than the shortest.
    #[arg(long, value_name = "DUR", value_parser = min_hold, allow_hyphen_values = true, help_heading = HOLDING)]
    pub(crate) min_hold: Option<Duration>,
    /// Stop the command after this time, and exit with 124
    #[arg(long, value_name = "DUR", value_parser = longer_than_zero, allow_hyphen_values = true, help_heading = HOLDING)]
    pub(crate) max_hold: Option<Duration>,
    /// Hold this lock, too; may be repeated
    ///
    /// The command runs while all of the locks are held: the loss of one stops it. They are acquired in the order of their names, not in
    /// that of the command line, so runs with several locks do not deadlock.
    #[arg(long, value_name = "NAME", action = ArgAction::Append, help_heading = HOLDING)]
    pub(crate) also: Vec<String>,
    /// Take one of N slots instead of the whole lock: up to N runs at the same time, each with the number of its slot in POLYLOCK_SLOT
    ///
    /// All runs with this name must have the same N. The slots are independent of the lock with this name.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), allow_negative_numbers = true, conflicts_with_all = ["also", "lock_mode", "reentrant"], help_heading = HOLDING)]
    pub(crate) slots: Option<u32>,
    /// Inside another `polylock run` of the same lock, run under its hold instead of failing
    ///
    /// This process must be a descendant of the outer run, which stops it with its own command. A process that only has the variables of
    /// that run is refused (64): a server such as tmux, at, systemd-run or docker exec has started it, and it would continue when that run
    /// ends.
    #[arg(long, help_heading = HOLDING)]
    pub(crate) reentrant: bool,

    /// How to stop the command when the lock is lost
    #[arg(long, value_name = "ACTION", value_enum, default_value_t, help_heading = STOPPING)]
    pub(crate) on_lost: OnLost,
    /// Exit code if the lock was lost, from 1 to 255
    #[arg(long, value_name = "N", default_value_t = exit::LOST, value_parser = clap::value_parser!(u8).range(1..), help_heading = STOPPING)]
    pub(crate) lost_exit_code: u8,

    #[command(flatten)]
    pub(crate) common: Supervised,
}

#[derive(Debug, Args)]
pub(crate) struct Schema {
    /// Print a fence for your own data instead: it refuses writes with a stale fencing token
    #[arg(long)]
    pub(crate) fence: bool,
    /// Print the trigger that guards the rows of this table, by the token in a column of it, instead of the function
    #[arg(long, value_name = "TABLE", requires = "fence")]
    pub(crate) table: Option<String>,
    /// The column of the table with the token [default: fencing_token]
    #[arg(long, value_name = "COLUMN", requires = "table")]
    pub(crate) column: Option<String>,
    /// Print the statements that remove the fence
    #[arg(long, requires = "fence")]
    pub(crate) drop: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// Watch only the lock with exactly this name
    #[arg(short = 'x', long, requires = "prefix")]
    pub(crate) exact: bool,
    /// Watch only locks with names that start with this prefix
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

#[derive(Debug, Args)]
pub(crate) struct Break {
    /// Name of the lock
    pub(crate) name: String,
    /// Break the hold of this slot (run --slots) instead of the lock; `status` shows the slots
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..1024), allow_negative_numbers = true)]
    pub(crate) slot: Option<u32>,
    /// Free the lock at once, even if its holder still works
    ///
    /// The former holder detects the loss at its next renewal, within a third of its TTL. Until then both it and the next holder may
    /// work. Only a resource that checks fencing tokens refuses the former holder at once.
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Break only the hold with this fencing token, as `status` shows it; may be repeated
    ///
    /// For scripts: a hold that begins after `status` is never broken. Without it, the holds are broken that the confirmation has shown or, with --yes,
    /// those that the lock has when the command starts.
    #[arg(short, long = "token", value_name = "TOKEN", value_parser = clap::value_parser!(i64).range(0..))]
    pub(crate) tokens: Vec<i64>,
    /// Skip the confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Reason of the break, which the holder shows and logs
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Wait until the holder has stopped, at most this long; exit with 75 if it has not
    #[arg(short, long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) wait: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// Run only this part; may be repeated
    #[arg(long, value_name = "PART", value_enum)]
    pub(crate) only: Vec<Part>,
    /// Duration of the part with faults [default: 15s; 5s with --quick]
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) seconds: Option<Duration>,
    /// Seed of the faults, to repeat the schedule of another run [default: random]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Take fewer measurements, and run a part of the conformance suite only
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write the report to this file, as one HTML page
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// A part of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// The settings of the server, and the capabilities of the store
    Settings,
    /// The time of an acquisition and a release, and of a hand-over
    Latency,
    /// The clocks of this machine and of the store
    Clock,
    /// The conformance suite
    Conformance,
    /// Processes that are stopped and killed while they use locks
    Faults,
}

#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// Measure only this part; may be repeated
    #[cfg(feature = "check")]
    #[arg(long, value_name = "PART", value_parser = bench_part())]
    pub(crate) only: Vec<polylock_bench::Part>,
    /// Time for each store, which the parts share [default: 30s; 8s with --quick]
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) seconds: Option<Duration>,
    /// Take less time, with fewer waiters, locks and kills
    #[arg(long)]
    pub(crate) quick: bool,
    /// Number of tasks that compete for one lock, and of those with locks of their own [default: 16]
    #[arg(long, value_name = "N", value_parser = count(4096))]
    pub(crate) contenders: Option<u32>,
    /// Number of waiters of one lock [default: 1000; 200 with --quick]
    #[arg(long, value_name = "N", value_parser = count(100_000))]
    pub(crate) waiters: Option<u32>,
    /// Number of locks that one process holds [default: 1000; 200 with --quick]
    #[arg(long, value_name = "N", value_parser = count(100_000))]
    pub(crate) held: Option<u32>,
    /// Number of processes that are killed [default: 5; 3 with --quick]
    #[arg(long, value_name = "N", value_parser = count(100))]
    pub(crate) kills: Option<u32>,
    /// Write the report with plots to this file, as one HTML page that loads nothing
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

fn count(most: i64) -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=most)
}

#[cfg(feature = "check")]
fn bench_part() -> impl TypedValueParser<Value = polylock_bench::Part> {
    let all = polylock_bench::Part::ALL;
    let find = move |name: String| {
        all.into_iter().find(|part| part.name() == name).ok_or_else(|| format!("there is no part {name}"))
    };
    PossibleValuesParser::new(all.map(polylock_bench::Part::name)).try_map(find)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum OnLost {
    /// Send --signal one grace period before another process can acquire the lock, then SIGKILL
    #[default]
    Term,
    /// Send SIGKILL only
    Kill,
    /// Let the command continue; the exit code still shows the loss
    Continue,
}

impl Command {
    /// Returns the descriptor of `--status-fd`.
    pub(crate) fn status_fd(&self) -> Option<u32> {
        match self {
            Self::Run(run) => run.common.status_fd,
            Self::Elect(elect) => elect.common.status_fd,
            Self::Once(once) => once.common.status_fd,
            _ => None,
        }
    }
}

impl Run {
    /// Returns a run with these options, that holds the lock exclusively.
    pub(crate) const fn exclusive(waiting: Waiting, common: Supervised) -> Self {
        Self {
            waiting,
            skip_ok: false,
            shared: false,
            exclusive: true,
            mode: None,
            min_hold: None,
            max_hold: None,
            also: Vec::new(),
            slots: None,
            reentrant: false,
            on_lost: OnLost::Term,
            lost_exit_code: exit::LOST,
            common,
        }
    }

    /// Returns the mode of the flags.
    pub(crate) fn mode(&self) -> Mode {
        match self.mode {
            Some(mode) => mode,
            None if self.shared => Mode::Shared,
            None => Mode::Exclusive,
        }
    }
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
    fn the_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_flags_of_the_command_need_no_separator() {
        let parsed = run("-n orders ls -l -n --wait 3").unwrap();
        assert_eq!(parsed.common.command, ["ls", "-l", "-n", "--wait", "3"]);
        assert!(parsed.waiting.no_wait && parsed.waiting.wait.is_none());
        assert_eq!(run("orders -n ls").unwrap().common.command, ["ls"]);
        assert_eq!(run("orders -- -odd").unwrap().common.command, ["-odd"]);
        let parsed = run("orders --also stock --also invoices ls --also x").unwrap();
        assert_eq!(parsed.also, ["stock", "invoices"]);
        assert_eq!(parsed.common.command, ["ls", "--also", "x"]);
    }

    #[test]
    fn aliases_and_durations() {
        for same in ["--no-wait", "--nb", "--nonblock", "-n", "-w 0", "--timeout 0"] {
            assert_eq!(
                run(&format!("{same} x true")).unwrap().waiting.limit(),
                Some(Duration::ZERO),
                "{same}"
            );
        }
        assert_eq!(run("-w 0.2 x true").unwrap().waiting.limit(), Some(Duration::from_millis(200)));
        assert_eq!(run("--timeout 1m30s x true").unwrap().waiting.limit(), Some(Duration::from_secs(90)));
        assert_eq!(run("x true").unwrap().waiting.limit(), None);
    }

    #[test]
    fn modes() {
        assert_eq!(run("x true").unwrap().mode(), Mode::Exclusive);
        assert_eq!(run("-s x true").unwrap().mode(), Mode::Shared);
        assert_eq!(run("--mode cw x true").unwrap().mode(), Mode::ConcurrentWrite);
    }

    #[test]
    fn conflicting_flags_are_refused() {
        for invalid in [
            "-s -x x true",
            "-n -w 3 x true",
            "-c true x true",
            "--slots 0 x true",
            "--slots 4 -s x true",
            "--slots 4 --also y x true",
            "x",
            "--lost-exit-code 0 x true",
            "--signal NO x true",
            "-q -v x true",
            "-S memory: --store-env A x true",
        ] {
            assert!(run(invalid).is_err(), "{invalid}");
        }
        assert_eq!(run("x -c true").unwrap().common.command_line.unwrap(), "true");
    }
}
