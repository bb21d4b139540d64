//! The settings that one server and many have in common.

use std::{fmt, path::PathBuf, pin::Pin, sync::Arc, time::Duration};

use futures_util::Stream;
use polylock_core::{
    ConfigError, HoldAlerts,
    url::{Keys, StoreUrl},
};
use redis::{
    Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo,
    RedisError, RedisResult,
    auth::{BasicAuth, StreamingCredentialsProvider},
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};

use crate::{
    driver_keys::DriverKeys,
    link::{self, Endpoint, PushHandler},
    tls,
};

/// A property of a server that breaks locks, and that is accepted all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Allowed {
    /// A `maxmemory-policy` that evicts keys: it may evict a lock that is held, so that another is granted it.
    Eviction,
    /// A node of a Redis Cluster, whose failover forgets the last grants. It must be the node that serves the prefix.
    Cluster,
}

impl Allowed {
    const WORDS: [(&str, Self); 2] = [("eviction", Self::Eviction), ("cluster", Self::Cluster)];

    fn parse(list: &str) -> Result<Vec<Self>, String> {
        let one = |word: &str| {
            let known = Self::WORDS.iter().find(|(known, _)| *known == word.trim());
            known.map(|(_, allowed)| *allowed).ok_or_else(|| "must be a list of eviction, cluster".to_owned())
        };
        list.split(',').map(one).collect()
    }
}

/// The files of an encrypted connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Certificates {
    /// Of the authority that the server's certificate is signed by; the system's authorities if there is none.
    pub(crate) ca: Option<PathBuf>,
    /// The client's own certificate and its key.
    pub(crate) client: Option<(PathBuf, PathBuf)>,
}

impl Certificates {
    const fn are_named(&self) -> bool {
        self.ca.is_some() || self.client.is_some()
    }
}

/// Where the user and the password come from, if they change.
#[derive(Clone)]
pub(crate) struct Credentials(Arc<dyn StreamingCredentialsProvider>);

impl StreamingCredentialsProvider for Credentials {
    fn subscribe(&self) -> Pin<Box<dyn Stream<Item = RedisResult<BasicAuth>> + Send + 'static>> {
        self.0.subscribe()
    }
}

/// Settings that both kinds of store have.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) servers: Vec<ConnectionInfo>,
    /// Whether the servers are those of clients that the program has made, whose TLS settings count.
    of_clients: bool,
    credentials: Option<Credentials>,
    /// Shown in the server's list of clients.
    client_name: Option<String>,
    pub(crate) prefix: String,
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) certificates: Certificates,
    pub(crate) allowed: Vec<Allowed>,
}

pub(crate) const DEFAULT_PREFIX: &str = "polylock";
pub(crate) const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

const PREFIX_LENGTH: std::ops::RangeInclusive<usize> = 1..=64;
pub(crate) const TIMEOUTS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(5)..=Duration::from_secs(60);

/// How long the system goes on trying to deliver what was sent to a server that does not acknowledge it.
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { servers, prefix, connect_timeout, command_timeout, certificates, allowed, .. } = self;
        f.debug_struct("Settings")
            .field("servers", &servers.iter().map(address).collect::<Vec<_>>())
            .field("prefix", prefix)
            .field("connect_timeout", connect_timeout)
            .field("command_timeout", command_timeout)
            .field("certificates", certificates)
            .field("allowed", allowed)
            .finish_non_exhaustive()
    }
}

/// The server, without secrets.
pub(crate) fn address(server: &ConnectionInfo) -> String {
    let host = match server.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } if host.contains(':') => {
            format!("[{host}]:{port}")
        }
        other => other.to_string(),
    };
    match server.redis_settings().db() {
        0 => host,
        database => format!("{host}/{database}"),
    }
}

impl Settings {
    /// Reads the servers and the keys that both have.
    pub(crate) fn read(
        url: &StoreUrl,
        many: bool,
        command_timeout: Duration,
        keys: &mut Keys,
    ) -> Result<Self, ConfigError> {
        let (servers, driver) = servers(url, keys, many)?;
        let client = keys.pair("polylock.tls_cert", "polylock.tls_key")?;
        let client = client.map(|(certificate, key)| (certificate.into(), key.into()));
        let timeouts = [
            (keys.duration("polylock.connect_timeout")?, driver.connect_timeout, DEFAULT_CONNECT_TIMEOUT),
            (keys.duration("polylock.command_timeout")?, driver.command_timeout, command_timeout),
        ];
        let [connect_timeout, command_timeout] =
            timeouts.map(|(own, drivers, default)| own.or(drivers).unwrap_or(default));
        let settings = Self {
            client_name: driver.client_name,
            prefix: keys.text("polylock.prefix").unwrap_or_else(|| DEFAULT_PREFIX.to_owned()),
            connect_timeout,
            command_timeout,
            certificates: Certificates {
                ca: keys.text("polylock.tls_ca").map(PathBuf::from).or(driver.ca),
                client: client.or(driver.client),
            },
            allowed: keys.read("polylock.allow", Allowed::parse)?.unwrap_or_default(),
            ..Self::new(servers, command_timeout)
        };
        settings.check()?;
        Ok(settings)
    }

    /// The servers of clients that the program has made.
    pub(crate) fn of_clients<'c>(
        clients: impl IntoIterator<Item = &'c Client>,
        command_timeout: Duration,
    ) -> Self {
        let servers = clients.into_iter().map(|client| client.get_connection_info().clone()).collect();
        Self { of_clients: true, ..Self::new(servers, command_timeout) }
    }

    fn new(servers: Vec<ConnectionInfo>, command_timeout: Duration) -> Self {
        Self {
            servers,
            of_clients: false,
            credentials: None,
            client_name: None,
            prefix: DEFAULT_PREFIX.to_owned(),
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            command_timeout,
            certificates: Certificates::default(),
            allowed: Vec::new(),
        }
    }

    /// The user and the password come from `provider`.
    pub(crate) fn credentials(&mut self, provider: impl StreamingCredentialsProvider + 'static) {
        self.credentials = Some(Credentials(Arc::new(provider)));
    }

    /// What setters did not look at.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-.:/".contains(c);
        if !PREFIX_LENGTH.contains(&self.prefix.len()) || !self.prefix.chars().all(plain) {
            return Err(ConfigError::new(
                "polylock.prefix",
                "must be 1 to 64 letters, digits or one of _-.:/",
            ));
        }
        for (key, timeout) in [
            ("polylock.connect_timeout", self.connect_timeout),
            ("polylock.command_timeout", self.command_timeout),
        ] {
            if !TIMEOUTS.contains(&timeout) {
                return Err(ConfigError::new(key, "must be 5ms to 1m"));
            }
        }
        let encrypted = |server: &ConnectionInfo| matches!(server.addr(), ConnectionAddr::TcpTls { .. });
        if self.certificates.are_named() && !self.servers.iter().all(encrypted) {
            let problem = "certificates are for encrypted connections: write rediss:// (or polylock.tls=on with redlock://)";
            return Err(ConfigError::new("polylock.tls_ca", problem));
        }
        Ok(())
    }

    /// How to reach the server of this index. Messages on `channel` go to `on_push`, break notices to `alerts`.
    ///
    /// # Errors
    /// If a certificate can't be read.
    pub(crate) fn endpoint(
        &self,
        backend: &'static str,
        index: usize,
        channel: String,
        on_push: PushHandler,
        alerts: Arc<HoldAlerts>,
    ) -> Result<Endpoint, ConfigError> {
        let server = &self.servers[index];
        Ok(Endpoint {
            client: self.client(server)?,
            backend,
            address: address(server),
            encrypted: matches!(server.addr(), ConnectionAddr::TcpTls { .. }),
            credentials: self.credentials.clone(),
            client_name: self.client_name.clone(),
            connect_timeout: self.connect_timeout,
            command_timeout: self.command_timeout,
            silence: Duration::ZERO,
            allowed: self.allowed.clone(),
            may_forget: false,
            needs_run: false,
            subscribes: true,
            channel,
            on_push,
            break_channel: link::break_channel(&self.prefix),
            alerts,
        })
    }

    fn client(&self, server: &ConnectionInfo) -> Result<Client, ConfigError> {
        // A connection to a machine that is gone ends soon.
        let tcp = TcpSettings::default()
            .set_nodelay(true)
            .set_keepalive(TcpKeepalive::new().with_time(UNACKNOWLEDGED).with_interval(UNACKNOWLEDGED / 4));
        #[cfg(target_os = "linux")]
        let tcp = tcp.set_user_timeout(UNACKNOWLEDGED);
        // Commands and push messages on one connection.
        let redis = server.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let redis = redis.set_lib_name("polylock", env!("CARGO_PKG_VERSION"));
        let server = server.clone().set_tcp_settings(tcp).set_redis_settings(redis);
        if matches!(server.addr(), ConnectionAddr::TcpTls { .. }) {
            let own = self.of_clients && !self.certificates.are_named();
            return tls::client(server, (!own).then_some(&self.certificates));
        }
        Client::open(server).map_err(|error| unreadable(&error))
    }
}

/// The servers of a URL: `scheme://user:password@host1:port,host2:port/database`, with one host if `many` is false; or
/// `unix:///path`, with the keys `db`, `user` and `pass`.
fn servers(
    url: &StoreUrl,
    keys: &mut Keys,
    many: bool,
) -> Result<(Vec<ConnectionInfo>, DriverKeys), ConfigError> {
    let problem =
        |problem: &str| Err(ConfigError::new("store", format!("{problem}: write {}", example(url, many))));
    let scheme = match url.scheme() {
        "unix" | "redis+unix" | "valkey+unix" => return socket(url, keys),
        "rediss" | "valkeys" => "rediss",
        _ if many && keys.choice("polylock.tls", &[("on", true), ("off", false)])?.unwrap_or(false) => {
            "rediss"
        }
        _ => "redis",
    };
    if scheme == "rediss" && !cfg!(feature = "tls") {
        return Err(ConfigError::new(
            "store",
            "encrypted connections are not compiled in: enable feature \"tls\"",
        ));
    }
    let Some(rest) = url.rest().strip_prefix("//") else { return problem("names no server") };
    if rest.contains('#') {
        return problem("has a # in it, which must be percent-encoded in a user or password");
    }
    let (user, rest) = rest.rsplit_once('@').map_or(("", rest), |(user, rest)| (user, rest));
    let (hosts, database) = rest.split_once('/').unwrap_or((rest, ""));
    let driver = DriverKeys::read(url, scheme == "rediss", keys)?;
    let database = match (driver.database.map(|database| database.to_string()), database) {
        (Some(named), "") => named,
        (Some(named), other) if named != other => {
            return Err(ConfigError::new("db", "names another database than the path does: keep one"));
        }
        (_, other) => other.to_owned(),
    };
    let hosts: Vec<&str> = hosts.split(',').collect();
    if !many && hosts.len() > 1 {
        return problem("names several servers, and a redis:// store is one (several are redlock://)");
    }
    if hosts.iter().any(|host| host.is_empty() || host.starts_with(':')) {
        return problem("names a server without a host");
    }
    let read = |host: &&str| {
        let at = if user.is_empty() { "" } else { "@" };
        let text = format!("{scheme}://{user}{at}{host}/{database}");
        text.as_str().into_connection_info().map_err(|error| {
            let ConfigError { key, problem } = unreadable(&error);
            ConfigError::new(key, format!("{problem}: write {}", example(url, many)))
        })
    };
    Ok((hosts.iter().map(read).collect::<Result<_, _>>()?, driver))
}

fn example(url: &StoreUrl, many: bool) -> String {
    let hosts = if many { "host1:port,host2:port,host3:port" } else { "host:port" };
    format!(
        "{}://user:password@{hosts}/0, with characters such as @ : / # ? % in a user or password percent-encoded",
        url.scheme()
    )
}

fn socket(url: &StoreUrl, keys: &mut Keys) -> Result<(Vec<ConnectionInfo>, DriverKeys), ConfigError> {
    let driver = DriverKeys::read(url, false, keys)?;
    let mut redis = RedisConnectionInfo::default().set_db(driver.database.unwrap_or(0));
    if let Some(user) = keys.text("user") {
        redis = redis.set_username(user);
    }
    if let Some(password) = keys.text("pass") {
        redis = redis.set_password(password);
    }
    let server = ConnectionAddr::Unix(url.file()?.into()).into_connection_info();
    Ok((vec![server.map_err(|error| unreadable(&error))?.set_redis_settings(redis)], driver))
}

/// What the driver says is about the form, and holds no part of the text.
fn unreadable(error: &RedisError) -> ConfigError {
    ConfigError::new("store", format!("can't be read ({error})"))
}
