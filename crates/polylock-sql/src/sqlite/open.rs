//! Opening a store: the file, its directories, its tables.

use polylock_core::{Fault, Operation, Result, Store};
use sqlx::{
    Row, SqlStr,
    sqlite::{SqliteArguments, SqliteRow},
};

use super::{
    backend::Sqlite,
    config::Config,
    connection::{Answer, Connections, Lane, Sql},
    error, place,
    statements::{self, Statements},
};
use crate::engine::{
    Engine,
    table::{self, Column},
    version::{Found, Verdict, Version},
};

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
    let statements = Statements::new(&config.table, config.next.as_ref());
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
    let mut found = found(connections, statements).await?;
    connections.found();
    loop {
        let raise = |oldest| statements.raise(oldest);
        let verdict = statements.known().verdict(&statements.prefix, found.unwrap_or_default(), raise)?;
        if verdict == Verdict::Current {
            return Ok(());
        }
        let columns = columns(connections, statements).await?;
        if verdict == Verdict::Unversioned && found.is_some() {
            if !table::can_be_completed(statements::SCHEMA, &statements.prefix, columns.iter().cloned()) {
                return Err(Version::unknown(&statements.prefix).into());
            }
            tracing::warn!(file = ?connections.path, "the tables of the locks had been emptied: whatever was held before is free");
        }
        let creation = statements.creation(found.unwrap_or_default().number, &columns);
        let made = first_of(connections, &creation, |_| Ok(())).await;
        let now = self::found(connections, statements).await?;
        if now == found {
            made?;
            return Err(Version::unknown(&statements.prefix).into());
        }
        // It was made, here or by another process, whose version may be another.
        found = now;
    }
}

/// What the tables say about their version, or `None` if there are none.
async fn found(connections: &Connections, statements: &Statements) -> Result<Option<Found>> {
    if first_of(connections, &statements.has_schema, |row| row.try_get::<i64, _>(0)).await?.is_none() {
        return Ok(None);
    }
    let read = |row: &SqliteRow| Ok(Found { number: row.try_get(0)?, oldest: row.try_get(1)? });
    first_of(connections, &statements.version, read).await
}

async fn columns(connections: &Connections, statements: &Statements) -> Result<Vec<Column>> {
    let read = |answer: Answer| {
        let columns = answer.rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
        let columns = columns.collect::<Result<Vec<_>, sqlx::Error>>();
        columns.map_err(|failure| error::driver(Operation::Connect, &connections.path, failure))
    };
    let (sql, arguments) = (Sql::Asks(&statements.columns), SqliteArguments::default());
    connections.run(Lane::Reading, Operation::Connect, sql, arguments, read).await
}

/// What `read` makes of the first row that `sql` answers with.
async fn first_of<T: Send>(
    connections: &Connections,
    sql: &SqlStr,
    read: impl Fn(&SqliteRow) -> Result<T, sqlx::Error> + Send,
) -> Result<Option<T>> {
    let read = |answer: Answer| {
        let first = answer.rows.first().map(read).transpose();
        first.map_err(|failure| error::driver(Operation::Connect, &connections.path, failure))
    };
    connections.run(Lane::Durable, Operation::Connect, Sql::Asks(sql), SqliteArguments::default(), read).await
}
