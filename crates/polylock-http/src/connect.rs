//! Opens the store.

use std::sync::Arc;

use async_trait::async_trait;
use polylock_core::{HoldAlerts, Operation, Result, Store, StoreConfig};

use crate::{
    NAME, alerts,
    backend::{HttpBackend, invalid},
    config::Config,
    servers::Servers,
};

/// Opens the store behind the servers.
///
/// # Errors
/// [`Error::Config`](polylock_core::Error::Config) if the configuration is invalid,
/// [`Error::Unavailable`](polylock_core::Error::Unavailable) if no server can be reached, or they do not accept the token.
///
/// # Cancel safety
/// Yes.
pub async fn connect(config: Config) -> Result<Store> {
    polylock_core::io::run(NAME, open(config)).await?
}

#[async_trait]
impl StoreConfig for Config {
    async fn open(&self) -> Result<Store> {
        connect(self.clone()).await
    }
}

async fn open(config: Config) -> Result<Store> {
    let servers = Servers::connect(&config).await?;
    let description = servers.store.clone();
    let capabilities = description.capabilities.capabilities(NAME);
    let capabilities = capabilities.map_err(|error| invalid(Operation::Connect, error))?;
    let backend = Arc::new(HttpBackend::new(capabilities, servers, config));
    let mut store = Store::new(backend.clone());
    if description.alerts {
        let alerts = Arc::new(HoldAlerts::default());
        tokio::spawn(alerts::read(Arc::downgrade(&backend), alerts.clone()));
        store.alerts = Some(alerts);
    }
    store.inspect = description.inspects.then(|| backend.clone() as _);
    store.raise = description.raises.then(|| backend.clone() as _);
    store.records = description.keeps_records.then(|| backend.clone() as _);
    store.convert = description.converts.then(|| backend.clone() as _);
    store.park = description.parks.then_some(backend as _);
    Ok(store)
}
