//! Settings that the stores on one server and on several servers share.

use std::{fmt, ops::RangeInclusive, pin::Pin, sync::Arc, time::Duration};

use futures_util::Stream;
use polylock_core::{
    ConfigError, duration,
    url::{Certificates, Keys, StoreUrl},
};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ProtocolVersion, RedisResult,
    auth::{BasicAuth, StreamingCredentialsProvider},
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};

use crate::{
    driver_keys::TIMEOUTS,
    hosts::{self, Deployment, Hosts, invalid_url},
    tls,
};

/// A property of a server that can break locks and is accepted nevertheless.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Allowed {
    /// A `maxmemory-policy` that evicts keys. The server may evict a held lock, and then grants it again.
    Eviction,
    /// A node of a Redis Cluster, used as a standalone server. It must be the node that serves the prefix, and its failover may forget the
    /// last grants. [`cluster`](crate::cluster) uses all nodes.
    Cluster,
}

impl Allowed {
    const WORDS: [(&str, Self); 2] = [("eviction", Self::Eviction), ("cluster", Self::Cluster)];

    fn parse(list: &str) -> Result<Vec<Self>, String> {
        let parse_word = |word: &str| {
            let known = Self::WORDS.iter().find(|(known, _)| *known == word.trim());
            known.map(|(_, allowed)| *allowed).ok_or_else(|| "must be a list of eviction, cluster".to_owned())
        };
        list.split(',').map(parse_word).collect()
    }
}

/// The provider of a user and a password that may change.
#[derive(Clone)]
pub(crate) struct Credentials(Arc<dyn StreamingCredentialsProvider>);

impl StreamingCredentialsProvider for Credentials {
    fn subscribe(&self) -> Pin<Box<dyn Stream<Item = RedisResult<BasicAuth>> + Send + 'static>> {
        self.0.subscribe()
    }
}

/// Settings of every kind of store.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) servers: Vec<ConnectionInfo>,
    /// True if the servers are those of the application's clients. Their TLS settings apply unless `certificates` names files.
    from_clients: bool,
    pub(crate) credentials: Option<Credentials>,
    /// The name in the server's list of clients.
    pub(crate) client_name: Option<String>,
    pub(crate) prefix: String,
    pub(crate) connect_timeout: Duration,
    pub(crate) operation_timeout: Duration,
    pub(crate) certificates: Certificates,
    pub(crate) allowed: Vec<Allowed>,
}

pub(crate) const DEFAULT_NAMESPACE: &str = "polylock";
pub(crate) const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The default of the stores whose requests go to one server.
pub(crate) const DEFAULT_OPERATION_TIMEOUT: Duration = Duration::from_millis(500);

const PREFIX_LENGTH: RangeInclusive<usize> = 1..=64;

/// The time after which the operating system closes a connection to a server that acknowledges nothing.
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { servers, prefix, connect_timeout, operation_timeout, certificates, allowed, .. } = self;
        f.debug_struct("Settings")
            .field("servers", &servers.iter().map(address).collect::<Vec<_>>())
            .field("prefix", prefix)
            .field("connect_timeout", connect_timeout)
            .field("operation_timeout", operation_timeout)
            .field("certificates", certificates)
            .field("allowed", allowed)
            .finish_non_exhaustive()
    }
}

/// Returns the address of the server, without secrets.
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
    /// Reads the servers of `url` and the shared keys.
    pub(crate) fn read(
        url: &StoreUrl,
        deployment: Deployment,
        operation_timeout: Duration,
        keys: &mut Keys,
    ) -> Result<Self, ConfigError> {
        Self::read_with_primary(url, deployment, operation_timeout, keys).map(|(settings, _)| settings)
    }

    /// Reads the settings as [`read`](Self::read) does, and also returns the primary's name from the path of a URL of Sentinels.
    pub(crate) fn read_with_primary(
        url: &StoreUrl,
        deployment: Deployment,
        operation_timeout: Duration,
        keys: &mut Keys,
    ) -> Result<(Self, Option<String>), ConfigError> {
        let Hosts { servers, driver, primary } = hosts::read(url, keys, deployment)?;
        let certificates = Certificates::from_keys(keys)?;
        let timeouts = [
            (keys.duration("polylock.connect_timeout")?, driver.connect_timeout, DEFAULT_CONNECT_TIMEOUT),
            (keys.duration("polylock.operation_timeout")?, driver.operation_timeout, operation_timeout),
        ];
        let [connect_timeout, operation_timeout] =
            timeouts.map(|(own_key, driver_key, default)| own_key.or(driver_key).unwrap_or(default));
        let settings = Self {
            client_name: driver.client_name,
            prefix: keys.text("polylock.namespace").unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()),
            connect_timeout,
            operation_timeout,
            certificates: Certificates {
                ca: certificates.ca.or(driver.certificates.ca),
                client: certificates.client.or(driver.certificates.client),
            },
            allowed: keys.read("polylock.allow", Allowed::parse)?.unwrap_or_default(),
            ..Self::new(servers, operation_timeout)
        };
        settings.check()?;
        if matches!(deployment, Deployment::Cluster | Deployment::Sentinel)
            && settings.allowed.contains(&Allowed::Cluster)
        {
            let problem = "cluster is for one node alone, with redis://: remove it";
            return Err(ConfigError::new("polylock.allow", problem));
        }
        Ok((settings, primary))
    }

    /// Returns settings for the servers of the application's clients.
    pub(crate) fn from_clients<'c>(
        clients: impl IntoIterator<Item = &'c Client>,
        operation_timeout: Duration,
    ) -> Self {
        let servers = clients.into_iter().map(|client| client.get_connection_info().clone()).collect();
        Self { from_clients: true, ..Self::new(servers, operation_timeout) }
    }

    fn new(servers: Vec<ConnectionInfo>, operation_timeout: Duration) -> Self {
        Self {
            servers,
            from_clients: false,
            credentials: None,
            client_name: None,
            prefix: DEFAULT_NAMESPACE.to_owned(),
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            operation_timeout,
            certificates: Certificates::default(),
            allowed: Vec::new(),
        }
    }

    /// Takes the user and the password from `provider`.
    pub(crate) fn credentials(&mut self, provider: impl StreamingCredentialsProvider + 'static) {
        self.credentials = Some(Credentials(Arc::new(provider)));
    }

    /// Checks the values that the setters accept unchecked.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_-.:/".contains(c);
        if !PREFIX_LENGTH.contains(&self.prefix.len()) || !self.prefix.chars().all(is_allowed) {
            let (shortest, longest) = PREFIX_LENGTH.into_inner();
            let problem = format!("must be {shortest} to {longest} letters, digits or one of _-.:/");
            return Err(ConfigError::new("polylock.namespace", problem));
        }
        duration::check("polylock.connect_timeout", self.connect_timeout, &TIMEOUTS)?;
        duration::check("polylock.operation_timeout", self.operation_timeout, &TIMEOUTS)?;
        let remedy =
            "write rediss://, rediss-cluster:// or rediss+sentinel:// (polylock.tls=on with redlock://)";
        self.certificates.check(self.servers.iter().all(is_encrypted), remedy)
    }

    /// Returns the driver's settings for a connection.
    pub(crate) fn connection(&self) -> AsyncConnectionConfig {
        connection_config(self.credentials.as_ref())
    }

    /// Returns a client of each server, with the driver's default protocol, for connections of the application.
    ///
    /// # Errors
    /// If a certificate can't be read.
    pub(crate) fn clients(&self) -> Result<Vec<Client>, ConfigError> {
        let protocol = ProtocolVersion::default();
        self.servers.iter().map(|server| self.client(server, protocol)).collect()
    }

    /// Returns a client of `server`, with the TLS settings of this store.
    ///
    /// # Errors
    /// If a certificate can't be read.
    pub(crate) fn client(
        &self,
        server: &ConnectionInfo,
        protocol: ProtocolVersion,
    ) -> Result<Client, ConfigError> {
        // The system closes a connection to a dead machine after a short time.
        let tcp = TcpSettings::default()
            .set_nodelay(true)
            .set_keepalive(TcpKeepalive::new().with_time(UNACKNOWLEDGED).with_interval(UNACKNOWLEDGED / 4));
        #[cfg(target_os = "linux")]
        let tcp = tcp.set_user_timeout(UNACKNOWLEDGED);
        let redis = server.redis_settings().clone().set_protocol(protocol);
        let redis = redis.set_lib_name("polylock", env!("CARGO_PKG_VERSION"));
        let server = server.clone().set_tcp_settings(tcp).set_redis_settings(redis);
        if is_encrypted(&server) {
            let uses_client_tls = self.from_clients && !self.certificates.are_named();
            return tls::client(server, (!uses_client_tls).then_some(&self.certificates));
        }
        Client::open(server).map_err(|error| invalid_url(&error))
    }
}

/// Returns the same server with another address.
pub(crate) fn with_host(server: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let host = host.to_owned();
    let address = match server.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    server.clone().set_addr(address)
}

/// Returns true if connections to the server are encrypted.
pub(crate) fn is_encrypted(server: &ConnectionInfo) -> bool {
    matches!(server.addr(), ConnectionAddr::TcpTls { .. })
}

/// Returns the driver's settings for a connection, without time limits: each call has its own, and so has a connection attempt as a whole.
pub(crate) fn connection_config(credentials: Option<&Credentials>) -> AsyncConnectionConfig {
    let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    match credentials {
        Some(credentials) => config.set_credentials_provider(credentials.clone()),
        None => config,
    }
}

/// The defaults and the setters of a `Config` that all stores share. They set fields of its `settings`. The texts document them where the
/// stores differ.
macro_rules! common_setters {
    () => {
        crate::config::common_setters! {
            /// Takes the user and the password of the servers from `provider`; see
            /// [`single::Config::credentials`](crate::single::Config::credentials).
            credentials,
            /// The time without a reply after which the connection counts as broken: 500 ms by default.
            operation_timeout: crate::config::DEFAULT_OPERATION_TIMEOUT,
        }
    };
    (
        $(#[$credentials:meta])*
        credentials,
        $(#[$operation_timeout:meta])*
        operation_timeout: $default:expr $(,)?
    ) => {
        /// The default of [`namespace`](Self::namespace).
        pub const DEFAULT_NAMESPACE: &str = crate::config::DEFAULT_NAMESPACE;
        /// The default of [`connect_timeout`](Self::connect_timeout).
        pub const DEFAULT_CONNECT_TIMEOUT: std::time::Duration = crate::config::DEFAULT_CONNECT_TIMEOUT;
        /// The default of [`operation_timeout`](Self::operation_timeout).
        pub const DEFAULT_OPERATION_TIMEOUT: std::time::Duration = $default;

        $(#[$credentials])*
        #[must_use]
        pub fn credentials(
            mut self,
            provider: impl redis::auth::StreamingCredentialsProvider + 'static,
        ) -> Self {
            self.settings.credentials(provider);
            self
        }

        /// The text, in braces, with which the store's keys begin: 1 to 64 letters, digits or characters of `_-.:/`. `polylock` by default.
        #[must_use]
        pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
            self.settings.prefix = namespace.into();
            self
        }

        polylock_core::setters! {
            /// The time limit for making a usable connection: 1 s by default.
            connect_timeout(timeout: std::time::Duration) => settings.connect_timeout;
            $(#[$operation_timeout])*
            operation_timeout(timeout: std::time::Duration) => settings.operation_timeout;
        }

        /// The PEM file with the certificate of the authority that signed the servers' certificates, for encrypted connections: the
        /// system's authorities by default.
        #[must_use]
        pub fn tls_ca(mut self, file: impl Into<std::path::PathBuf>) -> Self {
            self.settings.certificates.ca = Some(file.into());
            self
        }

        /// The PEM files with the client's own certificate and its key, for encrypted connections: none by default.
        #[must_use]
        pub fn tls_client(
            mut self,
            certificate: impl Into<std::path::PathBuf>,
            key: impl Into<std::path::PathBuf>,
        ) -> Self {
            self.settings.certificates.client = Some((certificate.into(), key.into()));
            self
        }

        /// Accepts a property of the servers that can break locks; none by default.
        #[must_use]
        pub fn allow(mut self, property: crate::Allowed) -> Self {
            self.settings.allowed.push(property);
            self
        }
    };
}
pub(crate) use common_setters;
