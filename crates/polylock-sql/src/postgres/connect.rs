//! Opens a store: checks the server and its settings, and creates the tables and functions.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use polylock_core::{Clock, ConfigError, Fault, Operation, Result, Store, StoreConfig, SystemClock};
use sqlx::{Postgres, Row};

use super::{
    config::{Config, Durability, endpoint},
    dialect::PostgresDialect,
    pessimistic,
    statements::fill,
    tables,
};
use crate::engine::{
    LeaseBackend,
    server::{literal::Template, pool::Server},
};

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

/// Checks the server's settings, and creates the tables and functions that are missing.
async fn prepare(server: &Server<Postgres>, config: &Config) -> Result<()> {
    let at = server.at(Operation::Connect);
    let checkup = Template::new(&fill(include_str!("statements/checkup.sql"), config, &[]));
    let sent = SystemClock.now();
    let checkup = tables::first(server, &checkup).await?;
    let read = |error| server.failed(Operation::Connect, error);
    let number = |column: usize| checkup.try_get::<i64, _>(column).map_err(read);
    let text = |column: usize| checkup.try_get::<String, _>(column).map_err(read);
    server.clock().observe(sent, number(9)?);
    if number(0)? < 120_000 {
        return Err(at.advise(Fault::Permanent, "the server is too old: PostgreSQL 12 or later is needed"));
    }
    if number(1)? == 1 {
        // A failover may be in progress: the address leads to the next primary before that is promoted.
        let advice = "this is a replica, or a primary that is not promoted yet: connect to the primary";
        return Err(at.advise(Fault::Temporary, advice));
    }
    if let Some(setting) = text(13)?.strip_suffix("=on") {
        let advice = format!(
            "sessions of this user are read-only by default: switch {setting} off for the user, the database or the server"
        );
        return Err(at.advise(Fault::Denied, advice));
    }
    let encoding = text(2)?;
    if encoding != "UTF8" {
        let advice = format!("the encoding of the database is {encoding}: use a database with UTF8");
        return Err(at.advise(Fault::Permanent, advice));
    }
    let (other, column) = config.common.strategy.choose(("pessimistic", 8), ("lease", 7));
    if number(column)? == 1 {
        return Err(config.common.used_by(other).into());
    }
    if number(14)? > 1 {
        let advice = format!(
            "the sequence {p}_tokens has a cache of {} tokens, so a connection may draw smaller tokens than those before: ALTER \
             SEQUENCE {p}_tokens CACHE 1",
            number(14)?,
            p = fill("{p}", config, &[]),
        );
        return Err(at.advise(Fault::Permanent, advice));
    }
    let hidden = text(15)?;
    if !hidden.is_empty() {
        let advice = format!(
            "row-level security hides rows of {hidden} from this user, so held locks would seem free: ALTER TABLE ... DISABLE ROW LEVEL \
             SECURITY, or give the user BYPASSRLS"
        );
        return Err(at.advise(Fault::Denied, advice));
    }
    tables::prepare(server, config, number(3)? != 0).await?;
    if text(6)? == "u" {
        let advice =
            "the tables are UNLOGGED: a crash of the server would empty them; ALTER TABLE ... SET LOGGED";
        return Err(at.advise(Fault::Permanent, advice));
    }
    if number(10)? > 0 {
        tracing::warn!(
            server = %server.endpoint(), schema = config.schema,
            "every user of the database may create objects in the schema of the locks, such as tables that replace \
             polylock's: REVOKE CREATE ON SCHEMA ... FROM PUBLIC, or choose another polylock.schema"
        );
    }
    let oldest = checkup.try_get::<Option<i64>, _>(11).map_err(read)?;
    let oldest = Duration::from_secs(oldest.unwrap_or(0).max(0).unsigned_abs());
    if oldest >= config.old_snapshot {
        tracing::warn!(
            server = %server.endpoint(), age = ?oldest,
            "an old transaction is open in this database: until it ends, the server keeps the rows of all locks that \
             were released since, and each claim costs more than the one before: end it (pg_stat_activity, pg_prepared_xacts), or \
             use a separate database for locks"
        );
    }
    if number(12)? > 0 {
        tracing::warn!(
            server = %server.endpoint(),
            "a replication slot keeps deleted rows of many transactions, and each claim costs more than the one before: see xmin in \
             pg_replication_slots"
        );
    }
    if config.durability == Durability::Full && (text(4)? == "off" || text(5)? == "off") {
        tracing::warn!(
            server = %server.endpoint(),
            "fsync or full_page_writes is off: a crash of the server's machine may grant locks twice"
        );
    }
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
