//! The fenced update: a row that carries the token of its last writer and refuses a smaller one.

use polylock_core::FencingToken;
use sqlx::{Acquire, Encode, Type};

use super::{
    Error, Result, Supported,
    update::{Condition, Update},
};

/// An update of one row of your table, which the row refuses if a later holder of the lock has written it.
///
/// The table needs a column for the token, `fence` unless [`column`](Self::column) says otherwise: `BIGINT NOT NULL
/// DEFAULT 0`, or nullable in a table that is there already. It is one statement,
///
/// ```sql
/// UPDATE orders SET fence = $1, state = $2 WHERE id = $3 AND coalesce(fence, 0) <= $4
/// ```
///
/// so it needs no transaction. *Not greater* is accepted, so a holder may write as often as it likes with its one token;
/// a row that nobody has written yet accepts any.
///
/// Within a transaction it also guards what follows: the row stays locked until the end, so what
/// [`set`](Self::set) can't say (`total = total + 1`, other tables) may be said in your own SQL after it. With no `set`
/// at all it does just that.
///
/// It can't guard a row that is not there: to insert, or to delete and keep an old holder from inserting it again, use
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
#[derive(Debug)]
#[must_use = "an update does nothing until it is executed"]
pub struct FencedUpdate<'q, DB: Supported> {
    update: Update<'q, DB>,
    token: FencingToken,
}

impl<'q, DB: Supported> FencedUpdate<'q, DB> {
    /// An update of `table` (or `schema.table`) by the holder of `token`.
    ///
    /// Names of tables and columns are written as they are in the database: they are quoted, so `order` is fine, and
    /// case counts on PostgreSQL.
    pub fn new(table: &'q str, token: FencingToken) -> Self {
        Self { update: Update::new(table, "fence"), token }
    }

    /// The column that keeps the token; `fence` if nothing is said.
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

    /// Writes the row, on a pool, a connection or in a transaction begun by sqlx.
    ///
    /// # Errors
    /// [`Error::Stale`] if a greater token has been there, [`Error::Missing`] if the row is not,
    /// [`Error::NotUnique`], [`Error::InvalidIdentifier`] before anything is sent, and [`Error::Database`].
    ///
    /// # Cancel safety
    /// If it is dropped the row has been written or not, and it is safe to do the same again.
    // Not an `async fn`: that one's future could not be spawned, because the compiler can't see that it is `Send` for every
    // lifetime of `A` (sqlx #1015).
    #[expect(clippy::manual_async_fn, reason = "see above")]
    pub fn execute<'c, A>(self, database: A) -> impl Future<Output = Result<()>> + Send
    where
        A: Acquire<'c, Database = DB> + Send,
    {
        async move {
            let Self { update, token } = self;
            let (resource, value) = (update.table.to_owned(), token.as_i64());
            let refused = move |current| {
                let current = FencingToken::new(current).filter(|current| *current > token)?;
                Some(Error::Stale { resource: resource.clone(), token, current })
            };
            let mut connection = database.acquire().await?;
            update.run(&mut connection, Condition { is: "<=", value, becomes: value }, refused).await
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

    /// sqlx's `Acquire` is known for futures that can't be spawned, which is found out far from here.
    #[tokio::test]
    async fn futures_can_be_spawned_with_whatever_sqlx_gives() {
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
