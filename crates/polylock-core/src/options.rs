//! The options of a lock: its TTL, the limit for waiting, and the limit for outages.

use std::time::Duration;

use crate::{ConfigError, url::Keys};

/// The default settings of locks, which each lock can replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The time after which the lock of a dead holder is free. The lock is renewed every third of it. By default 30 s, or the
    /// nearest time in the range of the [store](crate::Capabilities::ttl).
    pub ttl: Duration,
    /// The time limit for waiting: none (`None`) by default.
    pub wait: Option<Duration>,
    /// The time for which the store may be unreachable, without interruption, before waiting for a lock fails: 30 s by default.
    pub outage: Duration,
    /// True if a try is repeated, too, while the store is unavailable.
    pub(crate) tries_wait_for_store: bool,
    /// The time after which a waiting request is checked for a [deadlock](crate::Error::Deadlock); none (`None`) by default.
    ///
    /// It requires that every owner other than a whole process (`host:pid`) is one thread of control: while it waits for a lock, it releases none.
    /// Otherwise requests that are in no deadlock may be refused.
    pub deadlock_check: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(30),
            wait: None,
            outage: Duration::from_secs(30),
            tries_wait_for_store: false,
            deadlock_check: None,
        }
    }
}

impl Options {
    /// Returns how long the store may be unreachable before a request fails. For a try it is zero, unless its lock has an outage of its own.
    pub(crate) fn outage_of(&self, is_try: bool) -> Duration {
        if is_try && !self.tries_wait_for_store { Duration::ZERO } else { self.outage }
    }

    /// The keys of these settings.
    pub const KEYS: [&str; 4] =
        ["polylock.ttl", "polylock.wait", "polylock.outage", "polylock.deadlock_check"];

    /// Takes `polylock.ttl`, `polylock.wait`, `polylock.outage` and `polylock.deadlock_check`.
    ///
    /// # Errors
    /// [`ConfigError`] on the key if its value is not a valid duration.
    pub fn from_keys(keys: &mut Keys) -> Result<Self, ConfigError> {
        let default = Self::default();
        Ok(Self {
            ttl: keys.duration("polylock.ttl")?.unwrap_or(default.ttl),
            wait: keys.duration("polylock.wait")?,
            outage: keys.duration("polylock.outage")?.unwrap_or(default.outage),
            tries_wait_for_store: default.tries_wait_for_store,
            deadlock_check: keys.duration("polylock.deadlock_check")?,
        })
    }
}
