//! SQL databases by `sqlx`: `INSERT` and `DELETE`, prepared, each a transaction of its own.

use std::sync::Arc;

use async_trait::async_trait;
use sqlx::{
    AssertSqlSafe, Database, Encode, Executor, IntoArguments, Pool, SqlSafeStr, SqlStr, Type,
    pool::PoolOptions,
};

use super::client::RawClient;
use crate::{Error, Result};

/// The statements on a table.
#[derive(Clone)]
pub(super) struct Statements {
    create: SqlStr,
    insert: SqlStr,
    delete: SqlStr,
    drop: SqlStr,
}

impl Statements {
    /// Returns the statements on `table`, a name of plain characters, with these columns and placeholders.
    pub(super) fn new(table: &str, columns: &str, [name, owner, expires_at]: [&str; 3]) -> Self {
        let statement = |text: String| AssertSqlSafe(Arc::<str>::from(text)).into_sql_str();
        Self {
            create: statement(format!("CREATE TABLE IF NOT EXISTS {table} {columns}")),
            insert: statement(format!("INSERT INTO {table} VALUES ({name}, {owner}, {expires_at})")),
            delete: statement(format!("DELETE FROM {table} WHERE name = {name} AND owner = {owner}")),
            drop: statement(format!("DROP TABLE IF EXISTS {table}")),
        }
    }
}

/// Returns the name of the table in a namespace.
pub(super) fn name(namespace: &str) -> String {
    format!("{namespace}_raw")
}

/// The connections of a driver.
pub(super) enum Connections<DB: Database> {
    /// A pool of the driver.
    Pool(Pool<DB>),
    /// One connection, or another one for releases.
    Own(DB::Connection, Option<DB::Connection>),
}

impl<DB: Database> Connections<DB> {
    /// Opens a pool, without the driver's check of a connection before each use, which is one more round trip.
    #[allow(dead_code, reason = "SQLite has no pool")]
    pub(super) async fn pool(options: <DB::Connection as sqlx::Connection>::Options) -> Result<Self> {
        let pool = PoolOptions::new().test_before_acquire(false).connect_with(options).await;
        Ok(Self::Pool(pool.map_err(Error::raw)?))
    }
}

/// A table in a database.
pub(super) struct Table<DB: Database> {
    statements: Statements,
    connections: Connections<DB>,
}

impl<DB> Table<DB>
where
    DB: Database,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    DB::Arguments: IntoArguments<DB>,
    for<'q> Vec<u8>: Encode<'q, DB> + Type<DB>,
    for<'q> i64: Encode<'q, DB> + Type<DB>,
{
    /// Creates the table if it is missing.
    pub(super) async fn create(mut connections: Connections<DB>, statements: Statements) -> Result<Self> {
        let create = statements.create.clone();
        let created = match &mut connections {
            Connections::Pool(pool) => pool.execute(create).await,
            Connections::Own(connection, _) => connection.execute(create).await,
        };
        created.map_err(Error::raw)?;
        Ok(Self { statements, connections })
    }
}

/// Executes a statement with these values on a connection.
async fn execute<DB>(
    on: &mut DB::Connection,
    statement: &SqlStr,
    [name, owner]: [&[u8]; 2],
    expires_at: Option<i64>,
) -> Result<()>
where
    DB: Database,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    DB::Arguments: IntoArguments<DB>,
    for<'q> Vec<u8>: Encode<'q, DB> + Type<DB>,
    for<'q> i64: Encode<'q, DB> + Type<DB>,
{
    let mut query = sqlx::query::<DB>(statement.clone()).bind(name.to_vec()).bind(owner.to_vec());
    if let Some(expires_at) = expires_at {
        query = query.bind(expires_at);
    }
    query.execute(on).await.map(drop).map_err(Error::raw)
}

#[async_trait]
impl<DB> RawClient for Table<DB>
where
    DB: Database,
    DB::Connection: Sync,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    DB::Arguments: IntoArguments<DB>,
    for<'q> Vec<u8>: Encode<'q, DB> + Type<DB>,
    for<'q> i64: Encode<'q, DB> + Type<DB>,
{
    fn description(&self) -> &'static str {
        match self.connections {
            Connections::Pool(_) => "INSERT, DELETE by sqlx on a pool",
            Connections::Own(..) => "INSERT, DELETE by sqlx on a connection",
        }
    }

    async fn pair(&mut self, name: &str, owner: [u8; 16]) -> Result<()> {
        let values = [name.as_bytes(), &owner];
        let (insert, delete) = (&self.statements.insert, &self.statements.delete);
        match &mut self.connections {
            Connections::Pool(pool) => {
                // As programs do it, each statement uses a connection of the pool.
                execute::<DB>(
                    &mut *pool.acquire().await.map_err(Error::raw)?,
                    insert,
                    values,
                    Some(i64::MAX),
                )
                .await?;
                execute::<DB>(&mut *pool.acquire().await.map_err(Error::raw)?, delete, values, None).await
            }
            Connections::Own(grant, release) => {
                execute::<DB>(grant, insert, values, Some(i64::MAX)).await?;
                execute::<DB>(release.as_mut().unwrap_or(grant), delete, values, None).await
            }
        }
    }

    fn share(&self) -> Option<Box<dyn RawClient>> {
        let Connections::Pool(pool) = &self.connections else { return None };
        let connections = Connections::Pool(pool.clone());
        Some(Box::new(Self { statements: self.statements.clone(), connections }))
    }

    async fn remove(&mut self) -> Result<()> {
        let drop = self.statements.drop.clone();
        let dropped = match &mut self.connections {
            Connections::Pool(pool) => pool.execute(drop).await,
            Connections::Own(connection, _) => connection.execute(drop).await,
        };
        dropped.map(|_| ()).map_err(Error::raw)
    }
}
