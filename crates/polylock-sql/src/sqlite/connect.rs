//! Opening a store: creates the file, its directories and its tables.

use std::sync::Arc;

use async_trait::async_trait;
use polylock_core::{Result, Store, StoreConfig};

use super::{
    config::Config,
    connection::Connections,
    datagrams::Datagrams,
    dialect::SqliteDialect,
    file,
    process_lock::ProcessLock,
    statements::Statements,
    tables::{drop_all, prepare},
};
use crate::engine::LeaseBackend;

/// Opens the store. Creates the file, its directories and its tables if they are missing.
///
/// # Errors
/// [`polylock_core::Error::Config`] if the configuration is not valid or this version can't use the tables,
/// [`polylock_core::Error::Unavailable`] if the file can't be used.
///
/// # Cancel safety
/// Cancel-safe: a file, a directory or the tables are created completely or not at all, and the next opening uses them.
pub async fn connect(config: Config) -> Result<Store> {
    polylock_core::io::run(super::NAME, open(config)).await?
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
        polylock_core::io::run(super::NAME, delete(self.clone(), names.to_vec())).await?
    }
}

/// Drops the tables of these namespaces.
async fn delete(config: Config, names: Vec<String>) -> Result<()> {
    let path = file::prepare_path(config.path.clone()).await?;
    let connections = Connections::new(&config, path);
    for name in names {
        let config = config.clone().namespace(name);
        config.check()?;
        drop_all(&connections, &Statements::new(&config.table, None)).await?;
    }
    Ok(())
}

async fn open(config: Config) -> Result<Store> {
    config.check()?;
    let path = file::prepare_path(config.path.clone()).await?;
    let connections = Connections::new(&config, path);
    let statements = Statements::new(&config.table, config.next.as_ref());
    prepare(&connections, &statements).await?;
    let process = ProcessLock::take(&connections.path).await;
    let dialect = SqliteDialect::new(&config, connections, statements, Datagrams::default(), process);
    Ok(LeaseBackend::open(dialect).await)
}
