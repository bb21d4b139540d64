//! The user of this process, for display.

use std::env;

/// Returns the user's name from the environment, or the numeric id.
pub(crate) fn name() -> String {
    let name = ["LOGNAME", "USER"]
        .into_iter()
        .find_map(|variable| env::var(variable).ok().filter(|name| !name.is_empty()));
    name.unwrap_or_else(|| format!("user {}", rustix::process::getuid().as_raw()))
}
