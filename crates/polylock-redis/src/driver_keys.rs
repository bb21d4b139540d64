//! URL keys of other drivers, so that a program and its locks can use one URL.
//!
//! A key that has a meaning here is applied. A key that tunes the other driver (pool, retries, decoding) has no effect. A key that would
//! make the connection unsafe, or that this store can't honour, is refused, and the error names the key to write instead.

use std::{path::PathBuf, time::Duration};

use polylock_core::{
    ConfigError, duration,
    url::{Keys, StoreUrl},
};

use crate::config::TIMEOUTS;

/// Keys that tune another driver. The store has one connection, its own renewals and its own retries.
const NO_EFFECT: [&str; 30] = [
    "conn_max_idle_time",
    "conn_max_lifetime",
    "decode_responses",
    "encoding",
    "encoding_errors",
    "family",
    "health_check_interval",
    "idle_check_frequency",
    "idle_timeout",
    "max_active_conns",
    "max_connections",
    "max_conn_age",
    "max_idle_conns",
    "max_retries",
    "max_retry_backoff",
    "maxRetriesPerRequest",
    "min_idle_conns",
    "min_retry_backoff",
    "pool_fifo",
    "pool_size",
    "pool_timeout",
    "poolSize",
    "retry_on_error",
    "retry_on_timeout",
    "socket_keepalive",
    "socket_keepalive_options",
    "socket_read_size",
    "visibility_timeout",
    "write_timeout",
    "max_redirects",
];

/// Keys for the name of the primary that Sentinels watch.
pub(crate) const PRIMARY_KEYS: [&str; 6] = [
    "sentinelMasterId",
    "sentinel_master",
    "sentinel_master_id",
    "master_name",
    "masterName",
    "service_name",
];

/// Refused keys, and the text to write instead.
const REFUSED: [(&[&str], &str); 4] = [
    (
        &PRIMARY_KEYS,
        "the name of a primary requires Sentinels: write redis+sentinel://sentinel1:26379,sentinel2:26379/NAME",
    ),
    (
        &["cluster", "cluster_enabled", "cluster_mode"],
        "the scheme determines if the servers are a Redis Cluster: write redis-cluster:// for one, and remove this key",
    ),
    (
        &["replica", "readonly", "read_only", "read_from_replicas", "readFrom", "replicaSet"],
        "locks require the primary: remove this key",
    ),
    (&["prefix", "key_prefix", "keyPrefix", "namespace"], "write polylock.prefix"),
];

/// The settings that keys of other drivers contain.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DriverKeys {
    pub(crate) database: Option<i64>,
    pub(crate) client_name: Option<String>,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) operation_timeout: Option<Duration>,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) client: Option<(PathBuf, PathBuf)>,
}

impl DriverKeys {
    /// Reads the settings from `keys`.
    ///
    /// # Errors
    /// [`ConfigError`] on a key that is refused or has an invalid value.
    pub(crate) fn read(url: &StoreUrl, encrypted: bool, keys: &mut Keys) -> Result<Self, ConfigError> {
        let mut keys = GivenKeys { given: url.keys(), keys };
        for (names, problem) in REFUSED {
            if let Some((key, _)) = keys.first(names) {
                return Err(ConfigError::new(key, problem));
            }
        }
        if let Some((key, version)) = keys.first(&["protocol"])
            && !matches!(version.as_str(), "3" | "resp3")
        {
            let problem = "the store requires RESP3, which Redis has since 6.0, for push messages: remove this key, or write 3";
            return Err(ConfigError::new(key, problem));
        }
        keys.refuse_unverified(&["ssl_cert_reqs"], &["required", "CERT_REQUIRED"])?;
        keys.refuse_unverified(&["ssl_check_hostname", "verify_peer"], &["true", "True", "1"])?;
        keys.refuse_unverified(
            &["skip_verify", "insecure", "insecure_skip_verify"],
            &["false", "False", "0"],
        )?;
        if let Some((key, value)) = keys.first(&["ssl", "tls"])
            && matches!(value.as_str(), "true" | "True" | "1") != encrypted
        {
            return Err(ConfigError::new(
                key,
                "contradicts the scheme: rediss:// is encrypted, redis:// is not",
            ));
        }
        let read = Self {
            database: keys.read(&["db", "database"], |text| {
                text.parse().ok().filter(|database| *database >= 0).ok_or("must be the number of a database")
            })?,
            client_name: keys.first(&["client_name", "clientName"]).map(|(_, name)| name),
            connect_timeout: keys.timeout(&["socket_connect_timeout", "connect_timeout", "dial_timeout"])?,
            operation_timeout: keys.timeout(&["socket_timeout", "read_timeout", "timeout"])?,
            ca: keys.first(&["ssl_ca_certs", "ssl_ca_path"]).map(|(_, file)| file.into()),
            client: match (keys.first(&["ssl_certfile"]), keys.first(&["ssl_keyfile"])) {
                (Some((_, certificate)), Some((_, key))) => Some((certificate.into(), key.into())),
                (None, None) => None,
                _ => {
                    return Err(ConfigError::new(
                        "ssl_certfile",
                        "requires ssl_keyfile, and ssl_keyfile requires it",
                    ));
                }
            },
        };
        let ignored: Vec<_> =
            NO_EFFECT.iter().filter_map(|key| keys.first(&[*key])).map(|(key, _)| key).collect();
        if !ignored.is_empty() {
            tracing::debug!(
                keys = ignored.join(", "),
                "these keys of another driver have no effect on locks"
            );
        }
        Ok(read)
    }
}

/// The keys of a URL. Only those that are given are taken, so that no suggestion names a key of another driver.
struct GivenKeys<'k> {
    given: Keys,
    keys: &'k mut Keys,
}

impl GivenKeys<'_> {
    /// Returns the first of `names` that is given, and its value.
    fn first(&mut self, names: &[&'static str]) -> Option<(&'static str, String)> {
        let name = names.iter().find(|name| self.given.text(name).is_some())?;
        self.keys.text(name).map(|value| (*name, value))
    }

    fn read<T, E: ToString>(
        &mut self,
        names: &[&'static str],
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, ConfigError> {
        let Some((key, value)) = self.first(names) else { return Ok(None) };
        read(&value).map(Some).map_err(|problem| ConfigError::new(key, problem.to_string()))
    }

    fn timeout(&mut self, names: &[&'static str]) -> Result<Option<Duration>, ConfigError> {
        self.read(names, |text| {
            let timeout = duration::parse(text)?;
            TIMEOUTS.contains(&timeout).then_some(timeout).ok_or_else(|| "must be 5ms to 1m".to_owned())
        })
    }

    /// Refuses a value that is not in `safe`.
    fn refuse_unverified(&mut self, names: &[&'static str], safe: &[&str]) -> Result<(), ConfigError> {
        let problem = "the server's certificate is always verified: remove this key, and set polylock.tls_ca to the authority \
                       that signed it";
        self.read(names, |value| safe.contains(&value).then_some(()).ok_or(problem)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Result<DriverKeys, ConfigError> {
        let url = StoreUrl::parse(&format!("redis://h?{query}")).unwrap();
        let mut keys = url.keys();
        let read = DriverKeys::read(&url, query.contains("ssl_ca_certs"), &mut keys)?;
        keys.finish()?;
        Ok(read)
    }

    #[test]
    fn keys_that_have_a_meaning_here_are_applied() {
        let query = "db=2&client_name=app&socket_timeout=1.5&socket_connect_timeout=2s&ssl_ca_certs=/ca&ssl_certfile=/c&\
                     ssl_keyfile=/k&ssl_cert_reqs=required&protocol=3&ssl=true&decode_responses=true&pool_size=10";
        let expected = DriverKeys {
            database: Some(2),
            client_name: Some("app".to_owned()),
            connect_timeout: Some(Duration::from_secs(2)),
            operation_timeout: Some(Duration::from_millis(1500)),
            ca: Some("/ca".into()),
            client: Some(("/c".into(), "/k".into())),
        };
        assert_eq!(read(query), Ok(expected));
        assert_eq!(read(""), Ok(DriverKeys::default()));
    }

    #[test]
    fn keys_that_cannot_be_honoured_are_refused_with_a_reason() {
        for (query, key, expected) in [
            ("protocol=2", "protocol", "RESP3"),
            ("ssl_cert_reqs=none", "ssl_cert_reqs", "polylock.tls_ca"),
            ("skip_verify=true", "skip_verify", "polylock.tls_ca"),
            ("ssl=true", "ssl", "rediss://"),
            ("sentinelMasterId=m", "sentinelMasterId", "redis+sentinel://"),
            ("cluster=true", "cluster", "redis-cluster://"),
            ("readonly=true", "readonly", "primary"),
            ("keyPrefix=x", "keyPrefix", "polylock.prefix"),
            ("db=a", "db", "number"),
            ("socket_timeout=1h", "socket_timeout", "5ms to 1m"),
            ("socket_timeout=soon", "socket_timeout", "duration"),
            ("ssl_certfile=/c", "ssl_certfile", "ssl_keyfile"),
        ] {
            let error = read(query).unwrap_err();
            assert!(error.key == key && error.problem.contains(expected), "{query}: {error}");
        }
    }

    #[test]
    fn a_misspelt_key_is_refused_and_a_key_of_the_store_is_suggested() {
        let error = read("sockettimeout=3").unwrap_err();
        assert!(error.problem.contains("unknown key") && !error.problem.contains("socket"), "{error}");
    }
}
