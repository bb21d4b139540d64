//! The table of fences: the greatest token seen of each lock, checked at the start of a transaction.

use polylock_core::{FencingToken, LockName};
use sqlx::{Acquire, AssertSqlSafe, SqlSafeStr, Transaction};

use super::{Error, InvalidIdentifier, Result, Supported, identifier, supported::fill};

/// A table of yours that keeps the greatest token seen of each lock, and guards whole transactions with it.
///
/// [`begin`](Self::begin) instead of `pool.begin()`, and everything that the transaction does, to any tables, in your own
/// SQL, is refused as one if a later holder of the lock has been there. See the [module](super) for why.
///
/// The table must be in the database that the transactions write to. It has one row for each lock name ever used with it.
/// A row may be deleted once no holder of an old token can be alive any more.
///
/// ```
/// # #[cfg(feature = "sqlite")]
/// # async fn pay(pool: sqlx::SqlitePool, guard: polylock_core::Guard) -> Result<(), Box<dyn std::error::Error>> {
/// use polylock_sql::optimistic::Fences;
///
/// let fences = Fences::new("fences")?;
/// fences.create(&pool).await?;                    // once, or put `fences.schema()` into your migrations
///
/// let mut tx = fences.begin(&pool, guard.name(), guard.fencing_token()).await?;
/// sqlx::query("UPDATE orders SET state = 'paid' WHERE id = 42").execute(&mut *tx).await?;
/// sqlx::query("INSERT INTO payments (order_id) VALUES (42)").execute(&mut *tx).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fences {
    table: String,
}

impl Fences {
    /// The fences in `table` (or `schema.table`).
    ///
    /// # Errors
    /// [`InvalidIdentifier`] if that can't be the name of a table.
    pub fn new(table: impl Into<String>) -> Result<Self, InvalidIdentifier> {
        let table = table.into();
        identifier::check_table(&table)?;
        Ok(Self { table })
    }

    /// The statement that makes the table, for your migrations.
    #[must_use]
    pub fn schema<DB: Supported>(&self) -> String {
        fill(DB::SCHEMA, &self.quoted::<DB>())
    }

    /// Makes the table if it is not there. Several may do so at once.
    ///
    /// On MySQL this ends the transaction that it is called in, as every change of a schema does.
    ///
    /// # Errors
    /// [`Error::Database`].
    ///
    /// # Cancel safety
    /// If it is dropped the table is there or not, and it is safe to do the same again.
    // Not an `async fn`: that one's future could not be spawned, because the compiler can't see that it is `Send` for every
    // lifetime of `A` (sqlx #1015).
    #[expect(clippy::manual_async_fn, reason = "see above")]
    pub fn create<'c, A>(&self, database: A) -> impl Future<Output = Result<()>> + Send
    where
        A: Acquire<'c, Database: Supported> + Send,
    {
        async move {
            let mut connection = database.acquire().await?;
            Ok(make::<A::Database>(&mut connection, &self.schema::<A::Database>()).await?)
        }
    }

    /// Begins a transaction of the holder of `token` of the lock `name`: as [`check`](Self::check), at the only place
    /// where it can't come too late. If it is refused there is no transaction to go on with.
    ///
    /// `database` is a pool, a connection, or a transaction, in which it is a savepoint.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    ///
    /// # Cancel safety
    /// May be dropped at any point; the transaction is rolled back.
    // Not an `async fn`, as `create`.
    pub fn begin<'c, A>(
        &self,
        database: A,
        name: impl AsRef<str>,
        token: FencingToken,
    ) -> impl Future<Output = Result<Transaction<'c, A::Database>>> + Send
    where
        A: Acquire<'c, Database: Supported> + Send,
    {
        let name = LockName::new(name);
        async move {
            let name = name?;
            let mut transaction = database.begin().await?;
            self.check(&mut transaction, name, token).await?;
            Ok(transaction)
        }
    }

    /// Checks that no later holder of the lock `name` has been there, and keeps every other one out until `transaction`
    /// ends. A token equal to the last is accepted, so one holder may make any number of transactions.
    ///
    /// It belongs before everything else in the transaction, and not into a savepoint that may be rolled back alone. Of
    /// several locks, check each; in the same order everywhere, or the database will sometimes find a deadlock.
    ///
    /// # Errors
    /// [`Error::Stale`] if a greater token has been there: roll back. [`Error::NoFences`] if the table is missing,
    /// [`Error::InvalidName`] before anything is sent, and [`Error::Database`]; if that is
    /// [retryable](Error::is_retryable), begin anew.
    ///
    /// # Cancel safety
    /// If it is dropped, nobody knows whether the transaction is guarded: roll it back.
    pub async fn check<DB: Supported>(
        &self,
        transaction: &mut Transaction<'_, DB>,
        name: impl AsRef<str>,
        token: FencingToken,
    ) -> Result<()> {
        let name = LockName::new(name)?;
        let raised = DB::raise(transaction, &self.quoted::<DB>(), name.as_str(), token.as_i64()).await;
        let raised = raised.map_err(|error| match error {
            sqlx::Error::Database(missing) if DB::is_missing_table(&*missing) => Error::NoFences {
                table: self.table.clone(),
                schema: self.schema::<DB>(),
                source: sqlx::Error::Database(missing),
            },
            error => Error::Database(error),
        })?;
        // Equal is the one good answer; a row that is not there after it was written (a trigger, a rule) is none.
        match raised.first().copied().and_then(FencingToken::new) {
            Some(current) if current == token => Ok(()),
            Some(current) if current > token => {
                Err(Error::Stale { resource: format!("lock {name}"), token, current })
            }
            _ => Err(Error::Database(sqlx::Error::RowNotFound)),
        }
    }

    fn quoted<DB: Supported>(&self) -> String {
        identifier::quoted(&self.table, DB::QUOTE)
    }
}

/// Runs a statement that makes what may be there.
async fn make<DB: Supported>(connection: &mut DB::Connection, sql: &str) -> sqlx::Result<()> {
    let run = async |connection: &mut DB::Connection| {
        let sql = AssertSqlSafe(sql.to_owned()).into_sql_str();
        DB::execute(connection, sql, DB::Arguments::default()).await.map(drop)
    };
    match run(connection).await {
        Err(sqlx::Error::Database(error)) if DB::is_race_of_schemas(&*error) => run(connection).await,
        result => result,
    }
}
