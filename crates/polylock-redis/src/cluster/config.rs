//! Configuration of a store in a cluster.

use polylock_core::{
    ConfigError,
    url::{self, Keys, StoreUrl},
};
use redis::Client;

use crate::{
    config::{Settings, common_setters},
    hosts::Deployment,
};

/// The nodes of the cluster, and the settings of the store. See the [module](super) for the options.
///
/// ```
/// use polylock_redis::cluster::Config;
///
/// let config = Config::new("redis-cluster://app:secret@a:6379,b:6379,c:6379")?.namespace("app");
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok::<_, polylock_core::ConfigError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Config {
    settings: Settings,
}

impl Config {
    /// Reads a URL that names some nodes, `redis-cluster://user:password@host1:port,host2:port?key=value`. The store finds the other nodes
    /// through these.
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
        let settings = Settings::read(url, Deployment::Cluster, Self::DEFAULT_OPERATION_TIMEOUT, keys)?;
        Ok(Self { settings })
    }

    /// Uses some nodes, those of the application's clients, with the user, the password and the TLS settings of the first client.
    ///
    /// # Errors
    /// [`ConfigError`] if there is no client.
    pub fn of<'c>(clients: impl IntoIterator<Item = &'c Client>) -> Result<Self, ConfigError> {
        let settings = Settings::from_clients(clients, Self::DEFAULT_OPERATION_TIMEOUT);
        if settings.servers.is_empty() {
            return Err(ConfigError::new("store", "no node of the cluster is named"));
        }
        Ok(Self { settings })
    }

    common_setters! {}

    pub(super) fn into_settings(self) -> Settings {
        self.settings
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use polylock_core::url::checks;

    use super::*;
    use crate::Allowed;

    #[test]
    fn a_url_and_the_setters_give_the_same_settings() {
        let url = "redis-cluster://app:canary@a:1,b,[::1]:3/0?polylock.namespace=p&polylock.connect_timeout=2s\
                   &polylock.operation_timeout=50ms&polylock.allow=eviction";
        let set = Config::new("valkey-cluster://app:canary@a:1,b,[::1]:3")
            .unwrap()
            .namespace("p")
            .connect_timeout(Duration::from_secs(2))
            .operation_timeout(Duration::from_millis(50))
            .allow(Allowed::Eviction);
        let shown = checks::gives(Config::new, url, &set);
        assert!(shown.contains(r#"["a:1", "b:6379", "[::1]:3"]"#), "{shown}");
        assert!(!shown.contains("canary"));
    }

    #[test]
    fn an_invalid_setting_is_refused_with_its_key() {
        let invalid = [
            ("redis-cluster:a", "store"),
            ("redis-cluster://", "store"),
            ("redis-cluster://a,,b", "store"),
            ("redis-cluster://a/1", "store"),
            ("redis-cluster://a?db=1", "store"),
            ("redis-cluster://a:port", "store"),
            ("redis-cluster://a?polylock.allow=cluster", "polylock.allow"),
            ("redis-cluster://a?cluster=true", "cluster"),
            ("redis-cluster://a?polylock.tls=on", "polylock.tls"),
            ("redis-cluster://a?polylock.tls_ca=/ca.crt", "polylock.tls_ca"),
        ];
        checks::refuses(Config::new, &invalid);
        #[cfg(feature = "tls")]
        assert!(Config::new("rediss-cluster://h?polylock.tls_ca=/ca.crt").is_ok());
    }
}
