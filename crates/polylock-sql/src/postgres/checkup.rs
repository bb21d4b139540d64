//! Reads the server's settings and what was made of the tables, and checks that locks can be kept there.

use std::time::Duration;

use polylock_core::{Clock, Fault, Operation, Result, SystemClock};
use sqlx::{Decode, Postgres, Row, Type};

use super::{
    config::{Config, Durability},
    statements::fill,
    tables,
};
use crate::engine::server::{literal::Template, pool::Server};

/// The reply of the server. Lists of names are empty if there are none.
pub(super) struct Checkup {
    pub(super) has_tables: bool,
    version: i64,
    is_replica: bool,
    encoding: String,
    fsync: String,
    full_page_writes: String,
    unlogged_tables: String,
    has_lease_tables: bool,
    has_pessimistic_tables: bool,
    is_schema_open: bool,
    oldest_snapshot: Duration,
    slow_slots: i64,
    read_only: String,
    sequence_cache: i64,
    hidden_tables: String,
    foreign_code: String,
    sends_statements: bool,
}

impl Checkup {
    /// Reads it in one round trip.
    pub(super) async fn read(server: &Server<Postgres>, config: &Config) -> Result<Self> {
        let checkup = Template::new(&fill(include_str!("statements/checkup.sql"), config, &[]));
        let sent = SystemClock.now();
        let row = tables::first(server, &checkup).await?;
        server.clock().observe(sent, column(server, &row, 9)?);
        let oldest: Option<i64> = column(server, &row, 11)?;
        let idle_ms: Option<i64> = column(server, &row, 17)?;
        if let Some(ms) = idle_ms.and_then(|ms| u64::try_from(ms).ok()).filter(|ms| *ms > 0) {
            server.idle_time().closed_after(Duration::from_millis(ms));
        }
        let number = |index| column::<i64>(server, &row, index);
        let text = |index| column::<String>(server, &row, index);
        Ok(Self {
            version: number(0)?,
            is_replica: number(1)? == 1,
            encoding: text(2)?,
            has_tables: number(3)? == 1,
            fsync: text(4)?,
            full_page_writes: text(5)?,
            unlogged_tables: text(6)?,
            has_lease_tables: number(7)? == 1,
            has_pessimistic_tables: number(8)? == 1,
            is_schema_open: number(10)? > 0,
            oldest_snapshot: Duration::from_secs(oldest.unwrap_or(0).max(0).unsigned_abs()),
            slow_slots: number(12)?,
            read_only: text(13)?,
            sequence_cache: number(14)?,
            hidden_tables: text(15)?,
            foreign_code: text(16)?,
            sends_statements: number(18)? == 1,
        })
    }

    /// Refuses a server on which locks can't be kept.
    pub(super) fn refuse(&self, server: &Server<Postgres>, config: &Config) -> Result<()> {
        let refused = |fault, advice: &str| Err(server.at(Operation::Connect).advise(fault, advice));
        if self.version < 120_000 {
            return refused(Fault::Permanent, "the server is too old: PostgreSQL 12 or later is needed");
        }
        if self.is_replica {
            // A failover may be in progress: the address leads to the next primary before that is promoted.
            let advice = "this is a replica, or a primary that is not promoted yet: connect to the primary";
            return refused(Fault::Temporary, advice);
        }
        if let Some(setting) = self.read_only.strip_suffix("=on") {
            let advice = format!(
                "sessions of this user are read-only by default: switch {setting} off for the user, the database or the server"
            );
            return refused(Fault::Denied, &advice);
        }
        if self.encoding != "UTF8" {
            let advice =
                format!("the encoding of the database is {}: use a database with UTF8", self.encoding);
            return refused(Fault::Permanent, &advice);
        }
        let (other, has_others) = config
            .common
            .strategy
            .choose(("pessimistic", self.has_pessimistic_tables), ("lease", self.has_lease_tables));
        if has_others {
            return Err(config.common.used_by(other).into());
        }
        if self.sequence_cache > 1 {
            let advice = format!(
                "the sequence {p}_tokens has a cache of {} tokens, so a connection may draw smaller tokens than those before: ALTER \
                 SEQUENCE {p}_tokens CACHE 1",
                self.sequence_cache,
                p = fill("{p}", config, &[]),
            );
            return refused(Fault::Permanent, &advice);
        }
        if !self.hidden_tables.is_empty() {
            let advice = format!(
                "row-level security hides rows of {} from this user, so held locks would seem free: ALTER TABLE ... DISABLE ROW LEVEL \
                 SECURITY, or give the user BYPASSRLS",
                self.hidden_tables
            );
            return refused(Fault::Denied, &advice);
        }
        if !self.foreign_code.is_empty() {
            let advice = format!(
                "other code runs with each change of the lock tables, and may undo it: drop the {}, or switch it off by ALTER TABLE ... \
                 DISABLE",
                self.foreign_code
            );
            return refused(Fault::Permanent, &advice);
        }
        if self.sends_statements {
            let advice = "the server sends statements back, which contain the secret ids of requests, and the driver logs them: ALTER ROLE ... \
                 SET client_min_messages = notice for this user";
            return refused(Fault::Denied, advice);
        }
        if !self.unlogged_tables.is_empty() {
            let advice = format!(
                "a crash of the server would empty tables that are UNLOGGED: ALTER TABLE ... SET LOGGED for {}",
                self.unlogged_tables
            );
            return refused(Fault::Permanent, &advice);
        }
        Ok(())
    }

    /// Warns of what makes locks slow, or unsafe after a crash.
    pub(super) fn warn(&self, server: &Server<Postgres>, config: &Config) {
        if self.is_schema_open {
            tracing::warn!(
                server = %server.endpoint(), schema = config.schema,
                "every user of the database may create objects in the schema of the locks, such as tables that replace \
                 polylock's: REVOKE CREATE ON SCHEMA ... FROM PUBLIC, or choose another polylock.schema"
            );
        }
        if self.oldest_snapshot >= config.old_snapshot {
            tracing::warn!(
                server = %server.endpoint(), age = ?self.oldest_snapshot,
                "an old transaction is open in this database: until it ends, the server keeps the rows of all locks that \
                 were released since, and each claim costs more than the one before: end it (pg_stat_activity, pg_prepared_xacts), or \
                 use a separate database for locks"
            );
        }
        if self.slow_slots > 0 {
            tracing::warn!(
                server = %server.endpoint(),
                "a replication slot keeps deleted rows of many transactions, and each claim costs more than the one before: see xmin in \
                 pg_replication_slots"
            );
        }
        if config.durability == Durability::Full && (self.fsync == "off" || self.full_page_writes == "off") {
            tracing::warn!(
                server = %server.endpoint(),
                "fsync or full_page_writes is off: a crash of the server's machine may grant locks twice"
            );
        }
    }
}

fn column<'r, T: Decode<'r, Postgres> + Type<Postgres>>(
    server: &Server<Postgres>,
    row: &'r sqlx::postgres::PgRow,
    index: usize,
) -> Result<T> {
    row.try_get(index).map_err(|error| server.failed(Operation::Connect, error))
}
