//! The part of the configuration that all stores on servers share.

use std::{str::FromStr, sync::Arc, time::Duration};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use polylock_core::{
    ConfigError,
    url::{Keys, StoreUrl},
};

use super::{table, version::NextVersion};
use crate::pessimistic::Strategy;

/// The range of `polylock.operation_timeout`.
const TIMEOUTS: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(600);
/// The range of `polylock.connections`.
const CONNECTIONS: std::ops::RangeInclusive<u32> = 1..=1000;

/// The options of every store on a server.
#[derive(Debug, Clone)]
pub(crate) struct CommonConfig {
    pub(crate) table: String,
    pub(crate) timeout: Duration,
    pub(crate) connections: u32,
    pub(crate) strategy: Strategy,
    /// The time limit for opening a connection, within the time limit of the operation; `None` if only the latter applies.
    pub(crate) connect_timeout: Option<Duration>,
    /// An additional version of the tables, in tests.
    pub(crate) next: Option<Arc<NextVersion>>,
}

impl Default for CommonConfig {
    fn default() -> Self {
        Self {
            table: table::DEFAULT.to_owned(),
            timeout: Self::DEFAULT_TIMEOUT,
            connections: Self::DEFAULT_CONNECTIONS,
            strategy: Strategy::default(),
            connect_timeout: None,
            next: None,
        }
    }
}

impl CommonConfig {
    pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
    pub(crate) const DEFAULT_CONNECTIONS: u32 = 8;

    /// Returns the options in `keys`, with the defaults of those that are missing.
    ///
    /// # Errors
    /// [`ConfigError`] on a value that can't be parsed.
    pub(crate) fn read(keys: &mut Keys) -> Result<Self, ConfigError> {
        Ok(Self {
            table: keys.text("polylock.table").unwrap_or_else(|| table::DEFAULT.to_owned()),
            timeout: keys.duration("polylock.operation_timeout")?.unwrap_or(Self::DEFAULT_TIMEOUT),
            connections: keys.read("polylock.connections", str::parse)?.unwrap_or(Self::DEFAULT_CONNECTIONS),
            strategy: keys.choice("polylock.strategy", &Strategy::WORDS)?.unwrap_or_default(),
            connect_timeout: keys.read("connect_timeout", seconds)?.flatten(),
            next: None,
        })
    }

    /// Checks the table prefix and the ranges.
    ///
    /// # Errors
    /// [`ConfigError`] on the first value that is not allowed.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        table::check(&self.table)?;
        if !TIMEOUTS.contains(&self.timeout) {
            return Err(ConfigError::new("polylock.operation_timeout", "must be 100ms to 10m"));
        }
        if !CONNECTIONS.contains(&self.connections) {
            return Err(ConfigError::new("polylock.connections", "must be 1 to 1000"));
        }
        Ok(())
    }

    /// Returns `text` with the edits of the next version, if there is one.
    pub(crate) fn apply_edits(&self, text: String) -> String {
        match &self.next {
            Some(next) => next.apply_edits(text),
            None => text,
        }
    }

    /// Returns the error for tables that another strategy, `other`, uses.
    pub(crate) fn used_by(&self, other: &str) -> ConfigError {
        let problem = format!(
            "the tables named {:?} are in use with polylock.strategy={other}, whose locks this strategy can't see: use that strategy, or \
             another polylock.table",
            self.table
        );
        ConfigError::new("polylock.strategy", problem)
    }
}

/// Parses whole seconds, as in the URLs of other programs; 0 is no limit.
fn seconds(text: &str) -> Result<Option<Duration>, &'static str> {
    let seconds: u64 = text.parse().map_err(|_| "must be a number of seconds")?;
    Ok((seconds > 0).then(|| Duration::from_secs(seconds)))
}

/// A URL key of other drivers and programs that has no use here.
pub(crate) struct DriverKey {
    pub(crate) key: &'static str,
    /// The values without an effect here; if empty, every value is accepted.
    pub(crate) ignored_values: &'static [&'static str],
    /// The reason for refusing any other value, with a replacement.
    pub(crate) remedy: &'static str,
}

/// A key that has no effect here, with any value.
pub(crate) const fn ignored(key: &'static str) -> DriverKey {
    DriverKey { key, ignored_values: &[], remedy: "" }
}

/// A key that has no effect here with one of the values in `ignored_values`, and is refused with any other.
pub(crate) const fn one_of(
    key: &'static str,
    ignored_values: &'static [&'static str],
    remedy: &'static str,
) -> DriverKey {
    DriverKey { key, ignored_values, remedy }
}

/// A key that is refused with any value but an empty one.
pub(crate) const fn rejected(key: &'static str, remedy: &'static str) -> DriverKey {
    one_of(key, &[""], remedy)
}

/// Takes the keys of other programs out of `keys`.
///
/// # Errors
/// [`ConfigError`] on a value that is not accepted.
fn take_driver_keys(
    url: &StoreUrl,
    keys: &mut Keys,
    driver_keys: &'static [DriverKey],
) -> Result<(), ConfigError> {
    // Only the keys in the URL are taken, so that the others are not suggested for a misspelt key.
    let given = url.keys();
    for DriverKey { key, ignored_values, remedy } in driver_keys {
        let Some(value) = given.clone().text(key) else { continue };
        keys.text(key);
        if !ignored_values.is_empty() && !ignored_values.iter().any(|known| value.eq_ignore_ascii_case(known))
        {
            return Err(ConfigError::new(*key, *remedy));
        }
    }
    Ok(())
}

/// Refuses a file of certificate authorities if the encryption mode does not verify the server's certificate: other programs verify it in
/// some of these cases.
///
/// # Errors
/// [`ConfigError`] on the first key of `authorities` that the URL has, unless the certificate is `verified`.
pub(crate) fn check_authority(
    url: &StoreUrl,
    authorities: &[&'static str],
    verified: bool,
    remedy: &'static str,
) -> Result<(), ConfigError> {
    let key = authorities.iter().find(|key| url.keys().text(key).is_some());
    match key {
        Some(key) if !verified => {
            let problem =
                format!("has no effect, because the server's certificate is not checked: also set {remedy}");
            Err(ConfigError::new(*key, problem))
        }
        _ => Ok(()),
    }
}

/// Parses `url` with the driver, under the driver's own `scheme`, with those of `keys` that are listed in `passed`.
///
/// # Errors
/// [`ConfigError`] on key `store` if the URL names no server or several, or if the driver can't parse it; on a key in
/// `driver_keys` with a value that is not accepted.
pub(crate) fn driver_options<O: FromStr<Err = sqlx::Error>>(
    scheme: &str,
    url: &StoreUrl,
    keys: &mut Keys,
    passed: &[&'static str],
    driver_keys: &'static [DriverKey],
) -> Result<O, ConfigError> {
    take_driver_keys(url, keys, driver_keys)?;
    let example = || format!("write {scheme}://user:password@host/database");
    if !url.rest().starts_with("//") {
        return Err(ConfigError::new("store", format!("names no server: {}", example())));
    }
    let authority = url.rest()[2..].split('/').next().unwrap_or_default();
    if authority.rsplit('@').next().unwrap_or_default().contains(',') {
        let problem = "names several servers: name only the primary, or a host name or an address that follows a failover";
        return Err(ConfigError::new("store", problem));
    }
    let mut text = format!("{scheme}:{}", url.rest());
    let mut separator = '?';
    for key in passed {
        if let Some(value) = keys.text(key) {
            text.extend([separator.to_string().as_str(), key, "="]);
            text.extend(utf8_percent_encode(&value, NON_ALPHANUMERIC));
            separator = '&';
        }
    }
    // The driver's message is about the syntax, and contains nothing of the URL but the values of keys such as sslmode.
    text.parse().map_err(|error: sqlx::Error| {
        let reason = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        let hint = "characters such as @ : / # ? % in a user or password must be percent-encoded";
        ConfigError::new("store", format!("the URL can't be parsed ({reason}): {}; {hint}", example()))
    })
}
