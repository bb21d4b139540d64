//! The keys of other programs' ZooKeeper URLs, so that a program and its locks can use the same URL.

use std::time::Duration;

use polylock_core::{
    ConfigError, duration,
    url::{
        Host, Keys,
        driver_keys::{DriverKey, ignored, rejected},
    },
};

pub(crate) const DEFAULT_PORT: u16 = 2181;

/// The keys without a meaning here.
const DRIVER_KEYS: &[DriverKey] = &[
    ignored(&["client", "check", "blocking", "retry"]),
    rejected(
        &["readonly", "read_only", "readOnly", "canBeReadOnly"],
        "locks need write access, which a read-only server refuses: remove this key",
    ),
    rejected(
        &["group", "chroot", "root", "namespace", "polylock.namespace"],
        "write the path in the URL: zookeeper://host1,host2/path",
    ),
    rejected(
        &["verify_certs", "verifyCerts"],
        "the servers' certificates are always verified: remove this key, and name the authority in polylock.tls_ca",
    ),
];

/// The settings that keys of other programs contain.
#[derive(Default)]
pub(crate) struct DriverSettings {
    /// Each as `host:port`.
    pub(crate) servers: Vec<String>,
    pub(crate) credentials: Option<(String, String)>,
    pub(crate) session_timeout: Option<Duration>,
    pub(crate) connect_timeout: Option<Duration>,
}

impl DriverSettings {
    /// Takes the settings from `keys`.
    ///
    /// # Errors
    /// [`ConfigError`] on a key that is refused, or with an invalid value.
    pub(crate) fn read(encrypted: bool, keys: &mut Keys) -> Result<Self, ConfigError> {
        keys.take_driver_keys(DRIVER_KEYS)?;
        keys.take_encryption_key(
            &["use_ssl", "ssl", "tls", "secure"],
            encrypted,
            "zookeeper+tls",
            "zookeeper",
        )?;
        let servers = keys.read_first(&["backup"], |servers| {
            let servers = Host::parse_list(servers).and_then(with_ports);
            servers.map_err(|problem| format!("{problem}: write host1:port,host2:port"))
        })?;
        let credentials = match (keys.first(&["username", "user"]), keys.first(&["password"])) {
            (Some((key, user)), Some(_)) if user.is_empty() || user.contains(':') => {
                return Err(ConfigError::new(
                    key,
                    "is empty or has a colon, which ZooKeeper does not support",
                ));
            }
            (Some((_, user)), Some((_, password))) => Some((user, password)),
            (None, None) => None,
            _ => return Err(ConfigError::new("username", "must be given together with password")),
        };
        Ok(Self {
            servers: servers.unwrap_or_default(),
            credentials,
            session_timeout: keys.read_first(
                &["session", "sessionTimeout", "session_timeout", "session_timeout_ms"],
                millis,
            )?,
            connect_timeout: keys.read_first(
                &["timeout", "connectTimeout", "connectionTimeout", "connection_timeout"],
                millis,
            )?,
        })
    }
}

/// Returns the servers, each as `host:port`.
///
/// # Errors
/// The problem, if a port is invalid.
pub(crate) fn with_ports(servers: Vec<Host<'_>>) -> Result<Vec<String>, &'static str> {
    servers.into_iter().map(|server| server.with_port(DEFAULT_PORT)).collect()
}

/// Parses a duration. A number without a unit is in milliseconds, as in all of ZooKeeper.
fn millis(text: &str) -> Result<Duration, String> {
    text.parse().map(Duration::from_millis).or_else(|_| duration::parse(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn keys_of_other_clients_are_applied() {
        let query = "backup=b:2182,c&username=u&password=p&timeout=3000&session=20s&client=curator";
        let config = Config::new(&format!("zookeeper://a/x?{query}")).unwrap();
        assert_eq!(config.endpoint(), "a:2181,b:2182,c:2181/x");
        assert_eq!(config.credentials, Some(("u".to_owned(), "p".to_owned())));
        let timeouts = (config.session_timeout, config.connect_timeout);
        assert_eq!(timeouts, (Duration::from_secs(20), Duration::from_secs(3)));
        assert!(!format!("{config:?}").contains("\"p\""));
        let own = Config::new("zk://a?timeout=3000&polylock.connect_timeout=1s").unwrap();
        assert_eq!(own.connect_timeout, Duration::from_secs(1));
    }

    #[test]
    fn unsupported_keys_are_refused_with_a_reason() {
        for (query, key, word) in [
            ("readonly=true", "readonly", "read-only"),
            ("group=dubbo", "group", "path"),
            ("verify_certs=false", "verify_certs", "polylock.tls_ca"),
            ("use_ssl=true", "use_ssl", "zookeeper+tls://"),
            ("backup=b:x", "backup", "port"),
            ("username=u", "username", "password"),
            ("username=a:b&password=p", "username", "colon"),
            ("session=soon", "session", "duration"),
            ("session=1", "polylock.session_timeout", "300ms"),
        ] {
            let error = Config::new(&format!("zk://a?{query}")).unwrap_err();
            assert!(error.key == key && error.problem.contains(word), "{query}: {error}");
        }
        assert_eq!(Config::new("zk://u:p@a?username=u&password=p").unwrap_err().key, "username");
    }
}
