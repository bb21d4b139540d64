//! The configuration of a ZooKeeper store.

use std::{fmt, path::PathBuf, time::Duration};

use percent_encoding::percent_decode_str;
use polylock_core::{
    ConfigError, Options,
    url::{self, Keys, StoreUrl},
};
use zookeeper_client::Acls;

use crate::driver_keys::DriverKeys;

const SESSION_TIMEOUTS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(300)..=Duration::from_secs(24 * 3600);
const CONNECT_TIMEOUTS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(5)..=Duration::from_secs(600);

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

/// The certificate files of an encrypted connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Certificates {
    pub(crate) ca: Option<PathBuf>,
    pub(crate) client: Option<(PathBuf, PathBuf)>,
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
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("servers", &self.servers)
            .field("encrypted", &self.encrypted)
            .field("root", &self.root)
            .field("user", &self.credentials.as_ref().map(|(user, _)| user))
            .field("auth", &self.auth)
            .field("access", &self.access())
            .field("session_timeout", &self.session_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("certificates", &self.certificates)
            .finish()
    }
}

impl Config {
    /// The root of the locks if the URL has no path.
    pub const DEFAULT_ROOT: &str = "/polylock";
    /// The default of [`connect_timeout`](Self::connect_timeout).
    pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
    /// The port of a server without a port in the URL.
    pub const DEFAULT_PORT: u16 = 2181;

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
        let Address { mut servers, root, mut credentials } = address(url)?;
        let encrypted = url.scheme().ends_with("+tls");
        let driver = DriverKeys::read(url, encrypted, keys)?;
        servers.extend(driver.servers);
        if let (Some(_), Some(_)) = (&credentials, &driver.credentials) {
            return Err(ConfigError::new("username", "the URL names a user, too: keep one"));
        }
        credentials = credentials.or(driver.credentials);
        let schemes = [("digest", AuthScheme::Digest), ("sasl-digest-md5", AuthScheme::SaslDigestMd5)];
        let accesses = [("open", Access::Open), ("creator", Access::Creator)];
        let client = keys.pair("polylock.tls_cert", "polylock.tls_key")?;
        let client = client.map(|(certificate, key)| (certificate.into(), key.into()));
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
            certificates: Certificates { ca: keys.text("polylock.tls_ca").map(PathBuf::from), client },
        };
        config.check()?;
        Ok(config)
    }

    /// Sets the time for which the servers keep the session of a silent client, and with it its locks: the default TTL (`polylock.ttl`,
    /// 30 s) by default. The servers clamp it to their own limits. Two thirds of the granted timeout are the longest lease, and the
    /// default one.
    #[must_use]
    pub const fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = timeout;
        self
    }

    /// Sets the time limit for opening a session: 5 s by default.
    #[must_use]
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the clients that may read and delete the nodes of locks: [`Access::Creator`] by default if there are a user and a password,
    /// else [`Access::Open`].
    #[must_use]
    pub const fn allow(mut self, access: Access) -> Self {
        self.access = Some(access);
        self
    }

    /// Sets the authentication scheme: [`AuthScheme::Digest`] by default.
    #[must_use]
    pub const fn auth(mut self, scheme: AuthScheme) -> Self {
        self.auth = scheme;
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

    pub(crate) fn access(&self) -> Access {
        let default = if self.credentials.is_some() { Access::Creator } else { Access::Open };
        self.access.unwrap_or(default)
    }

    /// Returns all servers with the root, for display and errors.
    pub(crate) fn endpoint(&self) -> String {
        format!("{}{}", self.servers.join(","), self.root)
    }

    /// Checks the combinations that the setters do not check.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let refuse = |key: &str, problem: &str| Err(ConfigError::new(key, problem));
        if !SESSION_TIMEOUTS.contains(&self.session_timeout) {
            return refuse("polylock.session_timeout", "must be 300ms to 24h");
        }
        if !CONNECT_TIMEOUTS.contains(&self.connect_timeout) {
            return refuse("polylock.connect_timeout", "must be 5ms to 10m");
        }
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
            return refuse("store", "encrypted connections are not compiled in: enable feature \"tls\"");
        }
        let named = self.certificates.ca.is_some() || self.certificates.client.is_some();
        if named && !self.encrypted {
            let problem = "certificates need an encrypted connection: write zookeeper+tls://";
            return refuse("polylock.tls_ca", problem);
        }
        if self.encrypted && self.certificates.ca.is_none() {
            let problem = "an encrypted connection needs the certificate of the authority that signed the servers' certificates";
            return refuse("polylock.tls_ca", problem);
        }
        Ok(())
    }
}

struct Address {
    servers: Vec<String>,
    root: String,
    credentials: Option<(String, String)>,
}

fn address(url: &StoreUrl) -> Result<Address, ConfigError> {
    let problem = |problem: &str| {
        let scheme = url.scheme();
        let example =
            format!("{scheme}://user:password@host1:port,host2:port/path, the user and path as needed");
        ConfigError::new("store", format!("{problem}: write {example}"))
    };
    let rest = url.rest().strip_prefix("//").ok_or_else(|| problem("names no server"))?;
    if rest.contains('#') {
        return Err(problem("contains a #, which must be percent-encoded in a user or password"));
    }
    let decoded = |text: &str| {
        let text = percent_decode_str(text).decode_utf8().map_err(|_| problem("is not valid UTF-8"))?;
        Ok::<_, ConfigError>(text.into_owned())
    };
    // The separator is the *last* `@`: a password may contain an unencoded one.
    let (credentials, rest) = match rest.rsplit_once('@') {
        Some((credentials, rest)) => {
            let (user, password) =
                credentials.split_once(':').ok_or_else(|| problem("names a user without a password"))?;
            let (user, password) = (decoded(user)?, decoded(password)?);
            if user.is_empty() || user.contains(':') {
                return Err(problem(
                    "has an empty user, or one with a colon, which ZooKeeper does not support",
                ));
            }
            (Some((user, password)), rest)
        }
        None => (None, rest),
    };
    let (servers, root) = rest.split_once('/').unwrap_or((rest, ""));
    let servers = servers.split(',').map(|server| self::server(server).map_err(problem));
    Ok(Address {
        servers: servers.collect::<Result<_, _>>()?,
        root: self::root(&decoded(root)?)?,
        credentials,
    })
}

/// Returns a server as `host:port`.
pub(crate) fn server(text: &str) -> Result<String, &'static str> {
    let (host, port) = match text.rsplit_once(':') {
        // The last colon of `[::1]` does not precede a port.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let bracketed = host.starts_with('[') && host.ends_with(']');
    if host.is_empty() || (host.contains(':') && !bracketed) {
        return Err("names a server without a host");
    }
    let port = port.map_or(Ok(Config::DEFAULT_PORT), str::parse);
    let port = port.ok().filter(|port| *port > 0).ok_or("has an invalid port")?;
    Ok(format!("{host}:{port}"))
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
    use super::*;

    fn shown(url: &str) -> String {
        format!("{:?}", Config::new(url).unwrap())
    }

    #[test]
    fn a_url_and_the_setters_give_the_same_configuration() {
        let url = "zookeeper://app:canary@a:2182,b,[::1],[::1]:99/x/y?polylock.session_timeout=9s\
                   &polylock.connect_timeout=2s&polylock.access=open";
        let set = Config::new("zk://app:canary@a:2182,b:2181,[::1]:2181,[::1]:99/x/y/")
            .unwrap()
            .session_timeout(Duration::from_secs(9))
            .connect_timeout(Duration::from_secs(2))
            .allow(Access::Open);
        assert_eq!(shown(url), format!("{set:?}"));
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
        for (url, key) in [
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
        ] {
            assert_eq!(Config::new(url).unwrap_err().key, key, "{url}");
        }
        let encrypted = Config::new("zk+tls://a").unwrap_err();
        assert_eq!(encrypted.key, if cfg!(feature = "tls") { "polylock.tls_ca" } else { "store" });
    }

    #[test]
    fn errors_and_debug_output_contain_no_secret() {
        for url in ["zk://me:canary@h", "zk://me:canary@h:x", "zk://can#ary@h", "zk://me:can%FFary@h"] {
            let shown = match Config::new(url) {
                Ok(config) => format!("{config:?}"),
                Err(error) => format!("{error:?} {error}"),
            };
            assert!(!shown.contains("canary") && !shown.contains("ary@"), "{shown}");
        }
    }
}
