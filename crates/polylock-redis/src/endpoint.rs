//! The parameters of the connections to one server.

use std::{sync::Arc, time::Duration};

use polylock_core::{ConfigError, HoldAlerts, RequestId};
use redis::{Client, ConnectionInfo, ProtocolVersion};

use crate::{
    config::{Allowed, Credentials, Settings, address, is_encrypted},
    distinct::Distinct,
    sentinel::sentinels::Sentinels,
};

/// A push message of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Push<'a> {
    /// A message that was published on the client's own channel.
    Message(&'a [u8]),
    /// The connection is lost, and all messages that are published in the meantime.
    Lost,
}

/// Called for every push message. Must not block.
pub(crate) type PushHandler = Arc<dyn Fn(Push<'_>) + Send + Sync>;

/// Returns a random text that no other client has, like the id of a request.
pub(crate) fn client_id() -> String {
    format!("{:032x}", u128::from_be_bytes(RequestId::random().to_bytes()))
}

/// Returns the channel of a client on one server. It begins with the prefix, so that access rules can keep the users of one prefix from
/// sending grants to those of another.
pub(crate) fn client_channel(prefix: &str, client: &str) -> String {
    format!("polylock:{prefix}:{client}")
}

/// Returns the channel on which the names of broken locks are published to all clients that use this prefix.
pub(crate) fn break_channel(prefix: &str) -> String {
    format!("polylock:broken:{prefix}")
}

/// The kind of server that is expected at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    /// A primary that does not change.
    Primary,
    /// A node of a cluster.
    ClusterNode,
    /// The primary that a Sentinel has named. Another server may become the primary soon.
    NamedPrimary,
}

/// The way to find a server.
#[derive(Clone)]
pub(crate) enum Route {
    Fixed(Box<Client>),
    Sentinels(Arc<Sentinels>),
}

/// The address of one server, and the settings of its connections.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) route: Route,
    pub(crate) expected: Expected,
    /// The store's name, for errors, metrics and logs.
    pub(crate) backend: &'static str,
    /// The server, without secrets.
    pub(crate) address: String,
    pub(crate) encrypted: bool,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) client_name: Option<String>,
    /// The time limit for making a usable connection.
    pub(crate) connect_timeout: Duration,
    pub(crate) operation_timeout: Duration,
    /// The time without a reply after which a connection counts as broken, if it is longer than `operation_timeout`.
    pub(crate) broken_after: Duration,
    pub(crate) allowed: Vec<Allowed>,
    /// True if the server may lose acknowledged data without harm.
    pub(crate) tolerates_data_loss: bool,
    /// True if the run id of the server is required.
    pub(crate) requires_run_id: bool,
    /// The other servers, if each must be another one.
    pub(crate) distinct: Option<Arc<Distinct>>,
    /// True if connections receive messages.
    pub(crate) subscribes: bool,
    /// The client's own channel; `None` if the client has a channel in each slot. `on_push` handles the messages.
    pub(crate) channel: Option<String>,
    pub(crate) on_push: PushHandler,
    /// See [`break_channel`].
    pub(crate) break_channel: String,
    /// Notified when a lock was broken.
    pub(crate) alerts: Arc<HoldAlerts>,
}

impl Endpoint {
    /// Returns the endpoint of `server`, an independent primary. Messages on `channel` go to `on_push`, break notices to `alerts`.
    ///
    /// # Errors
    /// If a certificate can't be read.
    pub(crate) fn new(
        settings: &Settings,
        backend: &'static str,
        server: &ConnectionInfo,
        channel: Option<String>,
        on_push: PushHandler,
        alerts: Arc<HoldAlerts>,
    ) -> Result<Self, ConfigError> {
        Ok(Self {
            route: Route::Fixed(Box::new(settings.client(server, ProtocolVersion::RESP3)?)),
            expected: Expected::Primary,
            backend,
            address: address(server),
            encrypted: is_encrypted(server),
            credentials: settings.credentials.clone(),
            client_name: settings.client_name.clone(),
            connect_timeout: settings.connect_timeout,
            operation_timeout: settings.operation_timeout,
            broken_after: Duration::ZERO,
            allowed: settings.allowed.clone(),
            tolerates_data_loss: false,
            requires_run_id: false,
            distinct: None,
            subscribes: true,
            channel,
            on_push,
            break_channel: break_channel(&settings.prefix),
            alerts,
        })
    }
}
