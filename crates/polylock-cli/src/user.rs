//! The user of this process, for display.

use std::env;

use nix::unistd::{User, getuid};

/// Returns the user's name from the environment or, where cron and service managers set no variables, from the system; or the numeric id.
pub(crate) fn name() -> String {
    let name = ["LOGNAME", "USER"]
        .into_iter()
        .find_map(|variable| env::var(variable).ok().filter(|name| !name.is_empty()));
    let known = || User::from_uid(getuid()).ok().flatten().map(|user| user.name);
    name.or_else(known).unwrap_or_else(|| format!("user {}", getuid()))
}
