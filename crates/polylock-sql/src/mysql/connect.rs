//! Opens a store: checks the server and its settings, and creates the tables and routines.

use std::sync::Arc;

use async_trait::async_trait;
use polylock_core::{ConfigError, Result, Store, StoreConfig};

use super::{
    checkup,
    config::{Config, endpoint},
    dialect::MySqlDialect,
    pessimistic, tables,
};
use crate::engine::{LeaseBackend, server::pool::Server};

/// Returns the statements that create the tables and routines of `config`, for the programs `mysql` and `mariadb`: for an
/// administrator to run if the program's user lacks the right.
///
/// # Errors
/// [`ConfigError`] if a name in `config` is not valid.
///
/// ```
/// let config = polylock_sql::mysql::Config::new("mysql://db/app")?.namespace("app_locks");
/// assert!(polylock_sql::mysql::schema(&config)?.contains("CREATE TABLE IF NOT EXISTS app_locks_holds"));
/// # Ok::<_, polylock_core::ConfigError>(())
/// ```
pub fn schema(config: &Config) -> Result<String, ConfigError> {
    config.check()?;
    Ok(tables::script(config))
}

/// Returns the statements of [`schema`] one by one, for programs that do not know `DELIMITER`, such as migration tools. They must
/// be sent in one session, in this order, unprepared, to the database of `config`.
///
/// # Errors
/// [`ConfigError`] if a name in `config` is not valid.
///
/// ```
/// let config = polylock_sql::mysql::Config::new("mysql://db/app")?;
/// let statements = polylock_sql::mysql::schema_statements(&config)?;
/// assert!(statements.iter().any(|one| one.starts_with("CREATE PROCEDURE") && one.ends_with("END")));
/// # Ok::<_, polylock_core::ConfigError>(())
/// ```
pub fn schema_statements(config: &Config) -> Result<Vec<String>, ConfigError> {
    config.check()?;
    Ok(tables::one_by_one(config))
}

/// Opens the store, and creates its tables and routines if they are missing.
///
/// # Errors
/// [`polylock_core::Error::Config`] if the configuration is not valid or the tables have a later version,
/// [`polylock_core::Error::Unavailable`] if the server can't be used: it can't be reached, refuses the user, is a read-only
/// replica, has settings under which locks can't be kept, or the tables are missing and this user has no right to create them
/// (the error contains the statements to run).
///
/// # Cancel safety
/// Yes: tables and routines that were created remain, and the next call creates the rest.
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
    let mut connection = server.acquire_to_open().await?;
    let durable = checkup::settings(&server, config.common.strategy, &mut connection).await?;
    checkup::tables(&server, &config, &mut connection).await?;
    tables::prepare(&server, &config, connection).await?;
    Ok(match pinned {
        Some(pinned) => pessimistic::open(&config, pinned, server, durable).await,
        None => LeaseBackend::open(MySqlDialect::new(&config, server, durable)).await,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::strategy::Strategy;

    #[test]
    fn the_printed_statements_are_complete() {
        let config = Config::new("mysql://db/my%60db").unwrap().namespace("Jobs");
        let text = schema(&config).unwrap();
        assert!(text.starts_with("USE `my``db`;\n"), "{text}");
        assert!(text.contains(" jobs_claim_4(") && text.contains("DELIMITER //\n"), "{text}");
        assert!(!text.contains('{') && !text.contains("-- ") && !text.contains("Jobs"), "{text}");
        let text = schema(&config.clone().strategy(Strategy::Pessimistic)).unwrap();
        assert!(text.starts_with("USE `my``db`;\n") && text.ends_with(";\n"), "{text}");
        assert!(
            text.contains("EXISTS jobs_rows (") && !text.contains('{') && !text.contains("-- "),
            "{text}"
        );
        assert!(schema(&config.namespace("a b")).is_err());
    }
}
