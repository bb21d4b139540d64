//! Opens a store: checks the server and its settings, and creates the tables and routines.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use polylock_core::{ConfigError, Fault, Operation, Result, Store, StoreConfig};
use sqlx::{MySql, mysql::MySqlRow};

use super::{
    config::{Config, endpoint},
    dialect::MySqlDialect,
    pessimistic, tables,
};
use crate::engine::{
    LeaseBackend,
    columns::Columns,
    server::{
        literal::{Template, fill_template},
        pool::{PooledConnection, Server},
    },
    strategy::Strategy,
};

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
    let durable = check_settings(&server, config.common.strategy, &mut connection).await?;
    tables::prepare(&server, &config, connection).await?;
    Ok(match pinned {
        Some(pinned) => pessimistic::open(&config, pinned, server, durable).await,
        None => LeaseBackend::open(MySqlDialect::new(&config, server, durable)).await,
    })
}

/// Refuses a server that can't keep locks, and warns of one that may lose some. Returns true if grants survive a crash of the
/// server's machine.
async fn check_settings(
    server: &Server<MySql>,
    strategy: Strategy,
    connection: &mut PooledConnection<MySql>,
) -> Result<bool> {
    let checkup = Template::new(&fill_template(include_str!("statements/checkup.sql"), &[]));
    let rows = server.query_on(connection, &checkup).await?;
    let setting = |row: &MySqlRow| {
        let [name, value] = [row.text(0)?, row.text(1)?].map(Option::unwrap_or_default);
        Ok((name.to_ascii_lowercase(), value))
    };
    let settings = rows.and_then(|rows| rows.iter().map(setting).collect::<Result<HashMap<_, String>, _>>());
    let settings = Settings(settings.map_err(|error| server.failed(Operation::Connect, error))?);
    if let Some(advice) = settings.refusal(strategy) {
        return Err(server.at(Operation::Connect).advise(Fault::Permanent, advice));
    }
    for warning in settings.warnings() {
        tracing::warn!(server = %server.endpoint(), "{warning}");
    }
    Ok(settings.durable())
}

/// The server's settings by name, in the server's format. Settings that the server does not know are absent.
struct Settings(HashMap<String, String>);

impl Settings {
    fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// Returns true if the setting exists and is on.
    fn is_on(&self, name: &str) -> bool {
        !matches!(self.get(name), "" | "OFF" | "0")
    }

    /// Returns the reason for which locks can't be kept on this server.
    fn refusal(&self, strategy: Strategy) -> Option<&'static str> {
        let version = self.get("version");
        let mut numbers =
            version.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
        let version_number = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        // The oldest supported versions.
        let oldest = if version.contains("MariaDB") { (10, 5) } else { (8, 0) };
        if version_number < oldest {
            return Some("the server is too old: MySQL 8.0 or MariaDB 10.5 or later is needed");
        }
        if strategy == Strategy::Pessimistic && version.contains("MariaDB") && version_number < (10, 6) {
            return Some("polylock.strategy=pessimistic needs MariaDB 10.6 or later (SKIP LOCKED)");
        }
        if ["read_only", "super_read_only", "innodb_read_only"].iter().any(|name| self.is_on(name)) {
            return Some("this is a read-only replica: connect to the primary");
        }
        if self.is_on("log_bin") && self.get("binlog_format") == "STATEMENT" {
            return Some(
                "binlog_format is STATEMENT, which does not support READ COMMITTED: set it to ROW or MIXED",
            );
        }
        if !self.is_on("autocommit") {
            return Some(
                "sessions of this user begin with autocommit=0: set the server's autocommit to 1, and check init_connect",
            );
        }
        None
    }

    /// Returns true if a grant is on the disk before it is returned.
    fn durable(&self) -> bool {
        let log = self.get("innodb_flush_log_at_trx_commit");
        // 3 syncs more often than 1 (MariaDB).
        matches!(log, "1" | "3") && (!self.is_on("log_bin") || self.get("sync_binlog") == "1")
    }

    fn warnings(&self) -> Vec<&'static str> {
        let mut warnings = Vec::new();
        if !self.durable() {
            warnings.push(
                "grants are not on the disk when they are returned: a crash of the server or its machine may grant locks \
                 twice and repeat fencing tokens; set innodb_flush_log_at_trx_commit=1, and sync_binlog=1 if there is a \
                 binary log",
            );
        }
        if self.is_on("wsrep_on") || self.get("group_replication_single_primary_mode") == "OFF" {
            warnings.push(
                "this is a cluster with writes on several nodes: connect all programs that share locks to the \
                 same node, because a node sees the waiters and shared holders of the others too late",
            );
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Settings {
        let plain = [("version", "10.11.14-MariaDB-0+deb12u2"), ("autocommit", "ON"), ("read_only", "OFF")];
        let durable = [("innodb_flush_log_at_trx_commit", "1"), ("log_bin", "OFF"), ("sync_binlog", "0")];
        let all = plain.iter().chain(&durable).chain(pairs);
        Settings(all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn a_server_that_can_not_keep_locks_is_refused() {
        for version in ["10.5.0-MariaDB", "11.8.2-MariaDB-log", "8.0.11", "8.4.6-commercial", "9.1.0"] {
            let settings = settings(&[("version", version)]);
            assert_eq!(
                (settings.refusal(Strategy::Lease), settings.warnings().len()),
                (None, 0),
                "{version}"
            );
        }
        for (name, value, words) in [
            ("version", "10.4.34-MariaDB-log", "too old"),
            ("version", "5.7.44-log", "too old"),
            ("version", "", "too old"),
            ("read_only", "ON", "replica"),
            ("read_only", "NO_LOCK", "replica"),
            ("super_read_only", "ON", "replica"),
            ("innodb_read_only", "ON", "replica"),
            ("autocommit", "OFF", "autocommit"),
        ] {
            let refusal = settings(&[(name, value)]).refusal(Strategy::Lease).unwrap();
            assert!(refusal.contains(words), "{name}={value}: {refusal}");
        }
        let old = settings(&[("version", "10.5.0-MariaDB")]).refusal(Strategy::Pessimistic);
        assert!(old.unwrap().contains("10.6"));
        let new = settings(&[("version", "10.6.0-MariaDB")]).refusal(Strategy::Pessimistic);
        assert_eq!(new, None);
        let statement = ("binlog_format", "STATEMENT");
        assert_eq!(settings(&[statement]).refusal(Strategy::Lease), None, "there is no binary log");
        assert!(
            settings(&[statement, ("log_bin", "ON")])
                .refusal(Strategy::Lease)
                .unwrap()
                .contains("binlog_format")
        );
    }

    #[test]
    fn a_server_that_may_lose_grants_causes_a_warning() {
        for (pairs, durable) in [
            (vec![("innodb_flush_log_at_trx_commit", "3")], true),
            (vec![("innodb_flush_log_at_trx_commit", "2")], false),
            (vec![("innodb_flush_log_at_trx_commit", "0")], false),
            (vec![("log_bin", "ON")], false),
            (vec![("log_bin", "ON"), ("sync_binlog", "1")], true),
        ] {
            let settings = settings(&pairs);
            assert_eq!((settings.durable(), settings.warnings().is_empty()), (durable, durable), "{pairs:?}");
        }
        for cluster in [("wsrep_on", "ON"), ("group_replication_single_primary_mode", "OFF")] {
            assert!(settings(&[cluster]).warnings()[0].contains("same node"));
        }
    }

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
