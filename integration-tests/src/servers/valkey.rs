//! Valkey. It is started and queried like [Redis](mod@super::redis).

use polylock_testkit::Missing;

use super::{
    private::{self, PrivateServer},
    redis::{Product, Redis},
};

/// Starts one with `settings`: lines of its `valkey.conf`, such as `maxmemory-policy allkeys-lru`.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If the server does not start, with its log.
pub fn start(settings: &[&str]) -> Result<PrivateServer, Missing> {
    private::start(Redis::of(&VALKEY, settings))
}

pub(super) const VALKEY: Product = Product {
    name: "valkey",
    program: "valkey-server",
    advice: "run scripts/test.sh, which fetches it, or name a server in POLYLOCK_TEST_VALKEY_URL",
};
