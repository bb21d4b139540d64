//! Opens the store: a session, and the root node of the locks.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use polylock_core::{
    Capabilities, Clock, FirstStep, HoldLifetime, Notifications, Operation, QueueLease, Result, Scope, Store,
    StoreConfig, SystemClock,
};

use crate::{NAME, backend::ZooKeeperBackend, config::Config, session::none_if_missing, sessions::Sessions};

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

    /// The namespace is a node beside the root: a child of the root would be the node of a lock.
    fn in_namespace(&self, name: &str) -> Option<Arc<dyn StoreConfig>> {
        Some(Arc::new(Self { root: self.sibling(name), ..self.clone() }))
    }

    async fn delete_namespaces(&self, names: &[String]) -> Result<()> {
        let roots = names.iter().map(|name| self.sibling(name)).collect();
        polylock_core::io::run(NAME, delete(self.clone(), roots)).await?
    }
}

impl Config {
    /// Returns the path of the node `name` beside the root.
    fn sibling(&self, name: &str) -> String {
        let (parent, _) = self.root.rsplit_once('/').unwrap_or_default();
        format!("{parent}/{name}")
    }
}

/// Deletes these nodes and everything below them: the nodes of locks, and of requests that still exist.
async fn delete(config: Config, roots: Vec<String>) -> Result<()> {
    let sessions = Sessions::new(config)?;
    let session = sessions.current().await.map_err(|cause| sessions.failed(Operation::Connect, cause))?;
    let mut open = roots;
    while let Some(path) = open.pop() {
        let deleted = match none_if_missing(session.client.list_children(&path).await) {
            Ok(Some(children)) if !children.is_empty() => {
                let children: Vec<_> = children.iter().map(|child| format!("{path}/{child}")).collect();
                open.push(path);
                open.extend(children);
                Ok(None)
            }
            Ok(Some(_)) => none_if_missing(session.client.delete(&path, None).await),
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        deleted.map_err(|error| sessions.failed(Operation::Connect, error))?;
    }
    Ok(())
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
    let mut capabilities =
        Capabilities::new(NAME, MIN_LEASE..=session.lifetime.longest_lease().max(MIN_LEASE));
    capabilities.scope = Scope::Network;
    capabilities.notifications = Notifications::Pushed;
    capabilities.hold_lifetime = HoldLifetime::Session;
    capabilities.first_step = FirstStep::Thread;
    capabilities.queue_lease = QueueLease::Shared;
    let alerts = sessions.alerts.clone();
    Ok(Store::inspectable(Arc::new(ZooKeeperBackend::new(capabilities, sessions))).alerting(alerts))
}
