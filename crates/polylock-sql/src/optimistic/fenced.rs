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
    pub async fn execute<'c, A>(self, database: A) -> Result<()>
    where
        A: Acquire<'c, Database = DB>,
    {
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
