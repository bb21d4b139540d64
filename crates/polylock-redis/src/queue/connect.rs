//! Opens the store: on one server, or in a cluster.

use std::{
    str,
    sync::{Arc, Mutex},
    time::Duration,
};

use polylock_core::{
    Capabilities, Fencing, FirstStep, HoldAlerts, Notifications, Operation, PerRuntime, Result, Scope, Store,
    wakeups::{Handover, Wakeups},
};

use super::{
    backend::{Context, RedisBackend},
    client::Client,
    scripts::Scripts,
    servers::Servers,
};
use crate::{
    cluster::Nodes,
    config::Settings,
    endpoint::{self, Endpoint, Push},
    keys::Keys,
    link::Link,
};

/// The range of lease times. The minimum is far above the step of the server's clock and the margin of the deadline. The maximum, a day, is
/// the longest wait for a holder that has died.
const TTL: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(24 * 3600);

/// A store before its servers are found.
pub(crate) struct StoreBuilder {
    backend: &'static str,
    settings: Settings,
    wakeups: Arc<Wakeups>,
    pub(crate) client: Client,
}

impl StoreBuilder {
    /// # Errors
    /// [`polylock_core::Error::Config`] if the settings are invalid.
    pub(crate) fn new(backend: &'static str, settings: Settings) -> Result<Self> {
        settings.check()?;
        let (wakeups, alerts) = (Arc::<Wakeups>::default(), Arc::<HoldAlerts>::default());
        let on_push = {
            let wakeups = wakeups.clone();
            Arc::new(move |push: Push<'_>| match push {
                Push::Message(message) => match str::from_utf8(message).ok().and_then(Handover::parse) {
                    Some(handover) => wakeups.deliver(handover),
                    // The message is not one of this store. Waking all waiters is allowed at any time.
                    None => wakeups.notify_all(),
                },
                Push::Lost => wakeups.notify_all(),
            })
        };
        let client = Client { id: endpoint::client_id(), on_push, alerts };
        Ok(Self { backend, settings, wakeups, client })
    }

    /// Returns the endpoint of the first server of the settings, for a store in which one server has all locks.
    ///
    /// # Errors
    /// If a certificate can't be read.
    pub(crate) fn endpoint(&self) -> Result<Endpoint> {
        let Client { id, on_push, alerts } = self.client.clone();
        let channel = endpoint::client_channel(&self.settings.prefix, &id);
        let server = &self.settings.servers[0];
        Ok(Endpoint::new(&self.settings, self.backend, server, Some(channel), on_push, alerts)?)
    }

    /// Opens the store on the server of `endpoint`.
    ///
    /// # Errors
    /// If the server can't be reached or used.
    pub(crate) async fn build_single(self, endpoint: Endpoint, fencing: Fencing) -> Result<Store> {
        let link = Link::new(endpoint);
        link.get_connection().await.map_err(|cause| link.failed(Operation::Connect, cause))?;
        let channel = endpoint::client_channel(&self.settings.prefix, &self.client.id);
        let keys = Keys::new(&self.settings.prefix);
        Ok(self.build(Servers::Single { link, channel }, keys, fencing))
    }

    /// Opens the store in a cluster.
    ///
    /// # Errors
    /// If the cluster can't be reached or used.
    pub(crate) async fn build_cluster(self) -> Result<Store> {
        let nodes = Nodes::connect(self.backend, self.settings.clone(), self.client.clone()).await?;
        let keys = Keys::bucketed(&self.settings.prefix);
        // A replica with a clock that is behind may become a primary.
        Ok(self.build(Servers::Cluster(nodes), keys, Fencing::WhileRunning))
    }

    fn build(self, servers: Servers, keys: Keys, fencing: Fencing) -> Store {
        let mut capabilities = Capabilities::new(self.backend, TTL);
        capabilities.scope = Scope::Network;
        capabilities.notifications = Notifications::Pushed;
        capabilities.first_step = FirstStep::Thread;
        capabilities.fencing = fencing;
        let context = Context {
            capabilities,
            wakeups: self.wakeups,
            scripts: Arc::new(Scripts::new(keys)),
            break_channel: endpoint::break_channel(&self.settings.prefix),
            operation_timeout: self.settings.operation_timeout,
            late_claims: Mutex::default(),
        };
        let backend = RedisBackend { context: Arc::new(context), servers, callers: PerRuntime::default() };
        let backend = Arc::new(backend);
        Store::inspectable(backend.clone())
            .alerting(self.client.alerts)
            .raising(backend.clone())
            .recording(backend.clone())
            .converting(backend.clone())
            .parking(backend)
    }
}
