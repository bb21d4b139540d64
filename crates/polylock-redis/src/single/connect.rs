//! Opens the store on its server.

use std::sync::Arc;

use async_trait::async_trait;
use polylock_core::{Fencing, Result, Store, StoreConfig};

use super::{Config, NAME};
use crate::{keys, link::Link, queue::StoreBuilder};

/// Opens the store.
///
/// # Errors
/// [`polylock_core::Error::Config`] if the configuration is invalid, [`polylock_core::Error::Unavailable`] if the server can't be reached,
/// refuses the user, or has a setting that breaks locks.
///
/// # Cancel safety
/// Yes: nothing is left behind.
pub async fn connect(config: Config) -> Result<Store> {
    let settings = config.into_settings();
    polylock_core::io::run(NAME, async move {
        let builder = StoreBuilder::new(NAME, settings)?;
        let endpoint = builder.endpoint()?;
        builder.build_single(endpoint, Fencing::Durable).await
    })
    .await?
}

#[async_trait]
impl StoreConfig for Config {
    async fn open(&self) -> Result<Store> {
        connect(self.clone()).await
    }

    fn in_namespace(&self, name: &str) -> Option<Arc<dyn StoreConfig>> {
        Some(Arc::new(self.clone().namespace(name)))
    }

    async fn delete_namespaces(&self, names: &[String]) -> Result<()> {
        let (config, names) = (self.clone(), names.to_vec());
        polylock_core::io::run(NAME, async move {
            let endpoint = StoreBuilder::new(NAME, config.into_settings())?.endpoint()?;
            keys::delete_all(&Link::new(endpoint), &names).await
        })
        .await?
    }
}
