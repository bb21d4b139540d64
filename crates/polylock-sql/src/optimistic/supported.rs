//! What differs between the databases.

use sqlx::{Database, SqlStr};

/// A database that the helpers speak to: `sqlx::Sqlite`, `sqlx::Postgres` and `sqlx::MySql`, each with the feature of
/// its name. Nobody else can implement it.
pub trait Supported: seam::Seam {}

pub(super) mod seam {
    use super::{Database, SqlStr};

    /// The small part that is each database's own. Public in name only: nobody can reach it.
    pub trait Seam: Database {
        /// What stands around a name. Not `"` on SQLite, which takes `"nosuchcolumn"` for a text and says nothing.
        const QUOTE: char;
        /// The type that a whole number of any width is cast to, to be read as an `i64`.
        const INTEGER: &str;
        /// Makes a read wait for, and see, the row's last version even in an older snapshot.
        const LOCKING: &str;
        /// Makes the table of fences.
        const SCHEMA: &str;
        /// Raises a fence.
        const RAISE: &str;

        /// Adds a number to the arguments.
        fn add(arguments: &mut Self::Arguments, value: i64) -> sqlx::Result<()>;

        /// How many rows the statement changed, or matched, as the server counts.
        fn execute(
            connection: &mut Self::Connection,
            sql: SqlStr,
            arguments: Self::Arguments,
        ) -> impl Future<Output = sqlx::Result<u64>> + Send;

        /// The first column of all rows.
        fn numbers(
            connection: &mut Self::Connection,
            sql: SqlStr,
            arguments: Self::Arguments,
        ) -> impl Future<Output = sqlx::Result<Vec<i64>>> + Send;

        /// Raises the fence `name` in `table` (quoted) to `token` at least, locks it, and tells what it is at.
        fn raise(
            connection: &mut Self::Connection,
            table: &str,
            name: &str,
            token: i64,
        ) -> impl Future<Output = sqlx::Result<Vec<i64>>> + Send;

        /// Whether a table is missing.
        fn is_missing_table(error: &dyn sqlx::error::DatabaseError) -> bool;

        /// Whether several who made the same table at once met.
        fn is_race_of_schemas(error: &dyn sqlx::error::DatabaseError) -> bool;
    }
}

/// The statement of a file in `statements/`, without its comments, on `table`, which is quoted.
pub(super) fn fill(file: &str, table: &str) -> String {
    let code: Vec<&str> = file.lines().filter(|line| !line.starts_with("--")).collect();
    code.join("\n").replace("{table}", table)
}

/// The methods that read the same for every database, and can't be written once because sqlx's bounds can't be named.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
macro_rules! with_driver {
    () => {
        fn add(arguments: &mut Self::Arguments, value: i64) -> sqlx::Result<()> {
            sqlx::Arguments::add(arguments, value).map_err(sqlx::Error::Encode)
        }

        async fn execute(
            connection: &mut Self::Connection,
            sql: SqlStr,
            arguments: Self::Arguments,
        ) -> sqlx::Result<u64> {
            Ok(sqlx::query_with(sql, arguments).execute(connection).await?.rows_affected())
        }

        async fn numbers(
            connection: &mut Self::Connection,
            sql: SqlStr,
            arguments: Self::Arguments,
        ) -> sqlx::Result<Vec<i64>> {
            sqlx::query_scalar_with(sql, arguments).fetch_all(connection).await
        }
    };
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr, Sqlite, SqliteConnection, error::DatabaseError};

    use super::{Supported, fill, seam::Seam};

    impl Supported for Sqlite {}

    impl Seam for Sqlite {
        const QUOTE: char = '`';
        const INTEGER: &str = "INTEGER";
        // A snapshot can't be older: who writes next fails.
        const LOCKING: &str = "";
        const SCHEMA: &str = include_str!("statements/schema.sqlite.sql");
        const RAISE: &str = include_str!("statements/raise.sqlite.sql");

        with_driver!();

        async fn raise(
            connection: &mut SqliteConnection,
            table: &str,
            name: &str,
            token: i64,
        ) -> sqlx::Result<Vec<i64>> {
            let sql = AssertSqlSafe(fill(Self::RAISE, table)).into_sql_str();
            sqlx::query_scalar(sql).bind(name).bind(token).fetch_all(connection).await
        }

        fn is_missing_table(error: &dyn DatabaseError) -> bool {
            error.message().contains("no such table")
        }

        fn is_race_of_schemas(_: &dyn DatabaseError) -> bool {
            false
        }
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use sqlx::{AssertSqlSafe, PgConnection, Postgres, SqlSafeStr, SqlStr, error::DatabaseError};

    use super::{Supported, fill, seam::Seam};

    impl Supported for Postgres {}

    impl Seam for Postgres {
        const QUOTE: char = '"';
        const INTEGER: &str = "bigint";
        const LOCKING: &str = " FOR UPDATE";
        const SCHEMA: &str = include_str!("statements/schema.postgres.sql");
        const RAISE: &str = include_str!("statements/raise.postgres.sql");

        with_driver!();

        async fn raise(
            connection: &mut PgConnection,
            table: &str,
            name: &str,
            token: i64,
        ) -> sqlx::Result<Vec<i64>> {
            let sql = AssertSqlSafe(fill(Self::RAISE, table)).into_sql_str();
            sqlx::query_scalar(sql).bind(name).bind(token).fetch_all(connection).await
        }

        fn is_missing_table(error: &dyn DatabaseError) -> bool {
            error.code().as_deref() == Some("42P01")
        }

        fn is_race_of_schemas(error: &dyn DatabaseError) -> bool {
            // IF NOT EXISTS looks before it locks: the other's rows in the catalogue, or its table, come first.
            matches!(error.code().as_deref(), Some("23505" | "42P07" | "42710"))
        }
    }
}

#[cfg(feature = "mysql")]
mod mysql {
    use sqlx::{AssertSqlSafe, MySql, MySqlConnection, SqlSafeStr, SqlStr, error::DatabaseError};

    use super::{Supported, fill, seam::Seam};

    impl Supported for MySql {}

    impl Seam for MySql {
        const QUOTE: char = '`';
        const INTEGER: &str = "SIGNED";
        const LOCKING: &str = " FOR UPDATE";
        const SCHEMA: &str = include_str!("statements/schema.mysql.sql");
        const RAISE: &str = include_str!("statements/raise.mysql.sql");

        with_driver!();

        async fn raise(
            connection: &mut MySqlConnection,
            table: &str,
            name: &str,
            token: i64,
        ) -> sqlx::Result<Vec<i64>> {
            // Bytes, not text: whatever character set the connection has, the name is what it is.
            let name = name.as_bytes();
            let raise = AssertSqlSafe(fill(Self::RAISE, table)).into_sql_str();
            sqlx::query(raise).bind(name).bind(token).bind(token).execute(&mut *connection).await?;
            let raised = fill(include_str!("statements/raised.mysql.sql"), table);
            sqlx::query_scalar(AssertSqlSafe(raised)).bind(name).fetch_all(connection).await
        }

        fn is_missing_table(error: &dyn DatabaseError) -> bool {
            error.code().as_deref() == Some("42S02")
        }

        fn is_race_of_schemas(_: &dyn DatabaseError) -> bool {
            false
        }
    }
}
