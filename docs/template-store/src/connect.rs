//! Opens the store.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use polylock_core::{Capabilities, Fencing, Modes, Order, QueueLease, Result, Scope, Store, StoreConfig};

use crate::{NAME, backend::TemplateBackend, config::Config, kv::Kv};

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
        Ok(Store::new(Arc::new(TemplateBackend::new(Kv::named(&config.namespace), capabilities))))
    })
    .await?
}

#[async_trait]
impl StoreConfig for Config {
    async fn open(&self) -> Result<Store> {
        connect(self.clone()).await
    }
}
