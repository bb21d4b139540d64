//! Configuration of a store in one server.

use polylock_core::{
    ConfigError,
    url::{self, Keys, StoreUrl},
};
use redis::Client;

use crate::{
    config::{DEFAULT_OPERATION_TIMEOUT, Settings, common_setters},
    hosts::Deployment,
};

/// The address of the server, and the settings of the store. See the [module](super) for the options.
///
/// ```
/// use polylock_redis::single::Config;
///
/// let config = Config::new("redis://app:secret@cache.example.com:6379/1")?.namespace("app");
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok::<_, polylock_core::ConfigError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Config {
    settings: Settings,
}

impl Config {
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
        let settings = Settings::read(url, Deployment::Single, Self::DEFAULT_OPERATION_TIMEOUT, keys)?;
        Ok(Self { settings })
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
        Self { settings: Settings::from_clients([client], Self::DEFAULT_OPERATION_TIMEOUT) }
    }

    common_setters! {
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
        credentials,
        /// The time without a reply after which the connection counts as broken: 500 ms by default.
        operation_timeout: DEFAULT_OPERATION_TIMEOUT,
    }

    /// Returns the driver's client for connections of your own to the same server: with the user, the password, the database and the
    /// certificates of this configuration. Changes of [`credentials`](Self::credentials) are not included.
    ///
    /// # Errors
    /// [`ConfigError`] if a certificate can't be read.
    pub fn client(&self) -> Result<Client, ConfigError> {
        let mut clients = self.settings.clients()?;
        clients.pop().ok_or_else(|| ConfigError::new("store", "names no server"))
    }

    pub(super) fn into_settings(self) -> Settings {
        self.settings
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use polylock_core::url::checks;

    use super::*;
    use crate::{Allowed, config::address};

    #[test]
    fn a_url_and_the_setters_give_the_same_settings() {
        let url = "redis://app:canary@db:6380/3?polylock.namespace=app:locks&polylock.connect_timeout=2s\
                   &polylock.operation_timeout=250ms&polylock.allow=eviction,cluster";
        let set = Config::new("valkey://app:canary@db:6380/3")
            .unwrap()
            .namespace("app:locks")
            .connect_timeout(Duration::from_secs(2))
            .operation_timeout(Duration::from_millis(250))
            .allow(Allowed::Eviction)
            .allow(Allowed::Cluster);
        let shown = checks::gives(Config::new, url, &set);
        assert!(shown.contains(r#""db:6380/3""#), "{shown}");
    }

    #[test]
    fn the_connection_settings_are_those_of_the_url() {
        let of = |url: &str| Config::new(url).unwrap().settings.servers.remove(0);
        let server = of("redis://a%40b:p%2F%3A%23@[::1]:6380/3");
        assert_eq!(address(&server), "[::1]:6380/3");
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
        let invalid = [
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
            ("redis://h?polylock.namespace=", "polylock.namespace"),
            ("redis://h?polylock.namespace=a{b", "polylock.namespace"),
            ("redis://h?polylock.connect_timeout=1h", "polylock.connect_timeout"),
            ("redis://h?polylock.operation_timeout=0s", "polylock.operation_timeout"),
            ("redis://h?polylock.allow=evictions", "polylock.allow"),
            ("redis://h?polylock.tls_ca=/ca.crt", "polylock.tls_ca"),
            ("redis://h?polylock.tls_cert=/a.crt", "polylock.tls_cert"),
            ("redis://h?polylock.prefx=a", "polylock.prefx"),
            ("redis://h?protocol=resp2", "protocol"),
        ];
        checks::refuses(Config::new, &invalid);
        #[cfg(not(feature = "tls"))]
        assert!(Config::new("rediss://h").unwrap_err().problem.contains("feature \"tls\""));
        #[cfg(feature = "tls")]
        assert!(Config::new("rediss://h?polylock.tls_ca=/ca.crt").is_ok());
    }

    #[test]
    fn no_secret_is_shown() {
        checks::hides_secrets(
            Config::new,
            &[
                "redis://me:canary@db",
                "redis://me:canary@db:x",
                "redis://:can#ary@h",
                "unix:///s?pass=canary",
            ],
        );
    }
}
