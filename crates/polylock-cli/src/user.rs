//! The user of this process, for people.

use std::env;

/// The user's name as the environment tells it, or the number.
pub(crate) fn name() -> String {
    let name = ["LOGNAME", "USER"]
        .into_iter()
        .find_map(|variable| env::var(variable).ok().filter(|name| !name.is_empty()));
    name.unwrap_or_else(|| format!("user {}", rustix::process::getuid().as_raw()))
}
