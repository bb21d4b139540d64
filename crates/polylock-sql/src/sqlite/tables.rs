//! The tables: checks their version, and creates or upgrades them.

use polylock_core::{Fault, Operation, Result};
use sqlx::{
    Row, SqlStr,
    sqlite::{SqliteArguments, SqliteRow},
};

use super::{
    connection::{Connections, Lane, Sql},
    error, file, names,
    statements::{self, Statements},
};
use crate::engine::{
    table::{self, Column},
    version::{FoundVersion, SchemaState, Version},
};

/// Sets the journal to WAL and creates the tables, each only if that was not done before.
pub(super) async fn prepare(connections: &Connections, statements: &Statements) -> Result<()> {
    file::create(&connections.path).await;
    names::check(&connections.path).await?;
    let journal = SqlStr::from_static("PRAGMA journal_mode = WAL");
    let journal = first_of(connections, &journal, |row| row.try_get::<String, _>(0)).await?;
    if journal.as_deref() != Some("wal") {
        return Err(error::advise(
            Operation::Connect,
            &connections.path,
            Fault::Permanent,
            "this file system does not support a write-ahead log: put the file on a local disk",
        ));
    }
    let mut found = found(connections, statements).await?;
    connections.record_identity();
    refuse_foreign_triggers(connections, statements).await?;
    loop {
        let raise = |oldest| statements.raise(oldest);
        let state = statements.known().check(&statements.prefix, found.unwrap_or_default(), raise)?;
        if state == SchemaState::Current {
            return Ok(());
        }
        let columns = columns(connections, statements).await?;
        if state == SchemaState::Unversioned && found.is_some() {
            if !table::can_be_completed(statements::SCHEMA, &statements.prefix, columns.iter().cloned()) {
                return Err(Version::unknown(&statements.prefix).into());
            }
            tracing::warn!(file = ?connections.path, "the lock tables were empty: all locks that were held before are lost");
        }
        let creation = statements.creation(found.unwrap_or_default().number, &columns);
        let created = first_of(connections, &creation, |_| Ok(())).await;
        let now = self::found(connections, statements).await?;
        if now == found {
            created?;
            return Err(Version::unknown(&statements.prefix).into());
        }
        // The tables were created, here or by another process, which may have another version.
        found = now;
    }
}

/// Drops the tables.
pub(super) async fn drop_all(connections: &Connections, statements: &Statements) -> Result<()> {
    first_of(connections, &statements.drop_all, |_| Ok(())).await.map(drop)
}

/// Returns the version numbers in the tables; `None` if there are no tables.
async fn found(connections: &Connections, statements: &Statements) -> Result<Option<FoundVersion>> {
    if first_of(connections, &statements.has_schema, |row| row.try_get::<i64, _>(0)).await?.is_none() {
        return Ok(None);
    }
    let read = |row: &SqliteRow| Ok(FoundVersion { number: row.try_get(0)?, oldest: row.try_get(1)? });
    first_of(connections, &statements.version, read).await
}

/// Refuses tables on which other code runs with each change.
async fn refuse_foreign_triggers(connections: &Connections, statements: &Statements) -> Result<()> {
    let found: Vec<String> = pairs(connections, &statements.foreign)
        .await?
        .into_iter()
        .map(|(trigger, table)| format!("{trigger} on {table}"))
        .collect();
    if found.is_empty() {
        return Ok(());
    }
    let advice = format!(
        "other code runs with each change of the lock tables, and may undo it: DROP TRIGGER for {}",
        found.join(", ")
    );
    Err(error::advise(Operation::Connect, &connections.path, Fault::Permanent, advice))
}

async fn columns(connections: &Connections, statements: &Statements) -> Result<Vec<Column>> {
    pairs(connections, &statements.columns).await
}

/// Returns the rows of a statement that returns two texts.
async fn pairs(connections: &Connections, sql: &SqlStr) -> Result<Vec<(String, String)>> {
    let (sql, arguments) = (Sql::Query(sql), SqliteArguments::default());
    connections
        .run(Lane::Reading, Operation::Connect, sql, arguments, |reply| {
            reply.rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
        })
        .await
}

/// Runs `sql` and returns the value that `read` decodes from its first row, if there is one.
async fn first_of<T: Send>(
    connections: &Connections,
    sql: &SqlStr,
    read: impl Fn(&SqliteRow) -> Result<T, sqlx::Error> + Send,
) -> Result<Option<T>> {
    let (sql, arguments) = (Sql::Query(sql), SqliteArguments::default());
    connections
        .run(Lane::Durable, Operation::Connect, sql, arguments, |reply| {
            reply.rows.first().map(read).transpose()
        })
        .await
}
