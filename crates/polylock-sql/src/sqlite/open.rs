//! Opening a store: the file, its directories, its tables.

use polylock_core::{Fault, Operation, Result, Store};
use sqlx::{Row, SqlStr, sqlite::SqliteArguments};

use super::{
    backend::Sqlite,
    config::Config,
    connection::{Answer, Connections, Lane, Sql},
    error, place,
    statements::{self, Statements},
};
use crate::engine::{
    Engine,
    table::{self, check_version},
};

/// The version of the tables that this crate writes.
const SCHEMA: i64 = 2;

/// Opens the store, and makes the file, its directories and its tables if they are missing.
///
/// # Errors
/// [`polylock_core::Error::Config`] if the configuration makes no sense or the tables are of a later version,
/// [`polylock_core::Error::Unavailable`] if the file can't be used.
///
/// # Cancel safety
/// Yes: what was made so far is whole, and is found by the next who opens it.
pub async fn connect(config: Config) -> Result<Store> {
    polylock_core::io::run(super::NAME, open(config)).await?
}

async fn open(config: Config) -> Result<Store> {
    config.check()?;
    let path = place::made(config.path.clone()).await?;
    let connections = Connections::new(&config, path);
    let statements = Statements::new(&config.table);
    prepare(&connections, &statements).await?;
    Ok(Engine::open(Sqlite::new(&config, connections, statements)).await)
}

/// Turns the journal to WAL and makes the tables, each only if that was not done before.
pub(super) async fn prepare(connections: &Connections, statements: &Statements) -> Result<()> {
    place::make_private(&connections.path).await;
    let journal = SqlStr::from_static("PRAGMA journal_mode = WAL");
    let journal = first_of(connections, &journal, |row| row.try_get::<String, _>(0)).await?;
    if journal.as_deref() != Some("wal") {
        return Err(error::ours(
            Operation::Connect,
            &connections.path,
            Fault::Permanent,
            "this file system can't keep a write-ahead log: put the file on a local disk",
        ));
    }
    if first_of(connections, &statements.has_schema, |row| row.try_get::<i64, _>(0)).await?.is_none() {
        first_of(connections, &statements.schema, |_| Ok(())).await?;
    }
    connections.found();
    let version = || first_of(connections, &statements.version, |row| row.try_get::<i64, _>(0));
    let mut found = version().await?;
    if found.is_none() && can_be_completed(connections, statements).await? {
        tracing::warn!(file = ?connections.path, "the tables of the locks had been emptied: whatever was held before is free");
        first_of(connections, &statements.schema, |_| Ok(())).await?;
        found = version().await?;
    }
    Ok(check_version(&statements.prefix, found.unwrap_or(0), SCHEMA)?)
}

async fn can_be_completed(connections: &Connections, statements: &Statements) -> Result<bool> {
    let read = |answer: Answer| {
        let columns = answer.rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
        let columns = columns.collect::<Result<Vec<_>, sqlx::Error>>();
        columns.map_err(|failure| error::driver(Operation::Connect, &connections.path, failure))
    };
    let (sql, arguments) = (Sql::Asks(&statements.columns), SqliteArguments::default());
    let columns = connections.run(Lane::Reading, Operation::Connect, sql, arguments, read).await?;
    Ok(table::can_be_completed(statements::SCHEMA, &statements.prefix, columns))
}

/// What `read` makes of the first row that `sql` answers with.
async fn first_of<T: Send>(
    connections: &Connections,
    sql: &SqlStr,
    read: impl Fn(&sqlx::sqlite::SqliteRow) -> Result<T, sqlx::Error> + Send,
) -> Result<Option<T>> {
    let read = |answer: Answer| {
        let first = answer.rows.first().map(read).transpose();
        first.map_err(|failure| error::driver(Operation::Connect, &connections.path, failure))
    };
    connections.run(Lane::Durable, Operation::Connect, Sql::Asks(sql), SqliteArguments::default(), read).await
}
