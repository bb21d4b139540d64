//! Opens a store: checks the server and its settings, and creates the tables and functions.

use std::sync::Arc;

use async_trait::async_trait;
use polylock_core::{ConfigError, Result, Store, StoreConfig};
use sqlx::Postgres;

use super::{
    checkup::Checkup,
    config::{Config, endpoint},
    dialect::PostgresDialect,
    pessimistic, tables,
};
use crate::engine::{LeaseBackend, server::pool::Server};

/// Returns the statements that create the tables and functions of `config`, for an administrator to run if the program's user
/// lacks the right.
///
/// # Errors
/// [`ConfigError`] if a name in `config` is not valid.
///
/// ```
/// let config = polylock_sql::postgres::Config::new("postgres://db/app")?.namespace("app_locks");
/// assert!(polylock_sql::postgres::schema(&config)?.contains("CREATE TABLE IF NOT EXISTS \"public\".app_locks_holds"));
/// # Ok::<_, polylock_core::ConfigError>(())
/// ```
pub fn schema(config: &Config) -> Result<String, ConfigError> {
    config.check()?;
    Ok(tables::ddl(config))
}

/// Opens the store, and creates its tables and functions if they are missing.
///
/// # Errors
/// [`polylock_core::Error::Config`] if the configuration is not valid or the tables have a later version,
/// [`polylock_core::Error::Unavailable`] if the server can't be used: it can't be reached, refuses the user, is a read-only
/// replica, or the tables are missing and this user has no right to create them (the error contains the statements to run).
///
/// # Cancel safety
/// Yes: the tables are created in one transaction, so they are complete or absent, and the next call creates them if they are
/// absent.
pub async fn connect(config: Config) -> Result<Store> {
    polylock_core::io::run(super::NAME, open(config)).await?
}

#[async_trait]
impl StoreConfig for Config {
    async fn open(&self) -> Result<Store> {
        connect(self.clone()).await
    }

    fn schema(&self) -> std::result::Result<Option<String>, ConfigError> {
        schema(self).map(Some)
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
    let (server, _) = Server::pools(&config.source, &endpoint(&config.source.options), &config.common);
    for name in names {
        let config = config.clone().namespace(name);
        config.check()?;
        tables::drop_all(&server, &config).await?;
    }
    Ok(())
}

async fn open(config: Config) -> Result<Store> {
    config.check()?;
    let (server, pinned) = Server::pools(&config.source, &endpoint(&config.source.options), &config.common);
    prepare(&server, &config).await?;
    Ok(match pinned {
        Some(pinned) => pessimistic::open(&config, pinned, server).await,
        None => LeaseBackend::open(PostgresDialect::new(&config, server, config.listening())).await,
    })
}

/// Checks the server, and creates the tables and functions that are missing.
async fn prepare(server: &Server<Postgres>, config: &Config) -> Result<()> {
    let mut checkup = Checkup::read(server, config).await?;
    checkup.refuse(server, config)?;
    tables::prepare(server, config, checkup.has_tables).await?;
    if !checkup.has_tables {
        // The database may change new tables, by an event trigger.
        checkup = Checkup::read(server, config).await?;
        checkup.refuse(server, config)?;
    }
    checkup.warn(server, config);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::strategy::Strategy;

    #[test]
    fn the_printed_statements_are_complete() {
        let config = Config::new("postgres://db/x").unwrap().schema("Jobs").namespace("t_1");
        let text = schema(&config).unwrap();
        assert!(text.starts_with("CREATE SCHEMA IF NOT EXISTS \"Jobs\";"), "{text}");
        assert!(text.contains("FUNCTION \"Jobs\".t_1_claim_4("), "{text}");
        assert!(!text.contains('{') && !text.contains("--"), "{text}");
        let shouted = schema(&config.clone().namespace("T_1")).unwrap();
        assert_eq!(shouted, text, "the same tables, and so the same advisory locks");
        let text = schema(&config.clone().strategy(Strategy::Pessimistic)).unwrap();
        assert!(text.starts_with("CREATE SCHEMA IF NOT EXISTS \"Jobs\";"), "{text}");
        assert!(text.contains("TABLE IF NOT EXISTS \"Jobs\".t_1_rows (") && text.ends_with(";\n"), "{text}");
        assert!(!text.contains('{') && !text.contains("--"), "{text}");
        assert!(schema(&config.namespace("a b")).is_err());
    }
}
