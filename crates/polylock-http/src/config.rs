//! The configuration of the store.

use std::{fmt, ops::RangeInclusive, path::PathBuf, time::Duration};

use polylock_core::{
    ConfigError, duration,
    url::{self, Address, Certificates, Keys, StoreUrl, tls_is_not_compiled_in},
};

const OPERATION_TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);
const CONNECT_TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(5)..=Duration::from_secs(600);

/// The servers, and the settings of the store.
///
/// ```
/// use std::time::Duration;
/// use polylock_http::Config;
///
/// let config = Config::new("polylock+http://locks1,locks2:7000?polylock.token=canary")?
///     .operation_timeout(Duration::from_secs(2));
/// assert!(!format!("{config:?}").contains("canary"));
/// # Ok::<_, polylock_core::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Config {
    /// The servers, each as `host:port`.
    pub(crate) servers: Vec<String>,
    pub(crate) encrypted: bool,
    pub(crate) token: Option<String>,
    pub(crate) operation_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) certificates: Certificates,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("servers", &self.servers)
            .field("encrypted", &self.encrypted)
            .field("token", &self.token.as_ref().map(|_| "secret"))
            .field("operation_timeout", &self.operation_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("certificates", &self.certificates)
            .finish()
    }
}

impl Config {
    /// The port of a server without a port in the URL.
    pub const DEFAULT_PORT: u16 = 7420;
    /// The default of [`operation_timeout`](Self::operation_timeout).
    pub const DEFAULT_OPERATION_TIMEOUT: Duration = Duration::from_secs(3);
    /// The default of [`connect_timeout`](Self::connect_timeout).
    pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

    /// Parses a URL, `polylock+http://host1:port,host2?key=value`, also with `polylock+https://` for encrypted connections.
    ///
    /// # Errors
    /// [`ConfigError`] on an invalid key or value.
    pub fn new(url: &str) -> Result<Self, ConfigError> {
        url::read(url, Self::from_url)
    }

    /// Parses a URL as [`new`](Self::new) does, and takes the store's keys from `keys`.
    ///
    /// # Errors
    /// [`ConfigError`] on an invalid key or value.
    pub fn from_url(url: &StoreUrl, keys: &mut Keys) -> Result<Self, ConfigError> {
        let problem = |problem: &str| url.problem(problem, "host1:port,host2:port");
        let address = Address::parse(url).map_err(problem)?;
        if address.user.is_some() {
            return Err(problem("has a user: pass the token of the server with polylock.token"));
        }
        if !address.path.is_empty() {
            return Err(problem("has a path, which the lock service does not use"));
        }
        let servers = address.servers().map_err(problem)?;
        let servers = servers.iter().map(|server| server.with_port(Self::DEFAULT_PORT));
        let config = Self {
            servers: servers.collect::<Result<_, _>>().map_err(problem)?,
            encrypted: url.scheme() == "polylock+https",
            token: keys.text("polylock.token"),
            operation_timeout: keys
                .duration("polylock.operation_timeout")?
                .unwrap_or(Self::DEFAULT_OPERATION_TIMEOUT),
            connect_timeout: keys
                .duration("polylock.connect_timeout")?
                .unwrap_or(Self::DEFAULT_CONNECT_TIMEOUT),
            certificates: Certificates::from_keys(keys)?,
        };
        config.check_times()?;
        Ok(config)
    }

    polylock_core::setters! {
        /// The time limit for one operation on all servers together: 3 s by default, and never more than a third of the lease for a
        /// renewal.
        operation_timeout(timeout: Duration) => operation_timeout;
        /// The time limit for opening the store: 10 s by default.
        connect_timeout(timeout: Duration) => connect_timeout;
    }

    /// The token that the servers require.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// The PEM file with the certificates of authorities that are trusted in addition to the system's.
    #[must_use]
    pub fn tls_ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.certificates.ca = Some(file.into());
        self
    }

    /// The PEM files of the client's own certificate and its key, for servers that know clients by their certificates.
    #[must_use]
    pub fn tls_client(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.certificates.client = Some((certificate.into(), key.into()));
        self
    }

    fn check_times(&self) -> Result<(), ConfigError> {
        duration::check("polylock.operation_timeout", self.operation_timeout, &OPERATION_TIMEOUTS)?;
        duration::check("polylock.connect_timeout", self.connect_timeout, &CONNECT_TIMEOUTS)
    }

    /// Checks the settings that depend on each other.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        self.check_times()?;
        if self.encrypted && !cfg!(feature = "tls") {
            return Err(tls_is_not_compiled_in());
        }
        let printable =
            |token: &String| !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        if !self.token.as_ref().is_none_or(printable) {
            return Err(ConfigError::new("polylock.token", "must be printable ASCII without spaces"));
        }
        self.certificates.check(self.encrypted, "use polylock+https")
    }

    /// Returns the URL of a server, without a path.
    pub(crate) fn base(&self, server: &str) -> String {
        format!("{}://{server}", if self.encrypted { "https" } else { "http" })
    }
}

#[cfg(test)]
mod tests {
    use polylock_core::url::checks;

    use super::*;

    #[test]
    fn a_url_has_the_servers_and_the_keys() {
        let config =
            Config::new("polylock+https://a,b:99,[::1]?polylock.token=t&polylock.operation_timeout=1s")
                .unwrap();
        assert_eq!(config.servers, ["a:7420", "b:99", "[::1]:7420"]);
        assert_eq!((config.token.as_deref(), config.operation_timeout), (Some("t"), Duration::from_secs(1)));
        assert_eq!(config.base(&config.servers[1]), "https://b:99");
        checks::hides_secrets(Config::new, &["polylock+http://h?polylock.token=canary"]);
    }

    #[test]
    fn bad_input_is_refused_on_its_key() {
        checks::refuses(
            Config::new,
            &[
                ("polylock+http:h", "store"),
                ("polylock+http://", "store"),
                ("polylock+http://h:0", "store"),
                ("polylock+http://user:x@h", "store"),
                ("polylock+http://h/path", "store"),
                ("polylock+http://h?polylock.operation_timeout=1ms", "polylock.operation_timeout"),
                ("polylock+http://h?polylock.connect_timeout=1h", "polylock.connect_timeout"),
                ("polylock+http://h?polylock.tokn=x", "polylock.tokn"),
                ("polylock+https://h?polylock.tls_cert=c.pem", "polylock.tls_cert"),
            ],
        );
        let error = Config::new("polylock+http://h?polylock.token=a%20b").unwrap().check().unwrap_err();
        assert!(error.to_string().contains("polylock.token"), "{error}");
    }
}
