//! Valkey, which is started and asked as [Redis](mod@super::redis) is.

use polylock_testkit::Missing;

use super::{
    Private,
    redis::{Make, Redis},
};

/// Starts one with `settings`: lines of its `valkey.conf`, such as `maxmemory-policy allkeys-lru`.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If it does not start, with its log.
pub fn start(settings: &[&str]) -> Result<Private, Missing> {
    super::start(Redis::of(&VALKEY, settings))
}

pub(super) const VALKEY: Make = Make {
    name: "valkey",
    program: "valkey-server",
    advice: "run scripts/test.sh, which fetches it, or name a server in POLYLOCK_TEST_VALKEY_URL",
};
