//! The settings of the store, and how it is opened.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use polylock_core::{
    Capabilities, ConfigError, Fencing, Modes, Order, QueueLease, Result, Scope, Store, StoreConfig,
    url::{Keys, StoreUrl},
};

use crate::{NAME, backend::Locks, kv::Kv};

/// The settings.
#[derive(Debug, Clone)]
pub struct Config {
    namespace: String,
}

impl Config {
    /// Locks in `namespace`.
    #[must_use]
    pub fn new(namespace: impl Into<String>) -> Self {
        Self { namespace: namespace.into() }
    }

    /// Reads `template:NAMESPACE`. A store with settings of its own takes their keys from `keys`.
    ///
    /// # Errors
    /// [`ConfigError`] if the namespace is missing.
    pub fn from_url(url: &StoreUrl, _keys: &mut Keys) -> Result<Self, ConfigError> {
        if url.rest().is_empty() {
            return Err(ConfigError::new("store", "names no namespace: write template:NAMESPACE"));
        }
        Ok(Self::new(url.rest()))
    }
}

/// Opens the store of `config`.
///
/// # Errors
/// Never; that of your server if it can't be reached.
///
/// # Cancel safety
/// Dropping the future leaves nothing behind.
pub async fn connect(config: Config) -> Result<Store> {
    // Connections belong to the I/O thread of the store.
    polylock_core::io::run(NAME, async move {
        let mut capabilities = Capabilities::new(NAME, Duration::from_millis(50)..=Duration::from_secs(3600));
        capabilities.modes = Modes::ExclusiveOnly;
        capabilities.order = Order::Unordered;
        capabilities.queue_lease = QueueLease::Absent;
        // A server would persist its tokens, and be reached by many processes.
        capabilities.fencing = Fencing::WhileRunning;
        capabilities.scope = Scope::Process;
        Ok(Store::new(Arc::new(Locks::new(Kv::named(&config.namespace), capabilities))))
    })
    .await?
}

#[async_trait]
impl StoreConfig for Config {
    async fn open(&self) -> Result<Store> {
        connect(self.clone()).await
    }
}
