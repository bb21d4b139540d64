//! What the configurations of the stores on servers have in common.

use std::{str::FromStr, sync::Arc, time::Duration};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use polylock_core::{
    ConfigError,
    url::{Keys, StoreUrl},
};

use super::{table, version::Next};
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
    /// How long a connection may take to be made, if not as long as an operation.
    pub(crate) connect_timeout: Option<Duration>,
    /// One version of the tables more, in tests.
    pub(crate) next: Option<Arc<Next>>,
}

impl Default for Common {
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
            connect_timeout: keys.read("connect_timeout", seconds)?.flatten(),
            next: None,
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

    /// `text` as the next version has it, if there is one.
    pub(crate) fn edited(&self, text: String) -> String {
        match &self.next {
            Some(next) => next.edited(text),
            None => text,
        }
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

/// Whole seconds, as in the URLs of other programs; 0 is no limit.
fn seconds(text: &str) -> Result<Option<Duration>, &'static str> {
    let seconds: u64 = text.parse().map_err(|_| "must be a number of seconds")?;
    Ok((seconds > 0).then(|| Duration::from_secs(seconds)))
}

/// A key of URLs that other drivers and programs read, and this one has no use for.
pub(crate) struct ForeignKey {
    pub(crate) key: &'static str,
    /// The values that change nothing here; all of them if there is none.
    pub(crate) harmless: &'static [&'static str],
    /// Why any other value is refused, with what to write instead.
    pub(crate) otherwise: &'static str,
}

/// One that changes nothing here, whatever its value is.
pub(crate) const fn harmless(key: &'static str) -> ForeignKey {
    ForeignKey { key, harmless: &[], otherwise: "" }
}

/// One of which only these values change nothing.
pub(crate) const fn only(
    key: &'static str,
    harmless: &'static [&'static str],
    otherwise: &'static str,
) -> ForeignKey {
    ForeignKey { key, harmless, otherwise }
}

/// One that is always refused.
pub(crate) const fn refused(key: &'static str, otherwise: &'static str) -> ForeignKey {
    only(key, &[""], otherwise)
}

/// Takes the keys of other programs.
///
/// # Errors
/// [`ConfigError`] on one whose meaning would be lost.
fn take_foreign(url: &StoreUrl, keys: &mut Keys, foreign: &'static [ForeignKey]) -> Result<(), ConfigError> {
    // Those that are not there are not taken, so that none of them is proposed for a slip.
    let given = url.keys();
    for ForeignKey { key, harmless, otherwise } in foreign {
        let Some(value) = given.clone().text(key) else { continue };
        keys.text(key);
        if !harmless.is_empty() && !harmless.iter().any(|known| value.eq_ignore_ascii_case(known)) {
            return Err(ConfigError::new(*key, *otherwise));
        }
    }
    Ok(())
}

/// Refuses the file of an authority that the mode of encryption does not check the server against: other programs check it in some of
/// these cases.
///
/// # Errors
/// [`ConfigError`] on the one of `authorities`, which are keys, that is there though nothing is `verified`.
pub(crate) fn check_authority(
    url: &StoreUrl,
    authorities: &[&'static str],
    verified: bool,
    instead: &'static str,
) -> Result<(), ConfigError> {
    let key = authorities.iter().find(|key| url.keys().text(key).is_some());
    match key {
        Some(key) if !verified => {
            let problem = format!(
                "has no effect, because the server's certificate is not checked: write {instead}, too"
            );
            Err(ConfigError::new(*key, problem))
        }
        _ => Ok(()),
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
    foreign: &'static [ForeignKey],
) -> Result<O, ConfigError> {
    take_foreign(url, keys, foreign)?;
    let example = || format!("write {scheme}://user:password@host/database");
    if !url.rest().starts_with("//") {
        return Err(ConfigError::new("store", format!("names no server: {}", example())));
    }
    let authority = url.rest()[2..].split('/').next().unwrap_or_default();
    if authority.rsplit('@').next().unwrap_or_default().contains(',') {
        let problem =
            "names several servers: name the primary alone, or a name or an address that follows a failover";
        return Err(ConfigError::new("store", problem));
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
