//! Opens the store on the nodes of the cluster.

use std::sync::Arc;

use async_trait::async_trait;
use polylock_core::{Result, Store, StoreConfig};

use super::{Config, NAME, nodes::Nodes};
use crate::queue::StoreBuilder;

/// Opens the store.
///
/// # Errors
/// [`polylock_core::Error::Config`] if the configuration is invalid, [`polylock_core::Error::Unavailable`] if no node can be reached, or
/// one of the primaries refuses the user or has a setting that breaks locks.
///
/// # Cancel safety
/// Yes: nothing is left behind.
pub async fn connect(config: Config) -> Result<Store> {
    let settings = config.into_settings();
    polylock_core::io::run(NAME, async move { StoreBuilder::new(NAME, settings)?.build_cluster().await })
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
            let settings = config.into_settings();
            let client = StoreBuilder::new(NAME, settings.clone())?.client;
            Nodes::connect(NAME, settings, client).await?.delete_all(&names).await
        })
        .await?
    }
}
