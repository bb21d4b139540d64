//! Opens the store: a session, and the root node of the locks.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use polylock_core::{
    Capabilities, Clock, FirstStep, HoldLifetime, Notifications, Operation, QueueLease, Result, Scope, Store,
    StoreConfig, SystemClock,
};

use crate::{NAME, backend::ZooKeeperBackend, config::Config, sessions::Sessions};

/// The shortest lease. The session timeout limits the longest one.
const MIN_LEASE: Duration = Duration::from_millis(100);

/// Connects to the ensemble: opens a session, and creates the root node of the locks if it is missing.
///
/// # Errors
/// [`polylock_core::Error::Config`] if the configuration is invalid, [`polylock_core::Error::Unavailable`] if there is no session within
/// [`Config::connect_timeout`], or the user may not use the node.
///
/// # Cancel safety
/// Cancel-safe: nothing is left behind.
pub async fn connect(config: Config) -> Result<Store> {
    polylock_core::io::run(NAME, open(config)).await?
}

#[async_trait]
impl StoreConfig for Config {
    async fn open(&self) -> Result<Store> {
        connect(self.clone()).await
    }

    fn has_sessions(&self) -> bool {
        true
    }
}

async fn open(config: Config) -> Result<Store> {
    config.check()?;
    let sessions = Sessions::new(config)?;
    let session = sessions.current().await.map_err(|cause| sessions.failed(Operation::Connect, cause))?;
    let deadline = SystemClock.now() + sessions.config.connect_timeout;
    let checked = SystemClock.before(deadline, async {
        session.make_root(&sessions.config).await?;
        // A missing permission to read is reported now, not with the first lock.
        session.client.list_children(&sessions.config.root).await
    });
    let checked = checked.await.unwrap_or(Err(zookeeper_client::Error::Timeout));
    checked.map_err(|error| sessions.failed(Operation::Connect, error))?;
    let mut capabilities = Capabilities::new(NAME, MIN_LEASE..=session.lease().max(MIN_LEASE));
    capabilities.scope = Scope::Network;
    capabilities.notifications = Notifications::Pushed;
    capabilities.hold_lifetime = HoldLifetime::Session;
    capabilities.first_step = FirstStep::Thread;
    capabilities.queue_lease = QueueLease::Shared;
    let alerts = sessions.alerts.clone();
    Ok(Store::inspectable(Arc::new(ZooKeeperBackend::new(capabilities, sessions))).alerting(alerts))
}
