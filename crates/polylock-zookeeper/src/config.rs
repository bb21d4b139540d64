//! Where the ensemble is and how it is used.

use std::{fmt, path::PathBuf, time::Duration};

use percent_encoding::percent_decode_str;
use polylock_core::{
    ConfigError, Options,
    url::{self, Keys, StoreUrl},
};
use zookeeper_client::Acls;

use crate::driver_keys::DriverKeys;

const SESSIONS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(300)..=Duration::from_secs(24 * 3600);
const CONNECT: std::ops::RangeInclusive<Duration> = Duration::from_millis(5)..=Duration::from_secs(600);

/// Who may see and delete the nodes of locks, beside the servers' administrators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Access {
    /// Everybody who reaches the ensemble.
    Open,
    /// Whoever has the user and password of this configuration.
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

/// How the user and password are shown to the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Proof {
    /// ZooKeeper's own scheme `digest`. The servers keep no list of users: they compare with what a node asks for.
    Digest,
    /// SASL with DIGEST-MD5, with the users that the servers know. Needs the feature `sasl`.
    SaslDigestMd5,
}

/// The files of an encrypted connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Certificates {
    pub(crate) ca: Option<PathBuf>,
    pub(crate) client: Option<(PathBuf, PathBuf)>,
}

/// Where the ensemble is and how it is used. See the [crate](crate) for what each option means.
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
    /// Each as `host:port`.
    pub(crate) servers: Vec<String>,
    pub(crate) encrypted: bool,
    /// Below which the locks are: `/a/b`.
    pub(crate) root: String,
    pub(crate) credentials: Option<(String, String)>,
    pub(crate) proof: Proof,
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
            .field("proof", &self.proof)
            .field("access", &self.access())
            .field("session_timeout", &self.session_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("certificates", &self.certificates)
            .finish()
    }
}

impl Config {
    /// Where the locks are if the URL names no path.
    pub const DEFAULT_ROOT: &str = "/polylock";
    /// The default of [`connect_timeout`](Self::connect_timeout).
    pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
    /// The port of a server whose URL names none.
    pub const DEFAULT_PORT: u16 = 2181;

    /// The ensemble of a URL, `zookeeper://user:password@host1:port,host2:port/path?key=value`, also `zk://`, and
    /// `zookeeper+tls://` or `zk+tls://` for encrypted connections.
    ///
    /// # Errors
    /// [`ConfigError`] on what makes no sense.
    pub fn new(url: &str) -> Result<Self, ConfigError> {
        url::read(url, Self::from_url)
    }

    /// Reads a URL as [`new`](Self::new) does, and takes the store's keys from `keys`.
    ///
    /// # Errors
    /// [`ConfigError`] on what makes no sense.
    pub fn from_url(url: &StoreUrl, keys: &mut Keys) -> Result<Self, ConfigError> {
        let Address { mut servers, root, mut credentials } = address(url)?;
        let encrypted = url.scheme().ends_with("+tls");
        let driver = DriverKeys::read(url, encrypted, keys)?;
        servers.extend(driver.servers);
        if let (Some(_), Some(_)) = (&credentials, &driver.credentials) {
            return Err(ConfigError::new("username", "the URL names a user, too: keep one"));
        }
        credentials = credentials.or(driver.credentials);
        let proofs = [("digest", Proof::Digest), ("sasl-digest-md5", Proof::SaslDigestMd5)];
        let accesses = [("open", Access::Open), ("creator", Access::Creator)];
        let client = keys.pair("polylock.tls_cert", "polylock.tls_key")?;
        let client = client.map(|(certificate, key)| (certificate.into(), key.into()));
        // A lock outlives a dead holder for as long as that holder's session lasts.
        let ttl = Options::from_keys(&mut url.keys())?.ttl.clamp(*SESSIONS.start(), *SESSIONS.end());
        let config = Self {
            servers,
            encrypted,
            root,
            credentials,
            proof: keys.choice("polylock.auth", &proofs)?.unwrap_or(Proof::Digest),
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

    /// For how long the servers keep the session of a client of which they hear nothing, and with it its locks: the
    /// default TTL (`polylock.ttl`, 30 s) by default. The servers give what is next to it within their own limits. Two
    /// thirds of what they give are the longest lease, and the default one.
    #[must_use]
    pub const fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = timeout;
        self
    }

    /// How long it may take to open a session: 5 s by default.
    #[must_use]
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Who may see and delete the nodes of locks: [`Access::Creator`] by default if there are a user and a password,
    /// else [`Access::Open`].
    #[must_use]
    pub const fn allow(mut self, access: Access) -> Self {
        self.access = Some(access);
        self
    }

    /// How the user and password are shown to the servers: [`Proof::Digest`] by default.
    #[must_use]
    pub const fn auth(mut self, proof: Proof) -> Self {
        self.proof = proof;
        self
    }

    /// The certificate, in a PEM file, of the authority that the servers' are signed by: an encrypted connection needs
    /// one.
    #[must_use]
    pub fn tls_ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.certificates.ca = Some(file.into());
        self
    }

    /// The client's own certificate and its key, in PEM files: none by default. Servers ask for one unless told otherwise.
    #[must_use]
    pub fn tls_client(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.certificates.client = Some((certificate.into(), key.into()));
        self
    }

    pub(crate) fn access(&self) -> Access {
        let default = if self.credentials.is_some() { Access::Creator } else { Access::Open };
        self.access.unwrap_or(default)
    }

    /// All servers, for people and errors.
    pub(crate) fn place(&self) -> String {
        format!("{}{}", self.servers.join(","), self.root)
    }

    /// What setters did not look at.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let refuse = |key: &str, problem: &str| Err(ConfigError::new(key, problem));
        if !SESSIONS.contains(&self.session_timeout) {
            return refuse("polylock.session_timeout", "must be 300ms to 24h");
        }
        if !CONNECT.contains(&self.connect_timeout) {
            return refuse("polylock.connect_timeout", "must be 5ms to 10m");
        }
        if self.credentials.is_none() {
            if self.access == Some(Access::Creator) {
                return refuse("polylock.access", "creator needs a user and a password in the URL");
            }
            if self.proof == Proof::SaslDigestMd5 {
                return refuse("polylock.auth", "sasl-digest-md5 needs a user and a password in the URL");
            }
        }
        if self.proof == Proof::SaslDigestMd5 && !cfg!(feature = "sasl") {
            return refuse("polylock.auth", "SASL is not compiled in: enable feature \"sasl\"");
        }
        if self.encrypted && !cfg!(feature = "tls") {
            return refuse("store", "encrypted connections are not compiled in: enable feature \"tls\"");
        }
        let named = self.certificates.ca.is_some() || self.certificates.client.is_some();
        if named && !self.encrypted {
            let problem = "certificates are for encrypted connections: write zookeeper+tls://";
            return refuse("polylock.tls_ca", problem);
        }
        if self.encrypted && self.certificates.ca.is_none() {
            let problem = "an encrypted connection needs the certificate of the authority that the servers' are signed by";
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
        return Err(problem("has a # in it, which must be percent-encoded in a user or password"));
    }
    let decoded = |text: &str| {
        let text = percent_decode_str(text).decode_utf8().map_err(|_| problem("holds what is no UTF-8"))?;
        Ok::<_, ConfigError>(text.into_owned())
    };
    // Up to the *last* `@`: a password may hold one that was not encoded.
    let (credentials, rest) = match rest.rsplit_once('@') {
        Some((credentials, rest)) => {
            let (user, password) =
                credentials.split_once(':').ok_or_else(|| problem("names a user without a password"))?;
            let (user, password) = (decoded(user)?, decoded(password)?);
            if user.is_empty() || user.contains(':') {
                return Err(problem("names no user, or one with a colon, which ZooKeeper does not know"));
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

/// A server as `host:port`.
pub(crate) fn server(text: &str) -> Result<String, &'static str> {
    let (host, port) = match text.rsplit_once(':') {
        // The last colon of `[::1]` is not before a port.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let bracketed = host.starts_with('[') && host.ends_with(']');
    if host.is_empty() || (host.contains(':') && !bracketed) {
        return Err("names a server without a host");
    }
    let port = port.map_or(Ok(Config::DEFAULT_PORT), str::parse);
    let port = port.ok().filter(|port| *port > 0).ok_or("names a port that is none")?;
    Ok(format!("{host}:{port}"))
}

/// The node below which the locks are.
pub(crate) fn root(path: &str) -> Result<String, ConfigError> {
    let path = path.strip_suffix('/').unwrap_or(path);
    if path.is_empty() {
        return Ok(Config::DEFAULT_ROOT.to_owned());
    }
    let sound = |part: &str| {
        // What is beyond these, the servers refuse or the client gets wrong.
        let plain = |c: char| c.is_ascii_graphic() && c != '%';
        !part.is_empty() && part != "." && part != ".." && part.chars().all(plain)
    };
    if !path.split('/').all(sound) || path.split('/').next() == Some("zookeeper") {
        let problem = "the path must be made of names such as app/locks, of visible ASCII characters, and not below \
                       /zookeeper, which is the servers' own";
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
    fn a_url_gives_what_the_setters_give() {
        let url = "zookeeper://app:canary@a:2182,b,[::1],[::1]:99/x/y?polylock.session_timeout=9s\
                   &polylock.connect_timeout=2s&polylock.access=open";
        let set = Config::new("zk://app:canary@a:2182,b:2181,[::1]:2181,[::1]:99/x/y/")
            .unwrap()
            .session_timeout(Duration::from_secs(9))
            .connect_timeout(Duration::from_secs(2))
            .allow(Access::Open);
        assert_eq!(shown(url), format!("{set:?}"));
        assert_eq!(set.place(), "a:2182,b:2181,[::1]:2181,[::1]:99/x/y");
        assert_eq!(Config::new("zk://h").unwrap().place(), "h:2181/polylock");
    }

    #[test]
    fn the_session_lasts_as_long_as_a_lock_outlives_its_holder() {
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
    fn credentials_are_decoded_and_decide_who_may_see() {
        let config = Config::new("zk://a%40b:p%2F%3A%23@h").unwrap();
        assert_eq!(config.credentials, Some(("a@b".to_owned(), "p/:#".to_owned())));
        assert_eq!(config.access(), Access::Creator);
        assert_eq!(Config::new("zk://h").unwrap().access(), Access::Open);
    }

    #[test]
    fn what_makes_no_sense_names_its_key() {
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
    fn no_secret_is_shown() {
        for url in ["zk://me:canary@h", "zk://me:canary@h:x", "zk://can#ary@h", "zk://me:can%FFary@h"] {
            let shown = match Config::new(url) {
                Ok(config) => format!("{config:?}"),
                Err(error) => format!("{error:?} {error}"),
            };
            assert!(!shown.contains("canary") && !shown.contains("ary@"), "{shown}");
        }
    }
}
