//! The configuration of a ZooKeeper store.

use std::{fmt, ops::RangeInclusive, path::PathBuf, time::Duration};

use polylock_core::{
    ConfigError, Options, duration,
    url::{self, Address, Certificates, Keys, StoreUrl, tls_is_not_compiled_in},
};
use zookeeper_client::Acls;

use crate::driver_keys::{self, DriverSettings};

const SESSION_TIMEOUTS: RangeInclusive<Duration> =
    Duration::from_millis(300)..=Duration::from_secs(24 * 3600);
/// The longest silence of a server before the driver tries another. It is shorter for short sessions.
const MAX_SILENCE: Duration = Duration::from_secs(2);
const CONNECT_TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(5)..=Duration::from_secs(600);

/// The clients that may read and delete the nodes of locks, besides the servers' administrators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Access {
    /// All clients with access to the ensemble.
    Open,
    /// Clients with the user and password of this configuration.
    Creator,
}

impl Access {
    pub(crate) const fn acls(self) -> Acls<'static> {
        match self {
            Self::Open => Acls::anyone_all(),
            Self::Creator => Acls::creator_all(),
        }
    }
}

/// The authentication scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AuthScheme {
    /// ZooKeeper's own scheme `digest`. The servers keep no list of users: they compare the credentials with the ACL of each node.
    Digest,
    /// SASL with DIGEST-MD5, with the users that are configured at the servers. Needs the feature `sasl`.
    SaslDigestMd5,
}

/// The configuration of a ZooKeeper store. See the [crate](crate) for the options.
///
/// ```
/// use std::time::Duration;
/// use polylock_zookeeper::Config;
///
/// let config = Config::new("zookeeper://app:secret@zk1,zk2:2182,zk3/app/locks")?
///     .session_timeout(Duration::from_secs(10));
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok::<_, polylock_core::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Config {
    /// The servers, each as `host:port`.
    pub(crate) servers: Vec<String>,
    pub(crate) encrypted: bool,
    /// The path below which the locks are, as `/a/b`.
    pub(crate) root: String,
    pub(crate) credentials: Option<(String, String)>,
    pub(crate) auth: AuthScheme,
    pub(crate) access: Option<Access>,
    pub(crate) session_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) certificates: Certificates,
    #[cfg(feature = "simulation")]
    pub(crate) ensemble: Option<std::sync::Arc<dyn crate::simulation::Ensemble>>,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut config = f.debug_struct("Config");
        config
            .field("servers", &self.servers)
            .field("encrypted", &self.encrypted)
            .field("root", &self.root)
            .field("user", &self.credentials.as_ref().map(|(user, _)| user))
            .field("auth", &self.auth)
            .field("access", &self.access())
            .field("session_timeout", &self.session_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("certificates", &self.certificates);
        #[cfg(feature = "simulation")]
        config.field("ensemble", &self.ensemble);
        config.finish()
    }
}

impl Config {
    /// The root of the locks if the URL has no path.
    pub const DEFAULT_ROOT: &str = "/polylock";
    /// The default of [`connect_timeout`](Self::connect_timeout).
    pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
    /// The port of a server without a port in the URL.
    pub const DEFAULT_PORT: u16 = driver_keys::DEFAULT_PORT;

    /// Parses a URL, `zookeeper://user:password@host1:port,host2:port/path?key=value`, also with `zk://`, and `zookeeper+tls://` or
    /// `zk+tls://` for encrypted connections.
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
        let problem = |problem: &str| {
            url.problem(problem, "user:password@host1:port,host2:port/path, the user and path as needed")
        };
        let address = Address::parse(url).map_err(problem)?;
        let mut servers = address.servers().and_then(driver_keys::with_ports).map_err(problem)?;
        let mut credentials = address.credentials().map_err(problem)?;
        if credentials.as_ref().is_some_and(|(user, _)| user.is_empty() || user.contains(':')) {
            return Err(problem("has an empty user, or one with a colon, which ZooKeeper does not support"));
        }
        let root = root(&address.decoded_path().map_err(problem)?)?;
        let encrypted = url.scheme().ends_with("+tls");
        let driver = DriverSettings::read(encrypted, keys)?;
        servers.extend(driver.servers);
        if let (Some(_), Some(_)) = (&credentials, &driver.credentials) {
            return Err(ConfigError::new("username", "the URL names a user, too: keep one"));
        }
        credentials = credentials.or(driver.credentials);
        let schemes = [("digest", AuthScheme::Digest), ("sasl-digest-md5", AuthScheme::SaslDigestMd5)];
        let accesses = [("open", Access::Open), ("creator", Access::Creator)];
        // A lock of a dead holder remains until the holder's session ends.
        let ttl = Options::from_keys(&mut url.keys())?
            .ttl
            .clamp(*SESSION_TIMEOUTS.start(), *SESSION_TIMEOUTS.end());
        let config = Self {
            servers,
            encrypted,
            root,
            credentials,
            auth: keys.choice("polylock.auth", &schemes)?.unwrap_or(AuthScheme::Digest),
            access: keys.choice("polylock.access", &accesses)?,
            session_timeout: keys
                .duration("polylock.session_timeout")?
                .or(driver.session_timeout)
                .unwrap_or(ttl),
            connect_timeout: keys
                .duration("polylock.connect_timeout")?
                .or(driver.connect_timeout)
                .unwrap_or(Self::DEFAULT_CONNECT_TIMEOUT),
            certificates: Certificates::from_keys(keys)?,
            #[cfg(feature = "simulation")]
            ensemble: None,
        };
        config.check()?;
        Ok(config)
    }

    polylock_core::setters! {
        /// Sets the time for which the servers keep the session of a silent client, and with it its locks: the default TTL (`polylock.ttl`,
        /// 30 s) by default. The servers clamp it to their own limits. Two thirds of the granted timeout are the longest lease, and the
        /// default one.
        session_timeout(timeout: Duration) => session_timeout;
        /// Sets the time limit for opening a session: 5 s by default.
        connect_timeout(timeout: Duration) => connect_timeout;
        /// Sets the authentication scheme: [`AuthScheme::Digest`] by default.
        auth(scheme: AuthScheme) => auth;
    }

    /// Sets the clients that may read and delete the nodes of locks: [`Access::Creator`] by default if there are a user and a password,
    /// else [`Access::Open`].
    #[must_use]
    pub const fn allow(mut self, access: Access) -> Self {
        self.access = Some(access);
        self
    }

    /// Sets the PEM file of the CA that signed the servers' certificates, which an encrypted connection requires.
    #[must_use]
    pub fn tls_ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.certificates.ca = Some(file.into());
        self
    }

    /// Sets the PEM files of the client certificate and its key: none by default. Servers require one unless configured otherwise.
    #[must_use]
    pub fn tls_client(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.certificates.client = Some((certificate.into(), key.into()));
        self
    }

    /// Replaces the servers by a simulated ensemble.
    #[cfg(feature = "simulation")]
    #[must_use]
    pub fn simulated(mut self, ensemble: std::sync::Arc<dyn crate::simulation::Ensemble>) -> Self {
        self.ensemble = Some(ensemble);
        self
    }

    /// Returns the path of the node below which the locks are.
    #[must_use]
    pub fn root(&self) -> &str {
        &self.root
    }

    pub(crate) fn access(&self) -> Access {
        let default = if self.credentials.is_some() { Access::Creator } else { Access::Open };
        self.access.unwrap_or(default)
    }

    /// Returns the longest silence of a server before the driver tries another: this leaves time to reach another server before the lease
    /// has run out.
    pub(crate) fn longest_silence(&self) -> Duration {
        (self.session_timeout / 4).min(MAX_SILENCE)
    }

    /// Returns all servers with the root, for display and errors.
    pub(crate) fn endpoint(&self) -> String {
        format!("{}{}", self.servers.join(","), self.root)
    }

    /// Checks the combinations that the setters do not check.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let refuse = |key: &str, problem: &str| Err(ConfigError::new(key, problem));
        duration::check("polylock.session_timeout", self.session_timeout, &SESSION_TIMEOUTS)?;
        duration::check("polylock.connect_timeout", self.connect_timeout, &CONNECT_TIMEOUTS)?;
        if self.credentials.is_none() {
            if self.access == Some(Access::Creator) {
                return refuse("polylock.access", "creator needs a user and a password in the URL");
            }
            if self.auth == AuthScheme::SaslDigestMd5 {
                return refuse("polylock.auth", "sasl-digest-md5 needs a user and a password in the URL");
            }
        }
        if self.auth == AuthScheme::SaslDigestMd5 && !cfg!(feature = "sasl") {
            return refuse("polylock.auth", "SASL is not compiled in: enable feature \"sasl\"");
        }
        if self.encrypted && !cfg!(feature = "tls") {
            return Err(tls_is_not_compiled_in());
        }
        self.certificates.check(self.encrypted, "write zookeeper+tls://")?;
        if self.encrypted && self.certificates.ca.is_none() {
            let problem = "an encrypted connection needs the certificate of the authority that signed the servers' certificates";
            return refuse("polylock.tls_ca", problem);
        }
        Ok(())
    }
}

/// Returns the path of the node below which the locks are.
pub(crate) fn root(path: &str) -> Result<String, ConfigError> {
    let path = path.strip_suffix('/').unwrap_or(path);
    if path.is_empty() {
        return Ok(Config::DEFAULT_ROOT.to_owned());
    }
    let is_valid = |part: &str| {
        // Other characters are refused by the servers or mishandled by the client.
        let plain = |c: char| c.is_ascii_graphic() && c != '%';
        !part.is_empty() && part != "." && part != ".." && part.chars().all(plain)
    };
    if !path.split('/').all(is_valid) || path.split('/').next() == Some("zookeeper") {
        let problem = "the path must consist of names such as app/locks, of visible ASCII characters, and not be below \
                       /zookeeper, which the servers use";
        return Err(ConfigError::new("store", problem));
    }
    Ok(format!("/{path}"))
}

#[cfg(test)]
mod tests {
    use polylock_core::url::checks;

    use super::*;

    #[test]
    fn a_url_and_the_setters_give_the_same_configuration() {
        let url = "zookeeper://app:canary@a:2182,b,[::1],[::1]:99/x/y?polylock.session_timeout=9s\
                   &polylock.connect_timeout=2s&polylock.access=open";
        let set = Config::new("zk://app:canary@a:2182,b:2181,[::1]:2181,[::1]:99/x/y/")
            .unwrap()
            .session_timeout(Duration::from_secs(9))
            .connect_timeout(Duration::from_secs(2))
            .allow(Access::Open);
        checks::gives(Config::new, url, &set);
        assert_eq!(set.endpoint(), "a:2182,b:2181,[::1]:2181,[::1]:99/x/y");
        assert_eq!(Config::new("zk://h").unwrap().endpoint(), "h:2181/polylock");
    }

    #[test]
    fn the_session_timeout_is_the_default_ttl() {
        let of = |query: &str| {
            let url = StoreUrl::parse(&format!("zk://h{query}")).unwrap();
            let mut keys = url.keys();
            Options::from_keys(&mut keys).unwrap();
            Config::from_url(&url, &mut keys).unwrap().session_timeout
        };
        assert_eq!(of(""), Options::default().ttl);
        assert_eq!(of("?polylock.ttl=7s"), Duration::from_secs(7));
        assert_eq!(of("?polylock.ttl=7s&polylock.session_timeout=3s"), Duration::from_secs(3));
    }

    #[test]
    fn credentials_are_decoded_and_restrict_the_access() {
        let config = Config::new("zk://a%40b:p%2F%3A%23@h").unwrap();
        assert_eq!(config.credentials, Some(("a@b".to_owned(), "p/:#".to_owned())));
        assert_eq!(config.access(), Access::Creator);
        assert_eq!(Config::new("zk://h").unwrap().access(), Access::Open);
    }

    #[test]
    fn invalid_settings_name_their_key() {
        let invalid = [
            ("zk:", "store"),
            ("zk://", "store"),
            ("zk:///x", "store"),
            ("zk://:2181", "store"),
            ("zk://a,,b", "store"),
            ("zk://a:0", "store"),
            ("zk://a:port", "store"),
            ("zk://a:1:2", "store"),
            ("zk://user@a", "store"),
            ("zk://:p@a", "store"),
            ("zk://u:p#x@a", "store"),
            ("zk://a//b", "store"),
            ("zk://a/../b", "store"),
            ("zk://a/zookeeper/b", "store"),
            ("zk://a/%C3%A9", "store"),
            ("zk://a?polylock.session_timeout=1ms", "polylock.session_timeout"),
            ("zk://a?polylock.connect_timeout=1h", "polylock.connect_timeout"),
            ("zk://a?polylock.access=creator", "polylock.access"),
            ("zk://a?polylock.access=nobody", "polylock.access"),
            ("zk://a?polylock.auth=sasl-digest-md5", "polylock.auth"),
            ("zk://a?polylock.tls_ca=/ca.crt", "polylock.tls_ca"),
            ("zk://a?polylock.tls_cert=/a.crt", "polylock.tls_cert"),
            ("zk://a?polylock.sesion_timeout=1s", "polylock.sesion_timeout"),
        ];
        checks::refuses(Config::new, &invalid);
        let encrypted = Config::new("zk+tls://a").unwrap_err();
        assert_eq!(encrypted.key, if cfg!(feature = "tls") { "polylock.tls_ca" } else { "store" });
    }

    #[test]
    fn errors_and_debug_output_contain_no_secret() {
        checks::hides_secrets(
            Config::new,
            &["zk://me:canary@h", "zk://me:canary@h:x", "zk://can#ary@h", "zk://me:can%FFary@h"],
        );
    }
}
