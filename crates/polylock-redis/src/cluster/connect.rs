//! Opens the store on the nodes of the cluster.

use async_trait::async_trait;
use polylock_core::{Result, Store, StoreConfig};

use super::{Config, NAME};
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
}
