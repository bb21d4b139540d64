//! URL keys of other drivers, so that a program and its locks can use one URL.

use std::{ops::RangeInclusive, time::Duration};

use polylock_core::{
    ConfigError, duration,
    url::{
        Certificates, Keys,
        driver_keys::{DriverKey, ignored, one_of, rejected},
    },
};

/// The range of both time limits.
pub(crate) const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(5)..=Duration::from_secs(60);

/// Keys for the name of the primary that Sentinels watch.
pub(crate) const PRIMARY_KEYS: [&str; 6] = [
    "sentinelMasterId",
    "sentinel_master",
    "sentinel_master_id",
    "master_name",
    "masterName",
    "service_name",
];

/// The keys without a meaning here.
const DRIVER_KEYS: &[DriverKey] = &[
    // The store has one connection, its own renewals and its own retries.
    ignored(&[
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
    ]),
    rejected(
        &PRIMARY_KEYS,
        "the name of a primary requires Sentinels: write redis+sentinel://sentinel1:26379,sentinel2:26379/NAME",
    ),
    rejected(
        &["cluster", "cluster_enabled", "cluster_mode"],
        "the scheme determines if the servers are a Redis Cluster: write redis-cluster:// for one, and remove this key",
    ),
    rejected(
        &["replica", "readonly", "read_only", "read_from_replicas", "readFrom", "replicaSet"],
        "locks require the primary: remove this key",
    ),
    rejected(&["prefix", "key_prefix", "keyPrefix", "namespace"], "write polylock.namespace"),
    one_of(
        &["protocol"],
        &["3", "resp3"],
        "the store requires RESP3, which Redis has since 6.0, for push messages: remove this key, or write 3",
    ),
    one_of(&["ssl_cert_reqs"], &["required", "CERT_REQUIRED"], UNVERIFIED),
    one_of(&["ssl_check_hostname", "verify_peer"], &["true", "1"], UNVERIFIED),
    one_of(&["skip_verify", "insecure", "insecure_skip_verify"], &["false", "0"], UNVERIFIED),
];

const UNVERIFIED: &str = "the server's certificate is always verified: remove this key, and set polylock.tls_ca to the authority that \
                          signed it";

/// The settings that keys of other drivers contain.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DriverSettings {
    pub(crate) database: Option<i64>,
    pub(crate) client_name: Option<String>,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) operation_timeout: Option<Duration>,
    pub(crate) certificates: Certificates,
}

impl DriverSettings {
    /// Takes the settings from `keys`.
    ///
    /// # Errors
    /// [`ConfigError`] on a key that is refused or has an invalid value.
    pub(crate) fn read(encrypted: bool, keys: &mut Keys) -> Result<Self, ConfigError> {
        keys.take_driver_keys(DRIVER_KEYS)?;
        keys.take_encryption_key(&["ssl", "tls"], encrypted, "rediss", "redis")?;
        let client = if keys.contains("ssl_certfile") || keys.contains("ssl_keyfile") {
            keys.pair("ssl_certfile", "ssl_keyfile")?
        } else {
            None
        };
        Ok(Self {
            database: keys.read_first(&["db", "database"], |text| {
                text.parse().ok().filter(|database| *database >= 0).ok_or("must be the number of a database")
            })?,
            client_name: keys.first(&["client_name", "clientName"]).map(|(_, name)| name),
            connect_timeout: timeout(keys, &["socket_connect_timeout", "connect_timeout", "dial_timeout"])?,
            operation_timeout: timeout(keys, &["socket_timeout", "read_timeout", "timeout"])?,
            certificates: Certificates {
                ca: keys.first(&["ssl_ca_certs", "ssl_ca_path"]).map(|(_, file)| file.into()),
                client: client.map(|(certificate, key)| (certificate.into(), key.into())),
            },
        })
    }
}

fn timeout(keys: &mut Keys, names: &[&'static str]) -> Result<Option<Duration>, ConfigError> {
    let Some((key, text)) = keys.first(names) else { return Ok(None) };
    let timeout = duration::parse(&text).map_err(|problem| ConfigError::new(key, problem))?;
    duration::check(key, timeout, &TIMEOUTS)?;
    Ok(Some(timeout))
}

#[cfg(test)]
mod tests {
    use polylock_core::url::StoreUrl;

    use super::*;

    fn read(query: &str) -> Result<DriverSettings, ConfigError> {
        let mut keys = StoreUrl::parse(&format!("redis://h?{query}")).unwrap().keys();
        let read = DriverSettings::read(query.contains("ssl_ca_certs"), &mut keys)?;
        keys.finish()?;
        Ok(read)
    }

    #[test]
    fn keys_that_have_a_meaning_here_are_applied() {
        let query = "db=2&client_name=app&socket_timeout=1.5&socket_connect_timeout=2s&ssl_ca_certs=/ca&ssl_certfile=/c&\
                     ssl_keyfile=/k&ssl_cert_reqs=required&protocol=3&ssl=true&decode_responses=true&pool_size=10";
        let expected = DriverSettings {
            database: Some(2),
            client_name: Some("app".to_owned()),
            connect_timeout: Some(Duration::from_secs(2)),
            operation_timeout: Some(Duration::from_millis(1500)),
            certificates: Certificates { ca: Some("/ca".into()), client: Some(("/c".into(), "/k".into())) },
        };
        assert_eq!(read(query), Ok(expected));
        assert_eq!(read(""), Ok(DriverSettings::default()));
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
            ("keyPrefix=x", "keyPrefix", "polylock.namespace"),
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
