//! The options of a lock: how long a lease, how long to wait, how much of an outage to bear.

use std::time::Duration;

use crate::{ConfigError, url::Keys};

/// What a lock is asked for with, unless the caller says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// How long the lock outlives a holder that dies. It is renewed every third of it. By default 30 s, or what is next to that in the
    /// range of the [store](crate::Capabilities::ttl).
    pub ttl: Duration,
    /// How long to wait for the lock: without limit (`None`) by default.
    pub wait: Option<Duration>,
    /// How long the store may be unreachable, without a break, before waiting for a lock fails: 30 s by default.
    pub outage: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { ttl: Duration::from_secs(30), wait: None, outage: Duration::from_secs(30) }
    }
}

impl Options {
    /// Takes `polylock.ttl`, `polylock.wait` and `polylock.outage`.
    ///
    /// # Errors
    /// [`ConfigError`] on the key that is no duration.
    pub fn from_keys(keys: &mut Keys) -> Result<Self, ConfigError> {
        let default = Self::default();
        Ok(Self {
            ttl: keys.duration("polylock.ttl")?.unwrap_or(default.ttl),
            wait: keys.duration("polylock.wait")?,
            outage: keys.duration("polylock.outage")?.unwrap_or(default.outage),
        })
    }
}
