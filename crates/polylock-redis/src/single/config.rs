//! Configuration of a store in one server.

use std::{path::PathBuf, time::Duration};

use polylock_core::{
    ConfigError,
    url::{self, Keys, StoreUrl},
};
use redis::{Client, auth::StreamingCredentialsProvider};

use crate::{
    Allowed,
    config::{self, Settings},
    hosts::Deployment,
};

/// The address of the server, and the settings of the store. See the [module](super) for the options.
///
/// ```
/// use polylock_redis::single::Config;
///
/// let config = Config::new("redis://app:secret@cache.example.com:6379/1")?.prefix("app");
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok::<_, polylock_core::ConfigError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Config(Settings);

impl Config {
    /// The default of [`prefix`](Self::prefix).
    pub const DEFAULT_PREFIX: &str = config::DEFAULT_PREFIX;
    /// The default of [`connect_timeout`](Self::connect_timeout).
    pub const DEFAULT_CONNECT_TIMEOUT: Duration = config::DEFAULT_CONNECT_TIMEOUT;
    /// The default of [`operation_timeout`](Self::operation_timeout).
    pub const DEFAULT_COMMAND_TIMEOUT: Duration = Duration::from_millis(500);

    /// Reads the server of a URL, `redis://user:password@host:port/database?key=value`.
    ///
    /// # Errors
    /// [`ConfigError`] on an invalid URL or key.
    pub fn new(url: &str) -> Result<Self, ConfigError> {
        url::read(url, Self::from_url)
    }

    /// Reads a URL as [`new`](Self::new) does, and takes the store's keys from `keys`.
    ///
    /// # Errors
    /// [`ConfigError`] on an invalid URL or key.
    pub fn from_url(url: &StoreUrl, keys: &mut Keys) -> Result<Self, ConfigError> {
        Settings::read(url, Deployment::Single, Self::DEFAULT_COMMAND_TIMEOUT, keys).map(Self)
    }

    /// Uses the server of the application's client, with its user, its password, its database and its TLS settings. The store makes a
    /// connection of its own, because it needs the push messages.
    ///
    /// ```
    /// use polylock_redis::{redis, single};
    ///
    /// # async fn open() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = redis::Client::open("redis://cache.example.com/1")?;
    /// let locks = polylock_core::Locks::new(single::connect(single::Config::of(&client)).await?);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn of(client: &Client) -> Self {
        Self(Settings::from_clients([client], Self::DEFAULT_COMMAND_TIMEOUT))
    }

    /// Takes the user and the password from `provider`, for credentials that change: the tokens of a cloud's identity service, or passwords
    /// that a vault rotates. Each connection begins with the newest ones, and is authenticated again when newer ones arrive.
    ///
    /// ```
    /// use polylock_redis::{redis::auth::{BasicAuth, StreamingCredentialsProvider}, single::Config};
    /// # use std::pin::Pin;
    /// # use futures_util::{Stream, StreamExt, stream};
    /// # use polylock_redis::redis::RedisResult;
    ///
    /// /// Yields the password now, and each one that follows.
    /// struct Vault(tokio::sync::watch::Receiver<String>);
    ///
    /// impl StreamingCredentialsProvider for Vault {
    ///     fn subscribe(&self) -> Pin<Box<dyn Stream<Item = RedisResult<BasicAuth>> + Send>> {
    ///         let mut passwords = self.0.clone();
    ///         passwords.mark_changed();
    ///         Box::pin(stream::unfold(passwords, async |mut passwords| {
    ///             passwords.changed().await.ok()?;
    ///             let password = passwords.borrow_and_update().clone();
    ///             Some((Ok(BasicAuth::new("app".to_owned(), password)), passwords))
    ///         }))
    ///     }
    /// }
    ///
    /// # fn config(vault: Vault) -> Result<Config, polylock_core::ConfigError> {
    /// let config = Config::new("redis://cache.example.com")?.credentials(vault);
    /// # Ok(config) }
    /// ```
    #[must_use]
    pub fn credentials(mut self, provider: impl StreamingCredentialsProvider + 'static) -> Self {
        self.0.credentials(provider);
        self
    }

    /// The text, in braces, with which the store's keys begin: 1 to 64 letters, digits or characters of `_-.:/`. `polylock` by default.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.0.prefix = prefix.into();
        self
    }

    /// The time limit for making a usable connection: 1 s by default.
    #[must_use]
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.0.connect_timeout = timeout;
        self
    }

    /// The time without a reply after which the connection counts as broken: 500 ms by default.
    #[must_use]
    pub const fn operation_timeout(mut self, timeout: Duration) -> Self {
        self.0.operation_timeout = timeout;
        self
    }

    /// The PEM file with the certificate of the authority that signed the server's certificate, for `rediss://`: the system's authorities
    /// by default.
    #[must_use]
    pub fn tls_ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.0.certificates.ca = Some(file.into());
        self
    }

    /// The PEM files with the client's own certificate and its key, for `rediss://`: none by default.
    #[must_use]
    pub fn tls_client(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.0.certificates.client = Some((certificate.into(), key.into()));
        self
    }

    /// Accepts a property of the server that can break locks; none by default.
    #[must_use]
    pub fn allow(mut self, property: Allowed) -> Self {
        self.0.allowed.push(property);
        self
    }

    pub(super) fn into_settings(self) -> Settings {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(url: &str) -> String {
        format!("{:?}", Config::new(url).unwrap())
    }

    #[test]
    fn a_url_and_the_setters_give_the_same_settings() {
        let url = "redis://app:canary@db:6380/3?polylock.prefix=app:locks&polylock.connect_timeout=2s\
                   &polylock.operation_timeout=250ms&polylock.allow=eviction,cluster";
        let set = Config::new("valkey://app:canary@db:6380/3")
            .unwrap()
            .prefix("app:locks")
            .connect_timeout(Duration::from_secs(2))
            .operation_timeout(Duration::from_millis(250))
            .allow(Allowed::Eviction)
            .allow(Allowed::Cluster);
        assert_eq!(shown(url), format!("{set:?}"));
        assert!(shown(url).contains(r#""db:6380/3""#), "{}", shown(url));
    }

    #[test]
    fn the_connection_settings_are_those_of_the_url() {
        let of = |url: &str| Config::new(url).unwrap().0.servers.remove(0);
        let server = of("redis://a%40b:p%2F%3A%23@[::1]:6380/3");
        assert_eq!(config::address(&server), "[::1]:6380/3");
        let redis = server.redis_settings();
        assert_eq!((redis.username(), redis.password(), redis.db()), (Some("a@b"), Some("p/:#"), 3));
        let server = of("unix:///run/redis%20a.sock?db=2&user=u&pass=p");
        assert_eq!(server.addr().to_string(), "/run/redis a.sock");
        let redis = server.redis_settings();
        assert_eq!((redis.username(), redis.password(), redis.db()), (Some("u"), Some("p"), 2));
        assert_eq!(of("redis://:p@h").redis_settings().password(), Some("p"));
        assert_eq!(of("redis://h").addr().to_string(), "h:6379");
    }

    #[test]
    fn an_invalid_setting_is_refused_with_its_key() {
        for (url, key) in [
            ("redis:", "store"),
            ("redis://", "store"),
            ("redis:///1", "store"),
            ("redis://:6379", "store"),
            ("redis://h:port", "store"),
            ("redis://h/first", "store"),
            ("redis://a,b", "store"),
            ("redis://u:p#x@h", "store"),
            ("redis://h/#insecure", "store"),
            ("unix:", "store"),
            ("unix:///s?db=x", "db"),
            ("redis://h?polylock.prefix=", "polylock.prefix"),
            ("redis://h?polylock.prefix=a{b", "polylock.prefix"),
            ("redis://h?polylock.connect_timeout=1h", "polylock.connect_timeout"),
            ("redis://h?polylock.operation_timeout=0s", "polylock.operation_timeout"),
            ("redis://h?polylock.allow=evictions", "polylock.allow"),
            ("redis://h?polylock.tls_ca=/ca.crt", "polylock.tls_ca"),
            ("redis://h?polylock.tls_cert=/a.crt", "polylock.tls_cert"),
            ("redis://h?polylock.prefx=a", "polylock.prefx"),
            ("redis://h?protocol=resp2", "protocol"),
        ] {
            assert_eq!(Config::new(url).unwrap_err().key, key, "{url}");
        }
        #[cfg(not(feature = "tls"))]
        assert!(Config::new("rediss://h").unwrap_err().problem.contains("feature \"tls\""));
        #[cfg(feature = "tls")]
        assert!(Config::new("rediss://h?polylock.tls_ca=/ca.crt").is_ok());
    }

    #[test]
    fn no_secret_is_shown() {
        for url in
            ["redis://me:canary@db", "redis://me:canary@db:x", "redis://:can#ary@h", "unix:///s?pass=canary"]
        {
            let shown = match Config::new(url) {
                Ok(config) => format!("{config:?}"),
                Err(error) => format!("{error:?} {error}"),
            };
            assert!(!shown.contains("canary") && !shown.contains("ary@"), "{shown}");
        }
    }
}
