//! Opens the store on the primary that the Sentinels name.

use std::sync::Arc;

use async_trait::async_trait;
use polylock_core::{Fencing, Result, Store, StoreConfig};

use super::{Config, NAME, sentinels::Sentinels};
use crate::{
    endpoint::{Endpoint, Expected, Route},
    keys,
    link::Link,
    queue::StoreBuilder,
};

/// Opens the store.
///
/// # Errors
/// [`polylock_core::Error::Config`] if the configuration is invalid, [`polylock_core::Error::Unavailable`] if no Sentinel knows the
/// primary, or if the primary can't be reached, refuses the user, or has a setting that breaks locks.
///
/// # Cancel safety
/// Yes: nothing is left behind.
pub async fn connect(config: Config) -> Result<Store> {
    polylock_core::io::run(NAME, async move {
        let (builder, endpoint) = prepare(config)?;
        // A replica with a clock that is behind may become the primary.
        builder.build_single(endpoint, Fencing::WhileRunning).await
    })
    .await?
}

fn prepare(config: Config) -> Result<(StoreBuilder, Endpoint)> {
    let sentinels = Arc::new(Sentinels::new(&config)?);
    let builder = StoreBuilder::new(NAME, config.into_settings())?;
    let mut endpoint = builder.endpoint()?;
    endpoint.address = sentinels.address();
    endpoint.expected = Expected::NamedPrimary;
    endpoint.route = Route::Sentinels(sentinels);
    Ok((builder, endpoint))
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
            let (_, endpoint) = prepare(config)?;
            keys::delete_all(&Link::new(endpoint), &names).await
        })
        .await?
    }
}
