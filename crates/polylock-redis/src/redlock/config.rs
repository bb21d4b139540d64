//! Configuration of a store in independent servers.

use std::{collections::HashSet, ops::RangeInclusive, time::Duration};

use polylock_core::{
    ConfigError, duration,
    url::{self, Keys, StoreUrl},
};
use redis::Client;

use crate::{
    config::{Settings, address, common_setters},
    hosts::Deployment,
};

/// The range of `polylock.max_ttl`.
const MAX_TTLS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(24 * 3600);

/// The treatment of the votes of a server that was restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Restart {
    /// The votes of a server that may have forgotten some do not count until every earlier lease has expired: if it is new, has lost its data,
    /// or was restarted.
    #[default]
    Delay,
    /// Votes count at once: every server runs with `appendonly yes` and `appendfsync always`, never loses its data, and is never started with a
    /// clock that is ahead.
    Trust,
}

/// The servers, and the settings of the store. See the [module](super) for the options.
///
/// ```
/// use polylock_redis::redlock::Config;
///
/// let config = Config::new("redlock://app:secret@a:6379,b:6379,c:6379")?.namespace("app");
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok::<_, polylock_core::ConfigError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Config {
    pub(super) settings: Settings,
    pub(super) restart: Restart,
    pub(super) max_ttl: Duration,
}

impl Config {
    /// The default of [`max_ttl`](Self::max_ttl).
    pub const DEFAULT_MAX_TTL: Duration = Duration::from_secs(60);
    /// The minimum number of servers.
    pub const MIN_SERVERS: usize = 3;

    /// Reads the servers of a URL, `redlock://user:password@host1:port,host2:port,host3:port/database?key=value`.
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
        let restarts = [("delay", Restart::Delay), ("trust", Restart::Trust)];
        let config = Self {
            settings: Settings::read(url, Deployment::Redlock, Self::DEFAULT_OPERATION_TIMEOUT, keys)?,
            restart: keys.choice("polylock.restart", &restarts)?.unwrap_or_default(),
            max_ttl: keys.duration("polylock.max_ttl")?.unwrap_or(Self::DEFAULT_MAX_TTL),
        };
        config.check()?;
        Ok(config)
    }

    /// Uses the servers of the application's clients, at least three, with the user, password, database and TLS settings of each. The store
    /// makes connections of its own. See [`single::Config::of`](crate::single::Config::of) for an example.
    #[must_use]
    pub fn of<'c>(clients: impl IntoIterator<Item = &'c Client>) -> Self {
        Self {
            settings: Settings::from_clients(clients, Self::DEFAULT_OPERATION_TIMEOUT),
            restart: Restart::default(),
            max_ttl: Self::DEFAULT_MAX_TTL,
        }
    }

    common_setters! {
        /// Takes the user and the password of the servers from `provider`; see
        /// [`single::Config::credentials`](crate::single::Config::credentials).
        credentials,
        /// The time without a reply after which the other servers decide without a server: 200 ms by default, and at most a fifth of
        /// the lease.
        operation_timeout: Duration::from_millis(200),
    }

    polylock_core::setters! {
        /// The treatment of the votes of a server that was restarted. By default they do not count at first if the server may have forgotten
        /// some. All programs that share a lock must use the same value.
        restart(restart: Restart) => restart;
        /// The longest lease, and with [`Restart::Delay`] also the time, but for a second, for which the votes of a server that may have
        /// forgotten some do not count: 60 s by default. All programs that share a lock must use the same value.
        max_ttl(max_ttl: Duration) => max_ttl;
    }

    /// Returns the driver's clients for connections of your own to the same servers: with the user, the password, the database and the
    /// certificates of this configuration. Changes of [`credentials`](Self::credentials) are not included.
    ///
    /// # Errors
    /// [`ConfigError`] if a certificate can't be read.
    pub fn clients(&self) -> Result<Vec<Client>, ConfigError> {
        self.settings.clients()
    }

    /// Checks the values that the setters accept unchecked.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        self.settings.check()?;
        let (servers, mut seen) = (&self.settings.servers, HashSet::new());
        if let Some(twice) = servers.iter().find(|server| !seen.insert(address(server))) {
            let problem = format!("names {} twice: its vote counts once", address(twice));
            return Err(ConfigError::new("store", problem));
        }
        if servers.len() < Self::MIN_SERVERS {
            let problem = format!(
                "names {} servers, and a majority requires at least {} independent ones; five tolerate the loss of two",
                servers.len(),
                Self::MIN_SERVERS
            );
            return Err(ConfigError::new("store", problem));
        }
        duration::check("polylock.max_ttl", self.max_ttl, &MAX_TTLS)
    }
}

#[cfg(test)]
mod tests {
    use polylock_core::url::checks;

    use super::*;
    use crate::Allowed;

    #[test]
    fn a_url_and_the_setters_give_the_same_settings() {
        let url = "redlock://app:canary@a:1,b:2,[::1]:3/4?polylock.namespace=p&polylock.connect_timeout=2s\
                   &polylock.operation_timeout=50ms&polylock.restart=trust&polylock.max_ttl=5m&polylock.allow=eviction";
        let set = Config::new("redlock://app:canary@a:1,b:2,[::1]:3/4?polylock.tls=off")
            .unwrap()
            .namespace("p")
            .connect_timeout(Duration::from_secs(2))
            .operation_timeout(Duration::from_millis(50))
            .restart(Restart::Trust)
            .max_ttl(Duration::from_secs(300))
            .allow(Allowed::Eviction);
        let shown = checks::gives(Config::new, url, &set);
        assert!(shown.contains(r#"["a:1/4", "b:2/4", "[::1]:3/4"]"#), "{shown}");
        assert!(!shown.contains("canary"));
    }

    #[test]
    fn every_server_gets_the_user_and_the_password() {
        for server in Config::new("redlock://u:p%40@a,b,c").unwrap().settings.servers {
            let redis = server.redis_settings();
            assert_eq!((redis.username(), redis.password()), (Some("u"), Some("p@")));
        }
    }

    #[test]
    fn an_invalid_setting_is_refused_with_its_key() {
        let invalid = [
            ("redlock:a,b,c", "store"),
            ("redlock://", "store"),
            ("redlock://a", "store"),
            ("redlock://a,b", "store"),
            ("redlock://a,b,a", "store"),
            ("redlock://a,b,a:6379", "store"),
            ("redlock://a,,b,c", "store"),
            ("redlock://a,b,c:port", "store"),
            ("redlock://a,b,c?polylock.restart=never", "polylock.restart"),
            ("redlock://a,b,c?polylock.max_ttl=10ms", "polylock.max_ttl"),
            ("redlock://a,b,c?polylock.max_ttl=10d", "polylock.max_ttl"),
            ("redlock://a,b,c?polylock.tls=yes", "polylock.tls"),
            ("redlock://a,b,c?polylock.quorum=2", "polylock.quorum"),
        ];
        checks::refuses(Config::new, &invalid);
    }
}
