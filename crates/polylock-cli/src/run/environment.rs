//! The environment of the command, which a nested run reads.

use std::{process::Command, time::Duration};

use polylock::{Guard, LockName, Locks, Mode};

use crate::{
    exit::{Failure, USAGE},
    outer_run::{self, OUTER, OWNER},
    output::milliseconds,
    wall_clock,
};

const NAME: &str = "POLYLOCK_NAME";

/// Describes the hold and the store in the environment of `command`, and removes the variables in `hidden`.
pub(super) fn set_variables(
    command: &mut Command,
    guard: &Guard,
    backend: &str,
    ttl: Duration,
    hidden: &[String],
    outer_store: &str,
) {
    for variable in hidden {
        command.env_remove(variable);
    }
    command
        .env(NAME, guard.name().as_str())
        .env("POLYLOCK_MODE", guard.mode().code())
        .env("POLYLOCK_FENCING_TOKEN", guard.fencing_token().to_string())
        .env(OUTER, outer_run::owners().join("\n"))
        .env(OWNER, guard.owner().as_str())
        .env("POLYLOCK_BACKEND", backend)
        .env(outer_run::STORE, outer_store)
        .env("POLYLOCK_TTL_MS", milliseconds(ttl).to_string())
        .env("POLYLOCK_EXPIRES_AT_MS", wall_clock::epoch_ms_in(guard.remaining()).to_string());
}

/// Returns true if an outer run already holds `name`: waiting for it would never end.
///
/// # Errors
/// If an outer run holds it, and `--reentrant` was not given, or the outer run holds it in a weaker mode.
pub(super) async fn is_held_by_outer_run(
    locks: &Locks,
    name: &LockName,
    mode: Mode,
    reentrant: bool,
) -> Result<bool, Failure> {
    let owners = outer_run::owners();
    if owners.is_empty() {
        return Ok(false);
    }
    let status = locks.inspect(name).await?;
    let Some(held) =
        status.holders.iter().find(|holder| owners.iter().any(|owner| owner == holder.owner.as_str()))
    else {
        return Ok(false);
    };
    if !reentrant {
        let problem = format!(
            "this command runs under lock {name} already and would wait for itself; use --reentrant to run under that hold"
        );
        return Err(Failure::new(USAGE, problem));
    }
    if !held.mode.covers(mode) {
        let problem = format!(
            "the outer run holds lock {name} as {}, which is too weak for {mode}; run the outer one with --mode {mode}",
            held.mode
        );
        return Err(Failure::new(USAGE, problem));
    }
    Ok(true)
}
