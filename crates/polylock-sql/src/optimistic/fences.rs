//! The table of fences: the greatest recorded token of each lock, checked at the start of a transaction.

use polylock_core::{FencingToken, LockName};
use sqlx::{Acquire, AssertSqlSafe, SqlSafeStr, Transaction};

use super::{Error, InvalidIdentifier, Result, Supported, identifier, supported::fill};

/// A table in your database that records the greatest token of each lock, and guards whole transactions with it.
///
/// Use [`begin`](Self::begin) instead of `pool.begin()`: the transaction with all its writes, to any tables, in your own SQL, is
/// refused if a later holder of the lock has begun one before. The [module](super) explains the mechanism.
///
/// The table must be in the database that the transactions write to. It has one row for each lock name ever used with it. A row
/// may be deleted once no holder of an old token can be alive.
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
    /// Creates a handle of the fences in `table` (or `schema.table`).
    ///
    /// # Errors
    /// [`InvalidIdentifier`] if `table` is not a valid name of a table.
    pub fn new(table: impl Into<String>) -> Result<Self, InvalidIdentifier> {
        let table = table.into();
        identifier::check_table(&table)?;
        Ok(Self { table })
    }

    /// Returns the statement that creates the table, for your migrations.
    #[must_use]
    pub fn schema<DB: Supported>(&self) -> String {
        fill(DB::SCHEMA, &self.quoted::<DB>())
    }

    /// Creates the table if it does not exist. Several processes may do this at the same time.
    ///
    /// On MySQL this commits the transaction in which it is called, as every schema change does.
    ///
    /// # Errors
    /// [`Error::Database`].
    ///
    /// # Cancel safety
    /// After a drop the table may or may not exist. It is safe to repeat the call.
    // Not an `async fn`: its future could not be spawned, because the compiler can't prove that it is `Send` for every lifetime
    // of `A` (sqlx #1015).
    #[expect(clippy::manual_async_fn, reason = "see above")]
    pub fn create<'c, A>(&self, database: A) -> impl Future<Output = Result<()>> + Send
    where
        A: Acquire<'c, Database: Supported> + Send,
    {
        async move {
            let mut connection = database.acquire().await?;
            Ok(create_table::<A::Database>(&mut connection, &self.schema::<A::Database>()).await?)
        }
    }

    /// Begins a transaction for the holder of `token` of the lock `name`, and calls [`check`](Self::check) as its first
    /// statement, before any read. If the token is refused, no transaction is returned.
    ///
    /// `database` is a pool, a connection, or a transaction, in which this begins a savepoint.
    ///
    /// # Errors
    /// The errors of [`check`](Self::check).
    ///
    /// # Cancel safety
    /// May be dropped at any point; the transaction is rolled back.
    // Not an `async fn`, for the reason given in `create`.
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

    /// Checks that no later holder of the lock `name` has recorded its token, and blocks the other holders until `transaction`
    /// ends. An equal token is accepted, so a holder may run any number of transactions.
    ///
    /// Call it before all other statements of the transaction, and not in a savepoint that may be rolled back alone. With several
    /// locks, check each of them, always in the same order, to avoid deadlocks in the database.
    ///
    /// # Errors
    /// [`Error::Stale`] if a greater token was recorded before: roll back. [`Error::NoFences`] if the table is missing,
    /// [`Error::InvalidName`] before anything is sent, and [`Error::Database`]; if that is [retryable](Error::is_retryable),
    /// begin a new transaction.
    ///
    /// # Cancel safety
    /// After a drop the transaction may or may not be guarded: roll it back.
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
        // Success only if the token is equal. A row that is missing right after it was written (because of a trigger or a rule)
        // is an error.
        match raised.first().copied().and_then(FencingToken::new) {
            Some(current) if current == token => Ok(()),
            Some(current) if current > token => {
                Err(Error::stale::<DB>(format!("lock {name}"), token, current))
            }
            _ => Err(Error::Database(sqlx::Error::RowNotFound)),
        }
    }

    fn quoted<DB: Supported>(&self) -> String {
        identifier::quoted(&self.table, DB::QUOTE)
    }
}

/// Runs a statement that creates a table which may exist.
async fn create_table<DB: Supported>(connection: &mut DB::Connection, sql: &str) -> sqlx::Result<()> {
    let run = async |connection: &mut DB::Connection| {
        let sql = AssertSqlSafe(sql.to_owned()).into_sql_str();
        DB::execute(connection, sql, DB::Arguments::default()).await.map(drop)
    };
    match run(connection).await {
        Err(sqlx::Error::Database(error)) if DB::is_race_of_schemas(&*error) => run(connection).await,
        result => result,
    }
}
