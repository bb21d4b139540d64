//! The tables and functions: checks their version, and creates or upgrades them.

use std::time::Duration;

use polylock_core::{Clock, Operation, Result, SystemClock};
use sqlx::{Postgres, Row, postgres::PgRow};

use super::{
    config::Config,
    error, pessimistic,
    statements::{self, PIN, fill},
};
use crate::engine::{
    server::{
        driver::{ClassifyErrors, ErrorClass},
        literal::Template,
        pool::Server,
        tables::Tables,
    },
    version::{FoundVersion, SchemaState, Version, with_additions},
};

/// The pause before the tables are created again after a lost connection.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// Returns the tables of the strategy of `config`.
fn tables(config: &Config) -> &'static Tables {
    config.common.strategy.choose(&statements::TABLES, &pessimistic::TABLES)
}

/// Creates the tables and functions that are missing; `has_tables` is false if it is known that all are.
pub(super) async fn prepare(server: &Server<Postgres>, config: &Config, has_tables: bool) -> Result<()> {
    if !has_tables || is_outdated(server, config).await? {
        create(server, config).await?;
        if is_outdated(server, config).await? {
            return Err(Version::unknown(&config.common.table).into());
        }
    }
    Ok(())
}

/// Returns true if the tables or functions of this program's version are incomplete.
///
/// # Errors
/// [`ConfigError`] if this program must not use the tables.
async fn is_outdated(server: &Server<Postgres>, config: &Config) -> Result<bool> {
    let row = first(server, &version(config)).await?;
    let read = |column: usize| row.try_get(column).map_err(|error| server.failed(Operation::Connect, error));
    let (found, routines): (_, i64) = (FoundVersion { number: read(0)?, oldest: read(1)? }, read(2)?);
    let (tables, raise) = (tables(config), |oldest| raise(config, oldest));
    match tables.known(&config.common).check(&config.common.table, found, raise)? {
        SchemaState::Outdated => Ok(true),
        SchemaState::Current => Ok(tables.lack_routines(routines)),
        SchemaState::Unversioned if can_be_completed(server, config).await? => {
            tracing::warn!(
                server = %server.endpoint(), table = config.common.table,
                "the lock tables were empty: all locks that were held before are lost"
            );
            Ok(true)
        }
        SchemaState::Unversioned => Err(Version::unknown(&config.common.table).into()),
    }
}

async fn can_be_completed(server: &Server<Postgres>, config: &Config) -> Result<bool> {
    let sql = columns(config);
    let columns = server.query(Operation::Connect, &sql, &[], |rows| {
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect::<Result<Vec<_>, _>>()
    });
    Ok(tables(config).can_be_completed(&config.common, columns.await?))
}

/// Returns the first row of the reply, after retries on other connections if one breaks: behind a pooler, a notification for
/// another program can arrive before the reply, and the driver reports it as a protocol error.
pub(super) async fn first(server: &Server<Postgres>, template: &Template) -> Result<PgRow> {
    let (rows, _) = server.send(Operation::Connect, template, &[]).await?;
    rows.into_iter().next().ok_or_else(|| server.failed(Operation::Connect, sqlx::Error::RowNotFound))
}

async fn create(server: &Server<Postgres>, config: &Config) -> Result<()> {
    let deadline = SystemClock.now() + server.timeout;
    loop {
        let mut connection = server.acquire_to_open().await?;
        match server.query_on(&mut connection, &creation(config)).await? {
            Ok(_) => {
                connection.return_to_pool();
                return Ok(());
            }
            // The user has no right to create them, or the schema does not exist.
            Err(failure) if matches!(error::code(&failure), Some("42501" | "3F000")) => {
                return Err(server.missing_tables(&ddl(config), &failure));
            }
            // A broken connection, as in `first`, or contention. One transaction creates everything, so a retry finds all or
            // nothing.
            Err(failure)
                if Postgres::error_class(&failure) != ErrorClass::Other && SystemClock.now() < deadline =>
            {
                SystemClock.sleep_until(SystemClock.now() + RETRY_PAUSE).await;
            }
            Err(failure) => return Err(server.failed(Operation::Connect, failure)),
        }
    }
}

/// Drops the tables and functions of `config`, in one transaction.
pub(super) async fn drop_all(server: &Server<Postgres>, config: &Config) -> Result<()> {
    let drops = fill(&tables(config).drops("ROUTINE"), config, &[]);
    let statements = Template::plain(format!("{PIN}\nSET LOCAL client_min_messages = warning;\n{drops}"));
    server.drop_tables(&statements).await
}

/// Returns the statements that create the tables and functions of `config`, which must have been checked, or upgrade them from
/// any earlier version that has upgrade steps. They may be run again, even if an earlier run was interrupted.
pub(super) fn ddl(config: &Config) -> String {
    let tables = tables(config);
    let version = tables.known(&config.common);
    let numbers = version.replacements();
    let numbers = numbers.each_ref().map(|(key, number)| (*key, number.as_str()));
    let mut text = String::new();
    if config.schema != Config::DEFAULT_SCHEMA {
        text = format!("CREATE SCHEMA IF NOT EXISTS \"{}\";\n", config.schema);
    }
    let mut add = |file: &str| {
        text.push_str(&fill(file, config, &numbers));
        text.push('\n');
    };
    add(tables.schema);
    for (_, step) in version.steps() {
        add(&with_additions(step, |added| {
            added.statement.replacen("ADD COLUMN", "ADD COLUMN IF NOT EXISTS", 1) + ";"
        }));
    }
    tables.routines.iter().for_each(|(_, routine)| add(routine));
    add(include_str!("statements/installed.sql"));
    text
}

/// Lists the existing columns.
fn columns(config: &Config) -> Template {
    Template::new(&fill(include_str!("statements/columns.sql"), config, &[]))
}

/// Reads the existing versions.
fn version(config: &Config) -> Template {
    let Tables { version, routines, .. } = tables(config);
    // The server folds unquoted names to lower case.
    let prefix = config.common.table.to_ascii_lowercase();
    let names: Vec<String> = routines.iter().map(|(name, _)| format!("'{prefix}_{name}'")).collect();
    let more = [("{routines}", names.join(", ")), ("{row}", version.row.to_owned())];
    let more = more.each_ref().map(|(key, value)| (*key, value.as_str()));
    Template::new(&fill(include_str!("statements/version.sql"), config, &more))
}

/// Returns the statement that sets the oldest version with access to the tables.
fn raise(config: &Config, oldest: i64) -> String {
    fill(&format!("UPDATE {{p}}_meta SET value = {oldest} WHERE key = 'oldest'"), config, &[])
}

/// The time that a change of the tables waits for transactions that use them. After it, the change lets other transactions pass
/// and is retried.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// `ddl` as one transaction behind one lock, so that two programs that start at the same time never see incomplete tables.
fn creation(config: &Config) -> Template {
    Template::plain(format!(
        "{PIN}\nSET LOCAL client_min_messages = warning;\nSET LOCAL lock_timeout = {};\n\
         SELECT pg_advisory_xact_lock(hashtextextended('polylock schema', 0));\n{}",
        LOCK_TIMEOUT.as_millis(),
        ddl(config)
    ))
}
