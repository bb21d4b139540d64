//! Shell completions. The scripts of the shells call this program, because only the store knows the names of its locks.

mod bash;
mod programs;

use std::{
    env,
    ffi::{OsStr, OsString},
    io::{self, Write as _},
    os::unix::ffi::OsStrExt,
    path::Path,
    process::ExitCode,
    sync::mpsc,
    thread,
    time::Duration,
};

use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches};
use clap_complete::{
    ArgValueCandidates, ArgValueCompleter, CompleteEnv, CompletionCandidate, PathCompleter, Shell,
    engine::ValueCompleter,
    env::{Elvish, Fish, Powershell, Shells, Zsh},
};
use polylock::{LockStatus, Locks, StoreUrl};

use self::bash::Bash;
use crate::{
    args::{self, Cli, Global},
    output::{Output, owner_and_label},
    store,
};

/// The variable by which the script of a shell requests completions.
const VARIABLE: &str = "_POLYLOCK_COMPLETE";

/// The time limit for the names of locks, unless [`LIMIT_VARIABLE`] is set: the user waits for them at a prompt.
const TIME_LIMIT: Duration = Duration::from_millis(300);

/// The variable with another time limit, for a store that is far away.
const LIMIT_VARIABLE: &str = "POLYLOCK_COMPLETION_TIMEOUT";

const SHELLS: Shells<'static> = Shells(&[&Bash, &Elvish, &Fish, &Powershell, &Zsh]);

/// Prints completions, if the script of a shell has started this process for that. It reports no error: a user who completes a word has
/// run no command.
pub(crate) fn main() -> Option<ExitCode> {
    env::var_os(VARIABLE)?;
    // A panic must not disturb the prompt either.
    std::panic::set_hook(Box::new(|_| {}));
    let completions = CompleteEnv::with_factory(cli).var(VARIABLE).shells(SHELLS);
    let is_done = completions.try_complete(env::args_os(), env::current_dir().ok().as_deref());
    io::stdout().flush().ok();
    match is_done {
        Ok(false) => None,
        // This does not wait for a store that does not reply.
        done => signal_hook::low_level::exit(done.is_err().into()),
    }
}

/// Returns the script of `shell`.
///
/// # Errors
/// If there is none.
pub(crate) fn script(shell: Shell) -> io::Result<String> {
    let name = shell.to_string();
    let completer = SHELLS.completer(&name).ok_or(io::ErrorKind::Unsupported)?;
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, "polylock", "polylock", "polylock", &mut script)?;
    Ok(String::from_utf8_lossy(&script).trim_start().to_owned())
}

/// Returns the command line with the completers of names, and of the command that `run`, `elect` or `once` runs.
fn cli() -> Command {
    let with_completer = |argument: Arg| match argument.get_id().as_str() {
        "name" | "prefix" | "also" if argument.is_positional() || argument.get_id() == "also" => {
            argument.add(ArgValueCandidates::new(lock_names))
        }
        "command" if argument.is_trailing_var_arg_set() => argument.add(ArgValueCompleter::new(command_word)),
        _ => argument,
    };
    Cli::command().mut_subcommands(|command| command.mut_args(with_completer))
}

/// Returns the names of the locks that have a holder or a waiter, in the store of the command line that is completed. Returns none if the
/// store does not reply within the time limit.
fn lock_names() -> Vec<CompletionCandidate> {
    let (sender, names) = mpsc::channel();
    // A thread of its own, because even the choice of the store may block: it may read a file.
    thread::spawn(move || sender.send(locks().unwrap_or_default()));
    let locks = names.recv_timeout(time_limit()).unwrap_or_default();
    locks.iter().filter(|lock| is_plain(lock.name.as_str())).map(candidate).collect()
}

/// Returns the time limit. An invalid one has no effect, because a completion prints no message.
fn time_limit() -> Duration {
    let text = env::var(LIMIT_VARIABLE).ok();
    text.and_then(|text| args::duration(&text).ok()).unwrap_or(TIME_LIMIT)
}

/// Returns the locks of the store.
fn locks() -> Option<Vec<LockStatus>> {
    let store = store::find(&global()?, &Output::of_worker()).ok()?;
    if is_created_by_opening(&store.config.clone().into_url().ok()?) {
        return None;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    runtime.block_on(async {
        let locks = Locks::builder_from_config(store.config).outage(Duration::ZERO).connect().await.ok()?;
        locks.list("").await.ok()
    })
}

/// Returns true if opening the store, or one of its two stores, would create a SQLite file.
fn is_created_by_opening(url: &StoreUrl) -> bool {
    url.stores().iter().any(is_created_by_opening)
        || url.scheme() == "sqlite" && !url.file().is_ok_and(|file| Path::new(&file).exists())
}

/// Returns the programs or files that begin with `current`, a word of the command that `run`, `elect` or `once` runs.
fn command_word(current: &OsStr) -> Vec<CompletionCandidate> {
    let command = |matches: ArgMatches| {
        ["run", "elect", "once"].iter().find_map(|name| matches.subcommand_matches(name).cloned())
    };
    let run = matches().and_then(command);
    let words = run.and_then(|run| Some(run.get_many::<OsString>("command")?.count()));
    if words.unwrap_or(0) > 1 || current.as_bytes().contains(&b'/') {
        return PathCompleter::any().complete(current);
    }
    programs::named(current).map(CompletionCandidate::new).collect()
}

/// Parses the command line that is completed, as far as it is one.
fn matches() -> Option<ArgMatches> {
    let words = env::args_os().skip_while(|word| word != "--").skip(1);
    Cli::command().ignore_errors(true).try_get_matches_from(words).ok()
}

/// Returns the global options of the command line that is completed.
fn global() -> Option<Global> {
    Global::from_arg_matches(&matches()?).ok()
}

/// Returns true if a shell takes the name as one word and does not interpret it. Other names are not completed: anybody who may use
/// the store can choose a name, and some shells insert it unquoted.
fn is_plain(name: &str) -> bool {
    let is_plain = |c: char| c.is_alphanumeric() || "/_.:@%+=,-".contains(c);
    name.chars().all(is_plain) && !name.starts_with(['-', '=', '%'])
}

fn candidate(lock: &LockStatus) -> CompletionCandidate {
    let help = match (lock.holders.first(), lock.waiters.len()) {
        (Some(holder), _) => format!("held by {}", owner_and_label(holder)),
        (None, waiters) => format!("{waiters} waiting"),
    };
    let help: String = help.chars().filter(|c| !c.is_control()).collect();
    CompletionCandidate::new(lock.name.as_str()).help(Some(help.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_a_shell_would_interpret_is_not_completed() {
        for name in ["orders/42", "a:b", "tenant=3", "größe", "x@y.z,1+2%", "a-b_c"] {
            assert!(is_plain(name), "{name}");
        }
        for name in [
            "$(reboot)",
            "`x`",
            "a b",
            "a;b",
            "*",
            "~root",
            "a'b",
            "a\"b",
            "-x",
            "a\\b",
            "a\nb",
            "{a,b}",
            "!x",
            "#x",
            "=x",
        ] {
            assert!(!is_plain(name), "{name}");
        }
    }
}
