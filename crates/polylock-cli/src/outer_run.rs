//! The variables by which a nested run finds the outer runs and their store.

use std::env;

use polylock::OwnerId;

pub(crate) const OWNER: &str = "POLYLOCK_OWNER";
/// The owners of all outer runs except the innermost, one a line: an owner contains no line feed.
pub(crate) const OUTER: &str = "POLYLOCK_OUTER";
/// The wardens of the outer runs, one a line: the pid, the start time, the PID namespace and the boot of the machine, and the owner.
pub(crate) const WARDENS: &str = "POLYLOCK_WARDENS";
/// The variable with the reference for a nested run: a URL without secrets, `file:PATH`, `config:PATH`, `config:PATH#PROFILE`, or a URL
/// with secrets replaced by `***`.
pub(crate) const STORE: &str = "POLYLOCK_OUTER_STORE";

/// Returns true if this process runs under the lock of another `polylock run`.
pub(crate) fn is_nested() -> bool {
    !owners().is_empty()
}

/// Returns the owners of the outer runs.
pub(crate) fn owners() -> Vec<String> {
    let variable = |name| env::var(name).unwrap_or_default();
    let mut owners: Vec<String> = variable(OUTER).lines().map(ToOwned::to_owned).collect();
    owners.extend(Some(variable(OWNER)).filter(|owner| !owner.is_empty()));
    owners
}

/// Returns true if `owner` is one of these owners of outer runs.
pub(crate) fn is_one_of(owners: &[String], owner: &OwnerId) -> bool {
    owners.iter().any(|outer| outer == owner.as_str())
}
