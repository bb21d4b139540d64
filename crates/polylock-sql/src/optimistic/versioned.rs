//! Compare and set: a row that is written only if it is still what was read.

use sqlx::{Acquire, Encode, Type};

use super::{
    Error, Result, Supported,
    update::{Condition, Update},
};

/// An update of one row of your table, made only if nobody has changed the row since it was read.
///
/// No lock is needed, and none is held between the read and the write: who comes second is told, reads again and decides
/// anew, perhaps with [`retry`](super::retry). The table needs a column that counts the changes, `version` unless
/// [`column`](Self::column) says otherwise: `BIGINT NOT NULL DEFAULT 0`, or nullable in a table that is there already,
/// where NULL counts as 0. It is one statement,
///
/// ```sql
/// UPDATE items SET version = $1, stock = $2 WHERE id = $3 AND coalesce(version, 0) = $4
/// ```
///
/// and within a transaction the row stays locked until the end, so your own SQL may follow. Everybody who changes the
/// row must count: an update that leaves `version` as it is goes unnoticed.
///
/// ```
/// # #[cfg(feature = "sqlite")]
/// # async fn sell(pool: sqlx::SqlitePool) -> Result<(), Box<dyn std::error::Error>> {
/// use polylock_sql::optimistic::{Error, VersionedUpdate, retry};
///
/// retry(10, Error::is_retryable, async || {
///     let read = sqlx::query_as("SELECT stock, version FROM items WHERE id = ?").bind(7);
///     let (stock, version): (i64, i64) = read.fetch_one(&pool).await?;
///     VersionedUpdate::new("items", version).key("id", 7).set("stock", stock - 1).execute(&pool).await
/// })
/// .await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "an update does nothing until it is executed"]
pub struct VersionedUpdate<'q, DB: Supported> {
    update: Update<'q, DB>,
    version: i64,
}

impl<'q, DB: Supported> VersionedUpdate<'q, DB> {
    /// An update of a row of `table` (or `schema.table`) that was read at `version`.
    ///
    /// Names of tables and columns are written as they are in the database: they are quoted, so `order` is fine, and
    /// case counts on PostgreSQL.
    pub fn new(table: &'q str, version: i64) -> Self {
        Self { update: Update::new(table, "version"), version }
    }

    /// The column that counts the changes; `version` if nothing is said.
    pub fn column(mut self, column: &'q str) -> Self {
        self.update.guard = column;
        self
    }

    /// Which row: `column` has this value. Of a primary key with several columns, give each.
    pub fn key<T>(mut self, column: &'q str, value: T) -> Self
    where
        T: Encode<'q, DB> + Type<DB> + Send + 'q,
    {
        self.update.key(column, value);
        self
    }

    /// `column` gets this value.
    pub fn set<T>(mut self, column: &'q str, value: T) -> Self
    where
        T: Encode<'q, DB> + Type<DB> + Send + 'q,
    {
        self.update.set(column, value);
        self
    }

    /// Writes the row, on a pool, a connection or in a transaction begun by sqlx, and tells its new version.
    ///
    /// # Errors
    /// [`Error::Conflict`] if it is at another version, [`Error::Missing`] if there is no such row,
    /// [`Error::NotUnique`], [`Error::InvalidIdentifier`] before anything is sent, and [`Error::Database`].
    ///
    /// # Cancel safety
    /// If it is dropped the row has been written or not: the same again would be a conflict with itself. Read the row.
    // Not an `async fn`: that one's future could not be spawned, because the compiler can't see that it is `Send` for every
    // lifetime of `A` (sqlx #1015).
    #[expect(clippy::manual_async_fn, reason = "see above")]
    pub fn execute<'c, A>(self, database: A) -> impl Future<Output = Result<i64>> + Send
    where
        A: Acquire<'c, Database = DB> + Send,
    {
        async move {
            let Self { update, version: expected } = self;
            let table = update.table.to_owned();
            let refused = move |current| {
                (current != expected).then(|| Error::Conflict { table: table.clone(), expected, current })
            };
            // Only being the same or not counts, so what comes after the last number is the first.
            let becomes = expected.wrapping_add(1);
            let mut connection = database.acquire().await?;
            update.run(&mut connection, Condition { is: "=", value: expected, becomes }, refused).await?;
            Ok(becomes)
        }
    }
}
