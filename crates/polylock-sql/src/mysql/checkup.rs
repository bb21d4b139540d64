//! Reads the server's settings and what was made of the tables, and checks that locks can be kept there.

use std::{collections::HashMap, time::Duration};

use polylock_core::{Fault, Operation, Result};
use sqlx::{MySql, mysql::MySqlRow};

use super::{config::Config, statements::fill, tables};
use crate::engine::{
    columns::Columns,
    server::{
        connection::PooledConnection,
        literal::{Template, fill_template},
        pool::Server,
    },
    strategy::Strategy,
};

/// Refuses a server that can't keep locks, and warns of one that may lose some. Returns true if grants survive a crash of the
/// server's machine.
pub(super) async fn settings(
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
    if let Some((fault, advice)) = settings.refusal(strategy) {
        return Err(server.at(Operation::Connect).advise(fault, advice));
    }
    for warning in settings.warnings() {
        tracing::warn!(server = %server.endpoint(), "{warning}");
    }
    if let Ok(seconds) = settings.get("wait_timeout").parse() {
        server.idle_time().closed_after(Duration::from_secs(seconds));
    }
    Ok(settings.durable())
}

/// Refuses tables that are not transactional, or on which other code runs.
pub(super) async fn tables(
    server: &Server<MySql>,
    config: &Config,
    connection: &mut PooledConnection<MySql>,
) -> Result<()> {
    let parts = tables::names(config)
        .into_iter()
        .map(|name| fill(include_str!("statements/foreign.sql"), config, &[("{table}", &name)]));
    let statement = Template::new(&parts.collect::<Vec<_>>().join("\nUNION ALL\n"));
    let found = server.query_on(connection, &statement).await?;
    let found = found.and_then(|rows| {
        let text = |row: &MySqlRow| Ok(row.text(0)?.unwrap_or_default());
        rows.iter().map(text).collect::<Result<Vec<_>, sqlx::Error>>()
    });
    let found = found.map_err(|error| server.failed(Operation::Connect, error))?;
    let found = found.join(", ");
    if found.is_empty() {
        return Ok(());
    }
    let advice = format!(
        "the lock tables must be InnoDB without triggers, and have {found}: ALTER TABLE ... ENGINE=InnoDB, DROP TRIGGER"
    );
    Err(server.at(Operation::Connect).advise(Fault::Permanent, advice))
}

/// The least limit for the rows of a statement: more than a store with a million waiters needs.
const LEAST_LIMIT: u64 = 1_000_000_000;

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

    /// Returns true if the setting is a number that is less than `least`.
    fn is_below(&self, name: &str, least: u64) -> bool {
        self.get(name).parse().is_ok_and(|number: u64| number < least)
    }

    /// Returns why locks can't be kept on this server, and whether that may change by itself.
    fn refusal(&self, strategy: Strategy) -> Option<(Fault, &'static str)> {
        self.permanent_refusal(strategy).map(|advice| (Fault::Permanent, advice)).or_else(|| {
            // A failover may be in progress: the address leads to the next primary before that is promoted.
            let replica =
                ["read_only", "super_read_only", "innodb_read_only"].iter().any(|name| self.is_on(name));
            let advice =
                "this is a read-only replica, or a primary that is not promoted yet: connect to the primary";
            replica.then_some((Fault::Temporary, advice))
        })
    }

    fn permanent_refusal(&self, strategy: Strategy) -> Option<&'static str> {
        let version = self.get("version");
        // A small limit cuts this list of settings off, too, before its last name.
        if version.is_empty() || self.is_below("sql_select_limit", LEAST_LIMIT) {
            return Some(
                "sql_select_limit cuts replies off: set the server's sql_select_limit to its default, and check init_connect",
            );
        }
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
        if !matches!(self.get("completion_type"), "" | "NO_CHAIN" | "0") {
            return Some(
                "completion_type is CHAIN or RELEASE, so a COMMIT begins another transaction or ends the connection: set the server's \
                 completion_type to NO_CHAIN, and check init_connect",
            );
        }
        if self.is_on("tx_read_only") || self.is_on("transaction_read_only") {
            return Some(
                "transactions of this user are read-only by default: set the server's transaction_read_only (tx_read_only) to OFF, \
                 and check init_connect",
            );
        }
        if !self.get("sql_big_selects").is_empty()
            && !self.is_on("sql_big_selects")
            && self.is_below("max_join_size", LEAST_LIMIT)
        {
            return Some(
                "max_join_size refuses statements of polylock: set the server's sql_big_selects to ON, and check init_connect",
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
            ("version", "", "sql_select_limit"),
            ("autocommit", "OFF", "autocommit"),
            ("completion_type", "CHAIN", "NO_CHAIN"),
            ("completion_type", "RELEASE", "NO_CHAIN"),
            ("tx_read_only", "ON", "tx_read_only"),
            ("transaction_read_only", "ON", "transaction_read_only"),
            ("sql_select_limit", "1", "sql_select_limit"),
        ] {
            let (fault, refusal) = settings(&[(name, value)]).refusal(Strategy::Lease).unwrap();
            assert!(fault == Fault::Permanent && refusal.contains(words), "{name}={value}: {refusal}");
        }
        let old = settings(&[("version", "10.5.0-MariaDB")]).refusal(Strategy::Pessimistic);
        assert!(old.unwrap().1.contains("10.6"));
        let new = settings(&[("version", "10.6.0-MariaDB")]).refusal(Strategy::Pessimistic);
        assert_eq!(new, None);
        let statement = ("binlog_format", "STATEMENT");
        assert_eq!(settings(&[statement]).refusal(Strategy::Lease), None, "there is no binary log");
        assert!(
            settings(&[statement, ("log_bin", "ON")])
                .refusal(Strategy::Lease)
                .unwrap()
                .1
                .contains("binlog_format")
        );
        let joins = [("sql_big_selects", "OFF"), ("max_join_size", "1000")];
        assert!(settings(&joins).refusal(Strategy::Lease).unwrap().1.contains("sql_big_selects"));
    }

    #[test]
    fn a_server_that_is_not_promoted_yet_is_refused_for_the_moment() {
        for (name, value) in [
            ("read_only", "ON"),
            ("read_only", "NO_LOCK"),
            ("super_read_only", "ON"),
            ("innodb_read_only", "ON"),
        ] {
            let (fault, advice) = settings(&[(name, value)]).refusal(Strategy::Lease).unwrap();
            assert!(fault == Fault::Temporary && advice.contains("replica"), "{name}={value}: {advice}");
        }
    }

    #[test]
    fn default_settings_are_accepted() {
        let defaults = [
            ("completion_type", "NO_CHAIN"),
            ("tx_read_only", "OFF"),
            ("transaction_read_only", "OFF"),
            ("sql_select_limit", "18446744073709551615"),
            ("sql_big_selects", "ON"),
            ("max_join_size", "18446744073709551615"),
        ];
        assert_eq!(settings(&defaults).refusal(Strategy::Lease), None);
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
}
