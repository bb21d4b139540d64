//! The settings that one server and many have in common.

use std::{fmt, path::PathBuf, pin::Pin, sync::Arc, time::Duration};

use futures_util::Stream;
use polylock_core::{
    ConfigError, HoldAlerts,
    url::{Keys, StoreUrl},
};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ProtocolVersion, RedisError, RedisResult,
    auth::{BasicAuth, StreamingCredentialsProvider},
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};

use crate::{
    hosts::{self, Form, Hosts},
    link::{self, Endpoint, Expected, PushHandler, Route},
    tls,
};

/// A property of a server that breaks locks, and that is accepted all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Allowed {
    /// A `maxmemory-policy` that evicts keys: it may evict a lock that is held, so that another is granted it.
    Eviction,
    /// A node of a Redis Cluster, used as if it were a server of its own. It must be the node that serves the prefix, and its
    /// failover forgets the last grants. [`cluster`](crate::cluster) uses all nodes.
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

/// Settings that all kinds of store have.
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
        form: Form,
        command_timeout: Duration,
        keys: &mut Keys,
    ) -> Result<Self, ConfigError> {
        Self::of_hosts(url, form, command_timeout, keys).map(|(settings, _)| settings)
    }

    /// The same, with the name that the path of a URL of Sentinels has.
    pub(crate) fn of_hosts(
        url: &StoreUrl,
        form: Form,
        command_timeout: Duration,
        keys: &mut Keys,
    ) -> Result<(Self, Option<String>), ConfigError> {
        let Hosts { servers, driver, primary } = hosts::read(url, keys, form)?;
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
        if matches!(form, Form::Cluster | Form::Sentinel) && settings.allowed.contains(&Allowed::Cluster) {
            let problem = "cluster is for one node alone, with redis://: leave it out";
            return Err(ConfigError::new("polylock.allow", problem));
        }
        Ok((settings, primary))
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

    /// How to reach `server`, which is an independent primary. Messages on `channel` go to `on_push`, break notices to `alerts`.
    ///
    /// # Errors
    /// If a certificate can't be read.
    pub(crate) fn endpoint(
        &self,
        backend: &'static str,
        server: &ConnectionInfo,
        channel: Option<String>,
        on_push: PushHandler,
        alerts: Arc<HoldAlerts>,
    ) -> Result<Endpoint, ConfigError> {
        Ok(Endpoint {
            route: Route::To(Box::new(self.client(server, ProtocolVersion::RESP3)?)),
            expected: Expected::Primary,
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

    /// The driver's settings for a connection.
    pub(crate) fn connection(&self) -> AsyncConnectionConfig {
        link::connection(self.credentials.as_ref())
    }

    /// A client of `server`, with the TLS settings of all.
    ///
    /// # Errors
    /// If a certificate can't be read.
    pub(crate) fn client(
        &self,
        server: &ConnectionInfo,
        protocol: ProtocolVersion,
    ) -> Result<Client, ConfigError> {
        // A connection to a machine that is gone ends soon.
        let tcp = TcpSettings::default()
            .set_nodelay(true)
            .set_keepalive(TcpKeepalive::new().with_time(UNACKNOWLEDGED).with_interval(UNACKNOWLEDGED / 4));
        #[cfg(target_os = "linux")]
        let tcp = tcp.set_user_timeout(UNACKNOWLEDGED);
        let redis = server.redis_settings().clone().set_protocol(protocol);
        let redis = redis.set_lib_name("polylock", env!("CARGO_PKG_VERSION"));
        let server = server.clone().set_tcp_settings(tcp).set_redis_settings(redis);
        if matches!(server.addr(), ConnectionAddr::TcpTls { .. }) {
            let own = self.of_clients && !self.certificates.are_named();
            return tls::client(server, (!own).then_some(&self.certificates));
        }
        Client::open(server).map_err(|error| unreadable(&error))
    }
}

/// The same server at another address.
pub(crate) fn moved_to(server: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let host = host.to_owned();
    let address = match server.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    server.clone().set_addr(address)
}

/// What the driver says is about the form, and holds no part of the text.
pub(crate) fn unreadable(error: &RedisError) -> ConfigError {
    ConfigError::new("store", format!("can't be read ({error})"))
}

/// The setters of a `Config` that are the same for all stores on several servers. The settings are its field `settings`; the text is
/// what `command_timeout` means.
macro_rules! setters {
    ($command_timeout:literal) => {
        /// The user and the password of the servers come from `provider`; see
        /// [`single::Config::credentials`](crate::single::Config::credentials).
        #[must_use]
        pub fn credentials(
            mut self,
            provider: impl redis::auth::StreamingCredentialsProvider + 'static,
        ) -> Self {
            self.settings.credentials(provider);
            self
        }

        /// What the keys of the store begin with, in braces: 1 to 64 letters, digits or one of `_-.:/`. `polylock` by default.
        #[must_use]
        pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
            self.settings.prefix = prefix.into();
            self
        }

        /// The time limit for a connection that can be used: 1 s by default.
        #[must_use]
        pub const fn connect_timeout(mut self, timeout: std::time::Duration) -> Self {
            self.settings.connect_timeout = timeout;
            self
        }

        #[doc = $command_timeout]
        #[must_use]
        pub const fn command_timeout(mut self, timeout: std::time::Duration) -> Self {
            self.settings.command_timeout = timeout;
            self
        }

        /// The certificate, in a PEM file, of the authority that signed those of the servers, for encrypted connections: the system's
        /// authorities by default.
        #[must_use]
        pub fn tls_ca(mut self, file: impl Into<std::path::PathBuf>) -> Self {
            self.settings.certificates.ca = Some(file.into());
            self
        }

        /// The client's own certificate and its key, in PEM files, for encrypted connections: none by default.
        #[must_use]
        pub fn tls_client(
            mut self,
            certificate: impl Into<std::path::PathBuf>,
            key: impl Into<std::path::PathBuf>,
        ) -> Self {
            self.settings.certificates.client = Some((certificate.into(), key.into()));
            self
        }

        /// Accepts a property of the servers that breaks locks; none by default.
        #[must_use]
        pub fn allow(mut self, property: crate::Allowed) -> Self {
            self.settings.allowed.push(property);
            self
        }
    };
}
pub(crate) use setters;
