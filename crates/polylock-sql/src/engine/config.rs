//! What the configurations of the stores on servers have in common.

use std::{str::FromStr, time::Duration};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use polylock_core::{
    ConfigError,
    url::{Keys, StoreUrl},
};

use super::table;
use crate::pessimistic::Strategy;

/// The limits of `polylock.timeout`.
const TIMEOUTS: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(600);
/// The limits of `polylock.connections`.
const CONNECTIONS: std::ops::RangeInclusive<u32> = 1..=1000;

/// What is configured alike for every server.
#[derive(Debug, Clone)]
pub(crate) struct Common {
    pub(crate) table: String,
    pub(crate) timeout: Duration,
    pub(crate) connections: u32,
    pub(crate) strategy: Strategy,
}

impl Common {
    pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
    pub(crate) const DEFAULT_CONNECTIONS: u32 = 8;

    /// Those of `keys`, and the defaults of those that are not there.
    ///
    /// # Errors
    /// [`ConfigError`] on what can't be read.
    pub(crate) fn read(keys: &mut Keys) -> Result<Self, ConfigError> {
        Ok(Self {
            table: keys.text("polylock.table").unwrap_or_else(|| table::DEFAULT.to_owned()),
            timeout: keys.duration("polylock.timeout")?.unwrap_or(Self::DEFAULT_TIMEOUT),
            connections: keys.read("polylock.connections", str::parse)?.unwrap_or(Self::DEFAULT_CONNECTIONS),
            strategy: keys.choice("polylock.strategy", &Strategy::WORDS)?.unwrap_or_default(),
        })
    }

    /// # Errors
    /// [`ConfigError`] on what makes no sense.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        table::check(&self.table)?;
        if !TIMEOUTS.contains(&self.timeout) {
            return Err(ConfigError::new("polylock.timeout", "must be 100ms to 10m"));
        }
        if !CONNECTIONS.contains(&self.connections) {
            return Err(ConfigError::new("polylock.connections", "must be 1 to 1000"));
        }
        Ok(())
    }

    /// There are tables of another strategy, `foreign`.
    pub(crate) fn in_use(&self, foreign: &str) -> ConfigError {
        let problem = format!(
            "the tables named {:?} are in use with {foreign}, which does not exclude this: use that, or another \
             polylock.table",
            self.table
        );
        ConfigError::new("polylock.strategy", problem)
    }
}

/// What the driver makes of `url`, read under the driver's own `scheme`, with those of `keys` that are the driver's.
///
/// # Errors
/// [`ConfigError`] on key `store` if the driver can't read it.
pub(crate) fn driver_options<O: FromStr<Err = sqlx::Error>>(
    scheme: &str,
    url: &StoreUrl,
    keys: &mut Keys,
    passed: &[&'static str],
) -> Result<O, ConfigError> {
    let example = || format!("write {scheme}://user:password@host/database");
    if !url.rest().starts_with("//") {
        return Err(ConfigError::new("store", format!("names no server: {}", example())));
    }
    let mut text = format!("{scheme}:{}", url.rest());
    let mut joint = '?';
    for key in passed {
        if let Some(value) = keys.text(key) {
            text.extend([joint.to_string().as_str(), key, "="]);
            text.extend(utf8_percent_encode(&value, NON_ALPHANUMERIC));
            joint = '&';
        }
    }
    // What it says is about the form, and holds no part of the text but the values of such keys as sslmode.
    text.parse().map_err(|error: sqlx::Error| {
        let reason = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        let hint = "characters such as @ : / # ? % in a user or password must be percent-encoded";
        ConfigError::new("store", format!("can't be read ({reason}): {}; {hint}", example()))
    })
}
