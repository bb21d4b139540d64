//! The keys of other programs' ZooKeeper URLs, so that a program and its locks can use the same URL.
//!
//! A key with an equivalent here is applied, the name of a client library has no effect, and a key that this store does not support is
//! refused with a remedy.

use std::time::Duration;

use polylock_core::{
    ConfigError, duration,
    url::{Keys, StoreUrl},
};

use crate::config::server;

/// Keys of client libraries that have no effect here.
const NO_EFFECT: [&str; 4] = ["client", "check", "blocking", "retry"];

/// Keys that are refused, with the remedy.
const REFUSED: [(&[&str], &str); 3] = [
    (
        &["readonly", "read_only", "readOnly", "canBeReadOnly"],
        "locks need write access, which a read-only server refuses: remove this key",
    ),
    (&["group", "chroot", "root", "namespace"], "write the path in the URL: zookeeper://host1,host2/path"),
    (
        &["verify_certs", "verifyCerts"],
        "the servers' certificates are always verified: remove this key, and name the authority in polylock.tls_ca",
    ),
];

/// The settings from such keys.
#[derive(Default)]
pub(crate) struct DriverKeys {
    /// Each as `host:port`.
    pub(crate) servers: Vec<String>,
    pub(crate) credentials: Option<(String, String)>,
    pub(crate) session_timeout: Option<Duration>,
    pub(crate) connect_timeout: Option<Duration>,
}

impl DriverKeys {
    /// Takes the settings from `keys`.
    ///
    /// # Errors
    /// [`ConfigError`] on a key that is refused, or with an invalid value.
    pub(crate) fn read(url: &StoreUrl, encrypted: bool, keys: &mut Keys) -> Result<Self, ConfigError> {
        // Only keys that are present are taken, so that suggestions for a misspelt key never name a key of another driver.
        let mut given = url.keys();
        let mut first = |names: &[&'static str]| {
            let name = names.iter().find(|name| given.text(name).is_some())?;
            keys.text(name).map(|value| (*name, value))
        };
        for (names, problem) in REFUSED {
            if let Some((key, _)) = first(names) {
                return Err(ConfigError::new(key, problem));
            }
        }
        if let Some((key, value)) = first(&["use_ssl", "ssl", "tls", "secure"])
            && matches!(value.as_str(), "true" | "True" | "1") != encrypted
        {
            let problem = "contradicts the scheme: zookeeper+tls:// is encrypted, zookeeper:// is not";
            return Err(ConfigError::new(key, problem));
        }
        let servers = first(&["backup"]).map_or(Ok(Vec::new()), |(key, servers)| {
            let servers: Result<_, _> = servers.split(',').map(server).collect();
            servers
                .map_err(|problem| ConfigError::new(key, format!("{problem}: write host1:port,host2:port")))
        })?;
        let credentials = match (first(&["username", "user"]), first(&["password"])) {
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
        let mut timeout = |names: &[&'static str]| {
            let timeout = first(names)
                .map(|(key, text)| millis(&text).map_err(|problem| ConfigError::new(key, problem)));
            timeout.transpose()
        };
        let session_timeout =
            timeout(&["session", "sessionTimeout", "session_timeout", "session_timeout_ms"])?;
        let connect_timeout =
            timeout(&["timeout", "connectTimeout", "connectionTimeout", "connection_timeout"])?;
        let ignored: Vec<_> = NO_EFFECT.iter().filter_map(|key| first(&[*key])).map(|(key, _)| key).collect();
        if !ignored.is_empty() {
            tracing::debug!(
                keys = ignored.join(", "),
                "these keys of another client have no effect on locks"
            );
        }
        Ok(Self { servers, credentials, session_timeout, connect_timeout })
    }
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
