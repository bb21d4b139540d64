//! Compare and set: a row is written only if it is unchanged since it was read.

use sqlx::Acquire;

use super::{
    Error, Result, Supported,
    update::{Condition, Update},
};

/// An update of one row of your table, made only if the row is unchanged since it was read.
///
/// It needs no lock, and holds none between the read and the write: the second of two writers gets an error, reads again and
/// decides again, for example with [`retry`](super::retry). The table needs a column that counts the changes, by default
/// `version` (see [`column`](Update::column)): `BIGINT NOT NULL DEFAULT 0`, or nullable in an existing table, where NULL counts as
/// 0. The update is one statement,
///
/// ```sql
/// UPDATE items SET version = $1, stock = $2 WHERE id = $3 AND coalesce(version, 0) = $4
/// ```
///
/// and within a transaction the row stays locked until the end, so your own SQL may follow. Every writer of the row must change
/// the version: an update that leaves `version` as it is remains undetected.
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
pub type VersionedUpdate<'q, DB> = Update<'q, DB, i64>;

impl<'q, DB: Supported> VersionedUpdate<'q, DB> {
    /// Creates an update of a row of `table` (or `schema.table`) that was read at `version`.
    ///
    /// Names of tables and columns must be written as they are in the database, because they are quoted: `order` is a valid name,
    /// and names are case-sensitive on PostgreSQL.
    pub fn new(table: &'q str, version: i64) -> Self {
        Self::with_guard(table, "version", version)
    }

    /// Writes the row, on a pool, on a connection or in a transaction that was begun with sqlx, and returns its new version.
    ///
    /// # Errors
    /// [`Error::Conflict`] if the row has another version, [`Error::Missing`] if it does not exist, [`Error::NotUnique`],
    /// [`Error::InvalidIdentifier`] before anything is sent, and [`Error::Database`].
    ///
    /// # Cancel safety
    /// After a drop the row may or may not have been written: read it again. If it was written, a repeated update returns a
    /// conflict with its own first attempt.
    // Not an `async fn`: its future could not be spawned, because the compiler can't prove that it is `Send` for every lifetime
    // of `A` (sqlx #1015).
    #[expect(clippy::manual_async_fn, reason = "see above")]
    pub fn execute<'c, A>(self, database: A) -> impl Future<Output = Result<i64>> + Send
    where
        A: Acquire<'c, Database = DB> + Send,
    {
        async move {
            let (table, expected) = (self.table.to_owned(), self.expected);
            let refused = move |current| {
                (current != expected).then(|| Error::Conflict { table: table.clone(), expected, current })
            };
            // Versions are only compared for equality, so the greatest one may be followed by the smallest.
            let new_value = expected.wrapping_add(1);
            let mut connection = database.acquire().await?;
            self.run(&mut connection, Condition { operator: "=", value: expected, new_value }, refused)
                .await?;
            Ok(new_value)
        }
    }
}
