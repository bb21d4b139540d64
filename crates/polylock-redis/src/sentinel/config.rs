//! Configuration of a store behind Sentinels.

use polylock_core::{
    ConfigError,
    url::{self, Keys, StoreUrl},
};
use redis::RedisConnectionInfo;

use crate::{
    config::{Settings, common_setters},
    hosts::Deployment,
};

/// The Sentinels, the primary that they watch, and the settings of the store. See the [module](super) for the options.
///
/// ```
/// use polylock_redis::sentinel::Config;
///
/// let config = Config::new("redis+sentinel://app:secret@a,b,c/orders?sentinel_password=other-secret")?.namespace("app");
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok::<_, polylock_core::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Config {
    /// The servers are the Sentinels; the user, the password and the database are those of the primary.
    pub(super) settings: Settings,
    /// The name of the primary.
    pub(super) primary: String,
    /// The user and the password of the Sentinels.
    pub(super) sentinel_user: RedisConnectionInfo,
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("settings", &self.settings)
            .field("primary", &self.primary)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// Reads the Sentinels and the name of the primary from a URL,
    /// `redis+sentinel://user:password@sentinel1:port,sentinel2:port/name/database?key=value`.
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
        let user = keys.text("sentinel_username");
        let password = keys.text("sentinel_password");
        let (settings, primary) =
            Settings::read_with_primary(url, Deployment::Sentinel, Self::DEFAULT_OPERATION_TIMEOUT, keys)?;
        let Some(primary) = primary else {
            let example = "sentinel1:26379,sentinel2:26379/NAME, with the name of `sentinel monitor NAME …`";
            return Err(url.problem("does not name the primary", example));
        };
        let mut sentinel_user = RedisConnectionInfo::default();
        if let Some(user) = user {
            if password.is_none() {
                return Err(ConfigError::new("sentinel_username", "requires sentinel_password"));
            }
            sentinel_user = sentinel_user.set_username(user);
        }
        if let Some(password) = password {
            sentinel_user = sentinel_user.set_password(password);
        }
        Ok(Self { settings, primary, sentinel_user })
    }

    common_setters! {}

    pub(super) fn into_settings(self) -> Settings {
        self.settings
    }
}

#[cfg(test)]
mod tests {
    use polylock_core::url::checks;

    use super::*;
    use crate::config::address;

    #[test]
    fn a_url_names_the_sentinels_the_primary_and_two_users() {
        let url = "redis+sentinel://app:canary%40@a,b:5,[::1]/orders/3?sentinel_username=w&sentinel_password=canary\
                   &polylock.namespace=p";
        let config = Config::new(url).unwrap();
        let shown = format!("{config:?}");
        assert!(shown.contains("orders") && !shown.contains("canary"), "{shown}");
        let servers: Vec<_> = config.settings.servers.iter().map(address).collect();
        assert_eq!(servers, ["a:26379/3", "b:5/3", "[::1]:26379/3"]);
        let redis = config.settings.servers[1].redis_settings();
        assert_eq!((redis.username(), redis.password(), redis.db()), (Some("app"), Some("canary@"), 3));
        let sentinel = &config.sentinel_user;
        assert_eq!((sentinel.username(), sentinel.password(), sentinel.db()), (Some("w"), Some("canary"), 0));
        assert_eq!((config.primary.as_str(), config.settings.prefix.as_str()), ("orders", "p"));
    }

    #[test]
    fn the_keys_of_other_drivers_name_the_primary_too() {
        for (url, primary, database) in [
            ("redis-sentinel://a/2?sentinelMasterId=orders", "orders", 2),
            ("redis-sentinel://a?sentinelMasterId=orders", "orders", 0),
            ("redis+sentinel://a?master_name=orders&db=4", "orders", 4),
            ("redis+sentinel://a/orders?service_name=orders", "orders", 0),
            ("valkey+sentinel://a/or%64ers", "orders", 0),
        ] {
            let config = Config::new(url).unwrap();
            let found = config.settings.servers[0].redis_settings().db();
            assert_eq!((config.primary.as_str(), found), (primary, database), "{url}");
        }
    }

    #[test]
    fn an_invalid_setting_is_refused_with_its_key() {
        let invalid = [
            ("redis+sentinel://a", "store"),
            ("redis+sentinel://a/", "store"),
            ("redis+sentinel:///orders", "store"),
            ("redis+sentinel://a/orders/x", "store"),
            ("redis+sentinel://a/orders/1/2", "store"),
            ("redis+sentinel://a/orders/1?db=2", "db"),
            ("redis+sentinel://a/orders?master_name=others", "master_name"),
            ("redis+sentinel://a?master_name=orders&service_name=others", "master_name"),
            ("redis+sentinel://a?master_name=", "master_name"),
            ("redis+sentinel://a/orders?sentinel_username=u", "sentinel_username"),
            ("redis+sentinel://a/orders?polylock.allow=cluster", "polylock.allow"),
            ("redis+sentinel://a/orders?sentinel_pasword=u", "sentinel_pasword"),
        ];
        checks::refuses(Config::new, &invalid);
        assert!(Config::new("redis+sentinel://a/orders#x").is_err());
    }
}
