//! The environment of the command, which a nested run reads.

use std::{env, process::Command, time::Duration};

use polylock::{Entry, Guard, LastRun, LockName, Locks, Mode, MultiGuard};

use super::{lock_names::LockNames, outer_warden::check_supervision};
use crate::{
    exit::{Failure, USAGE},
    outer_run::{self, OUTER, OWNER},
    output::milliseconds,
    wall_clock,
};

/// The locks of `--also` have the same two variables with a number, from 2: `POLYLOCK_NAME_2` and `POLYLOCK_FENCING_TOKEN_2`.
const NAME: &str = "POLYLOCK_NAME";
const TOKEN: &str = "POLYLOCK_FENCING_TOKEN";
const SLOT: &str = "POLYLOCK_SLOT";
const ATTEMPT: &str = "POLYLOCK_ATTEMPT";
const PERIOD: &str = "POLYLOCK_PERIOD_BEGIN_MS";

/// Removes these variables.
pub(super) fn hide_variables(command: &mut Command, hidden: &[String]) {
    for variable in hidden {
        command.env_remove(variable);
    }
}

/// Describes the locks and their hold.
pub(super) fn describe_hold(command: &mut Command, guard: &MultiGuard, names: &LockNames) {
    // An outer run may have more locks.
    let of_outer_run = |variable: &str| {
        let numbered = [NAME, TOKEN].iter().find_map(|of| variable.strip_prefix(*of)?.strip_prefix('_'));
        numbered.is_some_and(|number| number.parse::<usize>().is_ok())
    };
    for (variable, _) in env::vars_os() {
        if variable.to_str().is_some_and(of_outer_run) {
            command.env_remove(variable);
        }
    }
    command.env_remove(SLOT);
    if let Some(slot) = names.slot() {
        command.env(SLOT, slot.to_string());
    }
    for (index, (name, held)) in names.iter().zip(names.held()).enumerate() {
        let suffix = if index == 0 { String::new() } else { format!("_{}", index + 1) };
        let token = guard.fencing_token(held).map(|token| token.to_string()).unwrap_or_default();
        command.env(format!("{NAME}{suffix}"), name.as_str()).env(format!("{TOKEN}{suffix}"), token);
    }
    if let Some(main) = names.held().next().and_then(|name| guard.guard(name)) {
        describe_owner(command, main);
    }
    command.env("POLYLOCK_EXPIRES_AT_MS", wall_clock::epoch_ms_in(guard.remaining()).to_string());
}

fn describe_owner(command: &mut Command, guard: &Guard) {
    command
        .env("POLYLOCK_MODE", guard.mode().code())
        .env(OUTER, outer_run::owners().join("\n"))
        .env(OWNER, guard.owner().as_str());
}

/// Describes the attempt of a job, if the command is one.
pub(super) fn describe_attempt(command: &mut Command, run: Option<&LastRun>) {
    command.env_remove(ATTEMPT).env_remove(PERIOD);
    if let Some(run) = run {
        command.env(ATTEMPT, run.attempt.to_string());
        command.env(PERIOD, milliseconds(run.period_begin).to_string());
    }
}

/// Describes the store and its leases.
pub(super) fn describe_store(command: &mut Command, backend: &str, ttl: Duration, outer_store: &str) {
    command
        .env("POLYLOCK_BACKEND", backend)
        .env(outer_run::STORE, outer_store)
        .env("POLYLOCK_TTL_MS", milliseconds(ttl).to_string());
}

/// Returns true if outer runs already hold all of the locks: waiting for them would never end.
///
/// # Errors
/// If outer runs hold any of them, and `--reentrant` was not given, or they do not hold all, or they hold one in a weaker mode, or they
/// do not supervise this process.
pub(super) async fn is_held_by_outer_run(
    locks: &Locks,
    names: &LockNames,
    mode: Mode,
    reentrant: bool,
) -> Result<bool, Failure> {
    let owners = outer_run::owners();
    if owners.is_empty() {
        return Ok(false);
    }
    let (mut held, mut missing) = (None, None);
    for name in names.iter() {
        if is_held(locks, name, mode, &owners, reentrant).await? {
            held = Some(name);
        } else {
            missing = Some(name);
        }
    }
    if let (Some(held), Some(missing)) = (held, missing) {
        let problem = format!(
            "the outer run holds lock {held}, but not lock {missing}; run the outer one with --also {missing}, or this one without lock \
             {held}"
        );
        return Err(Failure::new(USAGE, problem));
    }
    Ok(held.is_some())
}

/// Checks that a request for the lock `name` would not wait for an outer run, which waits for this command.
///
/// # Errors
/// If it would.
pub(crate) async fn ensure_waits_for_others(
    locks: &Locks,
    name: &LockName,
    mode: Mode,
) -> Result<(), Failure> {
    let owners = outer_run::owners();
    if owners.is_empty() {
        return Ok(());
    }
    let status = locks.inspect(name).await?;
    let held = status
        .holders
        .iter()
        .find(|holder| holder.mode.conflicts_with(mode) && outer_run::is_one_of(&owners, &holder.owner));
    held.map_or(Ok(()), |held| ensure_may_reenter(name, held, false))
}

/// Returns true if one of the outer runs, with these `owners`, holds the lock `name`.
async fn is_held(
    locks: &Locks,
    name: &LockName,
    mode: Mode,
    owners: &[String],
    reentrant: bool,
) -> Result<bool, Failure> {
    let status = locks.inspect(name).await?;
    let held = status.holders.iter().find(|holder| outer_run::is_one_of(owners, &holder.owner));
    let Some(held) = held else { return Ok(false) };
    ensure_may_reenter(name, held, reentrant)?;
    if !held.mode.covers(mode) {
        let problem = format!(
            "the outer run holds lock {name} as {}, which is too weak for {mode}; run the outer one with --mode {mode}",
            held.mode
        );
        return Err(Failure::new(USAGE, problem));
    }
    Ok(true)
}

/// Checks that this process may run under the hold `held` of an outer run, and has been told to.
fn ensure_may_reenter(name: &LockName, held: &Entry, reentrant: bool) -> Result<(), Failure> {
    let supervision = check_supervision(held.owner.as_str());
    // Where it is unknown, a process most likely is a descendant of the run in its variables.
    if !reentrant && (supervision.is_ok() || cfg!(not(target_os = "linux"))) {
        let problem = format!(
            "this command runs under lock {name} already and would wait for itself; `polylock run --reentrant` runs a command under that \
             hold"
        );
        return Err(Failure::new(USAGE, problem));
    }
    if let Err(reason) = supervision {
        let problem = format!(
            "the outer run holds lock {name}, but does not supervise this process: {reason}; start it from the command of the outer run, \
             or unset {OWNER} and {OUTER} to wait for the lock"
        );
        return Err(Failure::new(USAGE, problem));
    }
    Ok(())
}
