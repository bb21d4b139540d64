//! The part of the configuration that all stores on servers share.

use std::{ops::RangeInclusive, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use polylock_core::{
    ConfigError, duration,
    url::{Address, Certificates, Keys, StoreUrl, driver_keys::DriverKey, tls_is_not_compiled_in},
};

use super::{strategy::Strategy, table, version::NextVersion};

/// The range of `polylock.operation_timeout`.
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(600);
/// The range of `polylock.connections`.
const CONNECTIONS: RangeInclusive<u32> = 1..=1000;

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
            timeout: Self::DEFAULT_OPERATION_TIMEOUT,
            connections: Self::DEFAULT_CONNECTIONS,
            strategy: Strategy::default(),
            connect_timeout: None,
            next: None,
        }
    }
}

impl CommonConfig {
    pub(crate) const DEFAULT_OPERATION_TIMEOUT: Duration = Duration::from_secs(5);
    pub(crate) const DEFAULT_CONNECTIONS: u32 = 8;

    /// Returns the options in `keys`, with the defaults of those that are missing.
    ///
    /// # Errors
    /// [`ConfigError`] on a value that can't be parsed.
    pub(crate) fn read(keys: &mut Keys) -> Result<Self, ConfigError> {
        Ok(Self {
            table: keys.text("polylock.namespace").unwrap_or_else(|| table::DEFAULT.to_owned()),
            timeout: keys.duration("polylock.operation_timeout")?.unwrap_or(Self::DEFAULT_OPERATION_TIMEOUT),
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
        duration::check("polylock.operation_timeout", self.timeout, &TIMEOUTS)?;
        if !CONNECTIONS.contains(&self.connections) {
            let problem = format!("must be {} to {}", CONNECTIONS.start(), CONNECTIONS.end());
            return Err(ConfigError::new("polylock.connections", problem));
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
             another polylock.namespace",
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

/// Refuses a file of certificate authorities if the encryption mode does not verify the server's certificate: other programs verify it in
/// some of these cases.
///
/// # Errors
/// [`ConfigError`] on the first key of `authorities`, the driver's own, or else on `polylock.tls_ca`, if the URL has it, unless the certificate is `verified`.
pub(crate) fn check_authority(
    url: &StoreUrl,
    authorities: &[&'static str],
    verified: bool,
    remedy: &'static str,
) -> Result<(), ConfigError> {
    let (keys, all) = (url.keys(), authorities.iter().chain(&["polylock.tls_ca"]));
    let key = all.copied().find(|key| keys.contains(key));
    match key {
        Some(key) if !verified => {
            let problem =
                format!("has no effect, because the server's certificate is not checked: also set {remedy}");
            Err(ConfigError::new(key, problem))
        }
        _ => Ok(()),
    }
}

/// Checks that connections can be encrypted if they `must_be`. The driver itself would report it when it connects, and its error class is
/// that of a wrong certificate.
///
/// # Errors
/// [`ConfigError`] on key `store`, with the feature to enable, unless encryption `is_compiled_in`.
pub(crate) fn check_encryption(must_be: bool, is_compiled_in: bool) -> Result<(), ConfigError> {
    if must_be && !is_compiled_in { Err(tls_is_not_compiled_in()) } else { Ok(()) }
}

/// Parses `url` with the driver, under the driver's own `scheme`, with those of `keys` that are listed in `passed`. The driver's keys of
/// the certificate files, each with all its spellings, are those of the authority, of the client's certificate and of its key.
///
/// # Errors
/// [`ConfigError`] on key `store` if the URL names no server or several, or if the driver can't parse it; on a key in
/// `driver_keys` with a value that is not accepted; on a key of a certificate file that is given twice.
pub(crate) fn driver_options<O: FromStr<Err = sqlx::Error>>(
    scheme: &str,
    url: &StoreUrl,
    keys: &mut Keys,
    passed: &[&'static str],
    certificates: [&[&'static str]; 3],
    driver_keys: &[DriverKey],
) -> Result<O, ConfigError> {
    keys.take_driver_keys(driver_keys)?;
    let mut given = Vec::new();
    for ((own, file), names) in Certificates::from_keys(keys)?.files().into_iter().zip(certificates) {
        match (file, names.iter().find(|name| keys.contains(name))) {
            (Some(_), Some(name)) => {
                return Err(ConfigError::new(*name, format!("is the same as {own}: write only one of them")));
            }
            (Some(file), None) => given.push((names[0], file.display().to_string())),
            (None, _) => {}
        }
    }
    let example = format!("write {scheme}://user:password@host/database");
    let address = Address::parse(url);
    let address = address.map_err(|problem| ConfigError::new("store", format!("{problem}: {example}")))?;
    // The driver's host would end there, and the rest of the password would be the name of the database.
    if address.user.is_some_and(|user| user.contains(['/', '#'])) {
        let problem = "has a / or # before the last @: write them as %2F and %23 in a user or password, and an @ in the name of a database as %40";
        return Err(ConfigError::new("store", problem));
    }
    if address.servers.contains(',') {
        let problem = "names several servers: name only the primary, or a host name or an address that follows a failover";
        return Err(ConfigError::new("store", problem));
    }
    let mut text = format!("{scheme}:{}", url.rest());
    let mut separator = '?';
    given.extend(passed.iter().filter_map(|key| Some((*key, keys.text(key)?))));
    for (key, value) in given {
        text.extend([separator.to_string().as_str(), key, "="]);
        text.extend(utf8_percent_encode(&value, NON_ALPHANUMERIC));
        separator = '&';
    }
    // The driver's message is about the syntax, and contains nothing of the URL but the values of keys such as sslmode.
    text.parse().map_err(|error: sqlx::Error| {
        let reason = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        if reason.contains("unknown value") {
            return ConfigError::new("store", reason);
        }
        let hint = "characters such as @ : / # ? % in a user or password must be percent-encoded";
        ConfigError::new("store", format!("the URL can't be parsed ({reason}): {example}; {hint}"))
    })
}

/// Returns the server and the database, without secrets: the driver's own `Debug` shows the password.
pub(crate) fn endpoint(database: &str, socket: Option<&PathBuf>, host: &str, port: u16) -> String {
    match socket {
        Some(socket) => format!("database {database:?} on socket {socket:?}"),
        None => format!("database {database:?} on {host}:{port}"),
    }
}

/// The setters of a `Config` that all stores on a server share. They set its `source`, with options of the type `$options`, and its
/// `common`. The texts document them where the databases differ: for `credentials`, the example.
macro_rules! common_setters {
    (
        $options:ty,
        $(#[$example:meta])*
        credentials,
        $(#[$connections:meta])*
        connections,
        $(#[$table:meta])*
        table $(,)?
    ) => {
        /// Calls `credentials` with the configured options before each new connection, and connects with the options that it returns:
        /// for passwords and tokens that expire. An error counts as an outage of the server, and the next operation calls it again.
        /// It runs on the library's own thread, must not block it, and its time counts as part of the operation's.
        ///
        $(#[$example])*
        #[must_use]
        pub fn credentials<F>(mut self, credentials: impl Fn($options) -> F + Send + Sync + 'static) -> Self
        where
            F: Future<Output = Result<$options, Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
        {
            self.source.complete_with(credentials);
            self
        }

        $(#[$table])*
        #[must_use]
        pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
            self.common.table = namespace.into();
            self
        }

        polylock_core::setters! {
            /// The time limit of an operation, including the wait for a connection: 5 s by default.
            operation_timeout(timeout: std::time::Duration) => common.timeout;
            $(#[$connections])*
            connections(connections: u32) => common.connections;
            /// The strategy: rows with a lease by default. All processes that share a lock must use the same strategy.
            strategy(strategy: crate::engine::strategy::Strategy) => common.strategy;
        }

        /// Adds one table version, for tests.
        #[doc(hidden)]
        #[must_use]
        pub fn next_version(mut self, next: crate::engine::version::NextVersion) -> Self {
            self.common.next = Some(std::sync::Arc::new(next));
            self
        }
    };
}
pub(crate) use common_setters;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_encryption_names_the_feature() {
        let error = check_encryption(true, false).unwrap_err().to_string();
        assert!(error.ends_with("not compiled in: enable feature \"tls\""), "{error}");
        for (must_be, is_compiled_in) in [(true, true), (false, true), (false, false)] {
            assert_eq!(check_encryption(must_be, is_compiled_in), Ok(()));
        }
    }
}
