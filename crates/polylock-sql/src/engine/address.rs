//! Where a server is, read from a URL by the driver, shown without secrets.

use std::{str::FromStr, time::Duration};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use polylock_core::{
    ConfigError,
    url::{Keys, StoreUrl},
};

/// The limits of `polylock.timeout`.
const TIMEOUTS: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(600);
/// The limits of `polylock.connections`.
const CONNECTIONS: std::ops::RangeInclusive<u32> = 1..=1000;

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

pub(crate) fn check_timeout(timeout: Duration) -> Result<(), ConfigError> {
    if TIMEOUTS.contains(&timeout) {
        return Ok(());
    }
    Err(ConfigError::new("polylock.timeout", "must be 100ms to 10m"))
}

pub(crate) fn check_connections(connections: u32) -> Result<(), ConfigError> {
    if CONNECTIONS.contains(&connections) {
        return Ok(());
    }
    Err(ConfigError::new("polylock.connections", "must be 1 to 1000"))
}
