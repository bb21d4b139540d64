//! The fenced update: a row stores the token of its last writer and refuses a smaller one.

use polylock_core::FencingToken;
use sqlx::Acquire;

use super::{
    Error, Result, Supported,
    update::{Condition, Update},
};

/// An update of one row of your table, which fails if a later holder of the lock has written the row.
///
/// The table needs a column for the token, by default `fence` (see [`column`](Update::column)): `BIGINT NOT NULL DEFAULT 0`, or
/// nullable in an existing table. The update is one statement,
///
/// ```sql
/// UPDATE orders SET fence = $1, state = $2 WHERE id = $3 AND coalesce(fence, 0) <= $4
/// ```
///
/// so it needs no transaction. A token that is *not greater* than the new one is overwritten, so a holder may write any number of
/// times with its token; a row without a token accepts any token.
///
/// Within a transaction the update also guards the statements after it, because the row stays locked until the end of the
/// transaction. So your own SQL after it may do things that [`set`](Update::set) can't express (`total = total + 1`, writes to
/// other tables). An update without any `set` only guards.
///
/// A missing row can't be guarded: for inserts, and for deletes after which an old holder must not insert the row again, use
/// [`Fences`](super::Fences).
///
/// ```
/// # #[cfg(feature = "sqlite")]
/// # async fn pay(pool: sqlx::SqlitePool, guard: polylock_core::Guard) -> Result<(), Box<dyn std::error::Error>> {
/// use polylock_sql::optimistic::FencedUpdate;
///
/// FencedUpdate::new("orders", guard.fencing_token()).key("id", 42).set("state", "paid").execute(&pool).await?;
///
/// let mut tx = pool.begin().await?;
/// FencedUpdate::new("orders", guard.fencing_token()).key("id", 42).execute(&mut *tx).await?;
/// sqlx::query("UPDATE orders SET total = total + 1 WHERE id = ?").bind(42).execute(&mut *tx).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
pub type FencedUpdate<'q, DB> = Update<'q, DB, FencingToken>;

impl<'q, DB: Supported> FencedUpdate<'q, DB> {
    /// Creates an update of `table` (or `schema.table`) by the holder of `token`.
    ///
    /// Names of tables and columns must be written as they are in the database, because they are quoted: `order` is a valid name,
    /// and names are case-sensitive on PostgreSQL.
    pub fn new(table: &'q str, token: FencingToken) -> Self {
        Self::with_guard(table, "fence", token)
    }

    /// Writes the row, on a pool, on a connection or in a transaction that was begun with sqlx.
    ///
    /// # Errors
    /// [`Error::Stale`] if a greater token was recorded before, [`Error::Missing`] if the row does not exist,
    /// [`Error::NotUnique`], [`Error::InvalidIdentifier`] before anything is sent, and [`Error::Database`].
    ///
    /// # Cancel safety
    /// After a drop the row may or may not have been written. It is safe to repeat the update.
    // Not an `async fn`: its future could not be spawned, because the compiler can't prove that it is `Send` for every lifetime
    // of `A` (sqlx #1015).
    #[expect(clippy::manual_async_fn, reason = "see above")]
    pub fn execute<'c, A>(self, database: A) -> impl Future<Output = Result<()>> + Send
    where
        A: Acquire<'c, Database = DB> + Send,
    {
        async move {
            let (resource, token, value) = (self.table.to_owned(), self.expected, self.expected.as_i64());
            let refused = move |current| {
                let current = FencingToken::new(current).filter(|current| *current > token)?;
                Some(Error::stale::<A::Database>(resource.clone(), token, current))
            };
            let mut connection = database.acquire().await?;
            self.run(&mut connection, Condition { operator: "<=", value, new_value: value }, refused).await
        }
    }
}

#[cfg(test)]
#[cfg(feature = "sqlite")]
mod tests {
    use super::*;
    use crate::optimistic::Fences;
    use sqlx::{SqliteConnection, SqlitePool, sqlite::SqliteConnectOptions};

    type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

    /// The futures of functions with sqlx's `Acquire` often can't be spawned, and the compiler reports that only at the caller.
    #[tokio::test]
    async fn futures_can_be_spawned_with_every_kind_of_connection() {
        async fn write(pool: SqlitePool, connection: &mut SqliteConnection, name: String) -> Outcome<()> {
            let (fences, token) = (Fences::new("fences")?, FencingToken::new(1).ok_or("no token")?);
            let update = |name| FencedUpdate::new("t", token).key("name", name);
            fences.create(&mut *connection).await?;
            let mut transaction = fences.begin(&pool, &name, token).await?;
            fences.check(&mut transaction, name.clone(), token).await?;
            update(&name).execute(&mut *transaction).await?;
            update(&name).execute(&mut transaction).await?;
            transaction.commit().await?;
            update(&name).execute(connection).await?;
            Ok(update(&name).execute(&pool).await?)
        }
        let directory = tempfile::TempDir::new().unwrap();
        let file = directory.path().join("t.db");
        let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
        let pool = SqlitePool::connect_with(options).await.unwrap();
        let spawned = tokio::spawn(async move {
            let mut connection = pool.acquire().await?;
            sqlx::raw_sql("CREATE TABLE t (name TEXT, fence INT); INSERT INTO t VALUES ('a', NULL)")
                .execute(&mut *connection)
                .await?;
            write(pool, &mut connection, "a".to_owned()).await
        });
        spawned.await.unwrap().unwrap();
    }
}
