//! What the command finds in its environment, and what a nested run finds there.

use std::{env, process::Command, time::Duration};

use polylock::{Guard, LockName, Locks, Mode};

use crate::{
    exit::{Failure, USAGE},
    output::milliseconds,
    store::OUTER_STORE,
    wall_clock,
};

const NAME: &str = "POLYLOCK_NAME";
const OWNER: &str = "POLYLOCK_OWNER";
/// The owners of all runs around this one but the innermost, one a line: an owner holds no line's end.
const OUTER: &str = "POLYLOCK_OUTER";

/// Describes the hold and the store in the environment of `command`, and removes the variables in `hidden`.
pub(super) fn describe(
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
        .env(OUTER, outer_owners().join("\n"))
        .env(OWNER, guard.owner().as_str())
        .env("POLYLOCK_BACKEND", backend)
        .env(OUTER_STORE, outer_store)
        .env("POLYLOCK_TTL_MS", milliseconds(ttl).to_string())
        .env("POLYLOCK_EXPIRES_AT_MS", wall_clock::epoch_ms_in(guard.remaining()).to_string());
}

/// Whether this process runs under the lock of another `polylock run`.
pub(crate) fn is_nested() -> bool {
    !outer_owners().is_empty()
}

/// The owners of the runs around this one.
fn outer_owners() -> Vec<String> {
    let variable = |name| env::var(name).unwrap_or_default();
    let mut owners: Vec<String> = variable(OUTER).lines().map(ToOwned::to_owned).collect();
    owners.extend(Some(variable(OWNER)).filter(|owner| !owner.is_empty()));
    owners
}

/// Whether an outer run holds `name` already: waiting for it would last for ever.
///
/// # Errors
/// It does, and `--reentrant` was not given, or it holds it in a weaker mode.
pub(super) async fn is_held_outside(
    locks: &Locks,
    name: &LockName,
    mode: Mode,
    reentrant: bool,
) -> Result<bool, Failure> {
    let owners = outer_owners();
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
            "this command runs under lock {name} already, and would wait for itself; use --reentrant to run under that hold"
        );
        return Err(Failure::new(USAGE, problem));
    }
    if !held.mode.covers(mode) {
        let problem =
            format!("the outer run holds lock {name} as {}, which is too weak for {mode}", held.mode);
        return Err(Failure::new(USAGE, problem));
    }
    Ok(true)
}
