//! Opening a store: the server, its settings, its tables and functions.

use std::{sync::Arc, time::Duration};

use polylock_core::{Clock, ConfigError, Fault, Operation, Result, Store, SystemClock};
use sqlx::{Postgres, Row, postgres::PgRow};

use super::{
    backend::Database,
    config::{Config, Durability, place},
    error, pessimistic,
    statements::{self, Statements},
};
use crate::{
    engine::{
        Engine,
        literal::Template,
        pool::{Diagnose, Server, Trouble},
        table,
        version::{Found, Verdict, Version},
    },
    pessimistic::{SIDE_CONNECTIONS, Strategy},
};

/// The pause before the tables are made again after a connection was lost.
const AGAIN: Duration = Duration::from_millis(10);

/// What makes the tables and functions of `config`: for an administrator to run where the program's user may not.
///
/// # Errors
/// [`ConfigError`] if a name in `config` makes no sense.
///
/// ```
/// let config = polylock_sql::postgres::Config::new("postgres://db/app")?.table("app_locks");
/// assert!(polylock_sql::postgres::schema(&config)?.contains("CREATE TABLE IF NOT EXISTS \"public\".app_locks_holds"));
/// # Ok::<_, polylock_core::ConfigError>(())
/// ```
pub fn schema(config: &Config) -> Result<String, ConfigError> {
    config.check()?;
    Ok(statements::ddl(config))
}

/// Opens the store, and makes its tables and functions if they are missing.
///
/// # Errors
/// [`polylock_core::Error::Config`] if the configuration makes no sense or the tables are of a later version,
/// [`polylock_core::Error::Unavailable`] if the server can't be used: it can't be reached, refuses the user, is a
/// read-only replica, or the tables are missing and this user may not make them (the error tells the statements to run).
///
/// # Cancel safety
/// Yes: what was made so far is whole, and is found by the next who opens it.
pub async fn connect(config: Config) -> Result<Store> {
    polylock_core::io::run(super::NAME, open(config)).await?
}

async fn open(config: Config) -> Result<Store> {
    config.check()?;
    let connect = |connections| {
        Server::new(config.source.clone(), connections, place(&config.source.options), &config.common)
    };
    let (pinned, connections) = (config.common.strategy == Strategy::Pessimistic, config.common.connections);
    let server = connect(if pinned { SIDE_CONNECTIONS } else { connections });
    prepare(&server, &config).await?;
    if pinned {
        let store = pessimistic::store(&config, connect(connections), server);
        store.sweep().await;
        return Ok(Store::inspectable(Arc::new(store)));
    }
    let statements = Statements::new(&config);
    Ok(Engine::open(Database::new(&config, server, statements)).await)
}

/// Looks at the server's settings, and makes what is missing.
async fn prepare(server: &Server<Postgres>, config: &Config) -> Result<()> {
    let at = server.at(Operation::Connect);
    let checkup = statements::checkup(config);
    let asked = SystemClock.now();
    let checkup = first(server, &checkup).await?;
    let read = |error| server.failed(Operation::Connect, error);
    let number = |column: usize| checkup.try_get::<i64, _>(column).map_err(read);
    let text = |column: usize| checkup.try_get::<String, _>(column).map_err(read);
    server.clock.observe(asked, number(9)?);
    if number(0)? < 120_000 {
        return Err(at.ours(Fault::Permanent, "the server is too old: PostgreSQL 12 or later is needed"));
    }
    if number(1)? == 1 {
        return Err(at.ours(Fault::Permanent, "this is a read-only replica: connect to the primary"));
    }
    let encoding = text(2)?;
    if encoding != "UTF8" {
        let advice = format!("the encoding of the database is {encoding}: choose one with UTF8");
        return Err(at.ours(Fault::Permanent, advice));
    }
    let foreign = match config.common.strategy {
        Strategy::Lease => (number(8)? == 1).then_some("pessimistic"),
        Strategy::Pessimistic => (number(7)? == 1).then_some("lease"),
    };
    if let Some(foreign) = foreign {
        return Err(config.common.in_use(foreign).into());
    }
    if number(3)? == 0 || is_behind(server, config).await? {
        create(server, config).await?;
        if is_behind(server, config).await? {
            return Err(Version::unknown(&config.common.table).into());
        }
    }
    if text(6)? == "u" {
        let advice =
            "the tables are UNLOGGED: a crash of the server would empty them; ALTER TABLE ... SET LOGGED";
        return Err(at.ours(Fault::Permanent, advice));
    }
    if number(10)? > 0 {
        tracing::warn!(
            server = %server.place, schema = config.schema,
            "every user of the database may create objects in the schema of the locks, such as tables of their own in the \
             place of polylock's: REVOKE CREATE ON SCHEMA ... FROM PUBLIC, or choose another polylock.schema"
        );
    }
    let oldest = checkup.try_get::<Option<i64>, _>(11).map_err(read)?;
    let oldest = Duration::from_secs(oldest.unwrap_or(0).max(0).unsigned_abs());
    if oldest >= config.old_snapshot {
        tracing::warn!(
            server = %server.place, age = ?oldest,
            "an old transaction is open in the database of the locks: as long as it is, the server keeps the rows of all locks that \
             were released since, and each claim costs more than the one before: end it (pg_stat_activity, pg_prepared_xacts), or \
             use a database of its own for locks"
        );
    }
    if number(12)? > 0 {
        tracing::warn!(
            server = %server.place,
            "a replication slot keeps deleted rows of many transactions: each claim costs more than the one before: see xmin in \
             pg_replication_slots"
        );
    }
    if config.durability == Durability::Full && (text(4)? == "off" || text(5)? == "off") {
        tracing::warn!(
            server = %server.place,
            "fsync or full_page_writes is off: a crash of the server's machine may give locks twice"
        );
    }
    Ok(())
}

/// Whether the tables lack something that this program makes.
///
/// # Errors
/// [`ConfigError`] if this program must not use them.
async fn is_behind(server: &Server<Postgres>, config: &Config) -> Result<bool> {
    let row = first(server, &statements::version(config)).await?;
    let read = |column: usize| row.try_get(column).map_err(|error| server.failed(Operation::Connect, error));
    let (found, routines): (_, i64) = (Found { number: read(0)?, oldest: read(1)? }, read(2)?);
    let raise = |oldest| statements::raise(config, oldest);
    match statements::known(config).verdict(&config.common.table, found, raise)? {
        Verdict::Behind => Ok(true),
        Verdict::Current => {
            Ok(usize::try_from(routines).is_ok_and(|count| count < statements::tables(config).routines.len()))
        }
        Verdict::Unversioned if can_be_completed(server, config).await? => {
            tracing::warn!(
                server = %server.place, table = config.common.table,
                "the tables of the locks had been emptied: whatever was held before is free"
            );
            Ok(true)
        }
        Verdict::Unversioned => Err(Version::unknown(&config.common.table).into()),
    }
}

async fn can_be_completed(server: &Server<Postgres>, config: &Config) -> Result<bool> {
    let sql = statements::columns(config);
    let columns = server.ask(Operation::Connect, &sql, &[], |rows| {
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect::<Result<Vec<_>, _>>()
    });
    Ok(table::can_be_completed(statements::tables(config).schema, &config.common.table, columns.await?))
}

/// The first row of the answer. Tried again on another connection if need be: behind a pooler, a notification for somebody else
/// can come in between, which the driver takes for a broken connection.
async fn first(server: &Server<Postgres>, template: &Template) -> Result<PgRow> {
    let (rows, _) = server.answer(Operation::Connect, template, &[]).await?;
    rows.into_iter().next().ok_or_else(|| server.failed(Operation::Connect, sqlx::Error::RowNotFound))
}

async fn create(server: &Server<Postgres>, config: &Config) -> Result<()> {
    let deadline = SystemClock.now() + server.patience;
    loop {
        let mut lent = server.lend_to_open().await?;
        match server.ask_on(&mut lent, &statements::creation(config)).await? {
            Ok(_) => {
                lent.give_back();
                return Ok(());
            }
            // Not allowed to make them, or a schema that is not there.
            Err(failure) if matches!(error::code(&failure), Some("42501" | "3F000")) => {
                return Err(server.missing_tables(&statements::ddl(config), &failure));
            }
            // As in `first`. One transaction makes them, so nothing is half made.
            Err(failure) if Postgres::trouble(&failure) != Trouble::Other && SystemClock.now() < deadline => {
                SystemClock.sleep_until(SystemClock.now() + AGAIN).await;
            }
            Err(failure) => return Err(server.failed(Operation::Connect, failure)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statements_for_people_name_schema_and_prefix_and_have_nothing_left_open() {
        let config = Config::new("postgres://db/x").unwrap().schema("Jobs").table("t_1");
        let text = schema(&config).unwrap();
        assert!(text.starts_with("CREATE SCHEMA IF NOT EXISTS \"Jobs\";"), "{text}");
        assert!(text.contains("FUNCTION \"Jobs\".t_1_claim_2("), "{text}");
        assert!(!text.contains('{') && !text.contains("--"), "{text}");
        let shouted = schema(&config.clone().table("T_1")).unwrap();
        assert_eq!(shouted, text, "the same tables, and so the same advisory locks");
        let text = schema(&config.clone().strategy(Strategy::Pessimistic)).unwrap();
        assert!(text.starts_with("CREATE SCHEMA IF NOT EXISTS \"Jobs\";"), "{text}");
        assert!(text.contains("TABLE IF NOT EXISTS \"Jobs\".t_1_rows (") && text.ends_with(";\n"), "{text}");
        assert!(!text.contains('{') && !text.contains("--"), "{text}");
        assert!(schema(&config.table("a b")).is_err());
    }
}
