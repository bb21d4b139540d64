//! The differences between the databases.

use sqlx::{Database, SqlStr};

/// A database that the helpers support: `sqlx::Sqlite`, `sqlx::Postgres` and `sqlx::MySql`, each with the feature of its name.
/// The trait is sealed.
pub trait Supported: driver::SealedDriver {}

pub(super) mod driver {
    use super::{Database, SqlStr};

    /// A part of a fence for programs without this library.
    #[derive(Debug, Clone, Copy)]
    pub enum ScriptPart {
        /// The table of fences, and the function.
        Function,
        DropFunction,
        /// The trigger of a table.
        Trigger,
        DropTrigger,
    }

    /// The database-specific part. It is public in name only: no path outside this crate leads to it.
    pub trait SealedDriver: Database {
        /// The name in metrics, as in [`Capabilities`](polylock_core::Capabilities).
        const BACKEND: &str;
        /// The quotation mark of names. Not `"` on SQLite, which silently reads `"nosuchcolumn"` as a text.
        const QUOTE: char;
        /// The type to which an integer of any width is cast, so that it can be read as an `i64`.
        const INTEGER: &str;
        /// The clause with which a read waits for the row's last version, and returns it even in an older snapshot.
        const LOCKING: &str;
        /// The statement that creates the table of fences.
        const SCHEMA: &str;
        /// The statement that raises a fence.
        const RAISE: &str;

        /// Returns the files of a part of a fence for programs without this library, a statement each.
        fn script(part: ScriptPart) -> &'static [&'static str];

        /// Returns these statements as a script for the database's own client.
        fn client_script(statements: &[String]) -> String {
            statements.iter().map(|statement| format!("{statement};\n")).collect()
        }

        /// Adds a number to the arguments.
        fn add(arguments: &mut Self::Arguments, value: i64) -> sqlx::Result<()>;

        /// Returns the number of rows that the statement changed or matched, depending on the server.
        fn execute(
            connection: &mut Self::Connection,
            sql: SqlStr,
            arguments: Self::Arguments,
        ) -> impl Future<Output = sqlx::Result<u64>> + Send;

        /// Returns the first column of all rows.
        fn numbers(
            connection: &mut Self::Connection,
            sql: SqlStr,
            arguments: Self::Arguments,
        ) -> impl Future<Output = sqlx::Result<Vec<i64>>> + Send;

        /// Raises the fence `name` in `table` (quoted) to at least `token`, locks it, and returns its value.
        fn raise(
            connection: &mut Self::Connection,
            table: &str,
            name: &str,
            token: i64,
        ) -> impl Future<Output = sqlx::Result<Vec<i64>>> + Send;

        /// Returns true if a table is missing.
        fn is_missing_table(error: &dyn sqlx::error::DatabaseError) -> bool;

        /// Returns true if several sessions created the same table at the same time.
        fn is_race_of_schemas(error: &dyn sqlx::error::DatabaseError) -> bool;
    }
}

/// Returns the statement of a file in `statements/`, without its comments, on `table`, which is quoted.
pub(super) fn fill(file: &str, table: &str) -> String {
    fill_names(file, &[("{table}", table.to_owned())])
}

/// Returns the statement of a file without its comments, with these names filled in.
pub(super) fn fill_names(file: &str, names: &[(&str, String)]) -> String {
    let code: Vec<&str> = file.lines().filter(|line| !line.starts_with("--")).collect();
    names.iter().fold(code.join("\n"), |text, (key, name)| text.replace(key, name))
}

/// The methods with the same text for every database; with `returning`, also for those that return the values of the rows that they
/// write. They can't be generic, because sqlx's bounds can't be named.
macro_rules! with_driver {
    (returning) => {
        with_driver!();

        async fn raise(
            connection: &mut Self::Connection,
            table: &str,
            name: &str,
            token: i64,
        ) -> sqlx::Result<Vec<i64>> {
            let sql = AssertSqlSafe(fill(Self::RAISE, table)).into_sql_str();
            sqlx::query_scalar(sql).bind(name).bind(token).fetch_all(connection).await
        }
    };
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
    use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr, Sqlite, error::DatabaseError};

    use super::{
        Supported,
        driver::{ScriptPart, SealedDriver},
        fill,
    };

    impl Supported for Sqlite {}

    impl SealedDriver for Sqlite {
        const BACKEND: &str = "sqlite";
        const QUOTE: char = '`';
        const INTEGER: &str = "INTEGER";
        // A write in an older snapshot fails, so a locking read is not needed.
        const LOCKING: &str = "";
        const SCHEMA: &str = include_str!("statements/schema.sqlite.sql");
        const RAISE: &str = include_str!("statements/raise.sqlite.sql");

        with_driver!(returning);

        fn script(part: ScriptPart) -> &'static [&'static str] {
            match part {
                ScriptPart::Function => &[
                    Self::SCHEMA,
                    include_str!("statements/script/view.sqlite.sql"),
                    include_str!("statements/script/fence.sqlite.sql"),
                ],
                ScriptPart::DropFunction => &["DROP VIEW IF EXISTS {fence}", "DROP TABLE IF EXISTS {fences}"],
                // A savepoint works within a transaction of a migration, too.
                ScriptPart::Trigger => &[
                    "SAVEPOINT polylock",
                    "DROP TRIGGER IF EXISTS {trigger}",
                    include_str!("statements/script/trigger.sqlite.sql"),
                    "RELEASE polylock",
                ],
                ScriptPart::DropTrigger => &["DROP TRIGGER IF EXISTS {trigger}"],
            }
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
    use sqlx::{AssertSqlSafe, Postgres, SqlSafeStr, SqlStr, error::DatabaseError};

    use super::{
        Supported,
        driver::{ScriptPart, SealedDriver},
        fill,
    };

    impl Supported for Postgres {}

    impl SealedDriver for Postgres {
        const BACKEND: &str = "postgres";
        const QUOTE: char = '"';
        const INTEGER: &str = "bigint";
        const LOCKING: &str = " FOR UPDATE";
        const SCHEMA: &str = include_str!("statements/schema.postgres.sql");
        const RAISE: &str = include_str!("statements/raise.postgres.sql");

        with_driver!(returning);

        fn script(part: ScriptPart) -> &'static [&'static str] {
            match part {
                ScriptPart::Function => &[
                    Self::SCHEMA,
                    include_str!("statements/script/fence.postgres.sql"),
                    include_str!("statements/script/refuse.postgres.sql"),
                ],
                ScriptPart::DropFunction => &[
                    "DROP FUNCTION IF EXISTS {fence}(pg_catalog.text, bigint)",
                    "DROP FUNCTION IF EXISTS {refuse}()",
                    "DROP TABLE IF EXISTS {fences}",
                ],
                ScriptPart::Trigger => &[
                    include_str!("statements/script/refuse.postgres.sql"),
                    include_str!("statements/script/trigger.postgres.sql"),
                ],
                ScriptPart::DropTrigger => &["DROP TRIGGER IF EXISTS \"{plain_fence}\" ON {table}"],
            }
        }

        fn is_missing_table(error: &dyn DatabaseError) -> bool {
            error.code().as_deref() == Some("42P01")
        }

        fn is_race_of_schemas(error: &dyn DatabaseError) -> bool {
            // IF NOT EXISTS checks before it locks: the rows of the other session in the catalogue, or its table, can appear in
            // between.
            matches!(error.code().as_deref(), Some("23505" | "42P07" | "42710"))
        }
    }
}

#[cfg(feature = "mysql")]
mod mysql {
    use sqlx::{AssertSqlSafe, MySql, MySqlConnection, SqlSafeStr, SqlStr, error::DatabaseError};

    use super::{
        Supported,
        driver::{ScriptPart, SealedDriver},
        fill,
    };

    /// A routine keeps the `sql_mode` under which it was created: values that are too long, or not numbers, are errors. The session
    /// keeps its own.
    const SAVE_MODE: &str = "SET @polylock_sql_mode = @@SESSION.sql_mode";
    const SET_MODE: &str = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'";
    const RESTORE_MODE: &str = "SET SESSION sql_mode = @polylock_sql_mode";

    impl Supported for MySql {}

    impl SealedDriver for MySql {
        const BACKEND: &str = "mysql";
        const QUOTE: char = '`';
        const INTEGER: &str = "SIGNED";
        const LOCKING: &str = " FOR UPDATE";
        const SCHEMA: &str = include_str!("statements/schema.mysql.sql");
        const RAISE: &str = include_str!("statements/raise.mysql.sql");

        with_driver!();

        fn script(part: ScriptPart) -> &'static [&'static str] {
            match part {
                ScriptPart::Function => &[
                    SAVE_MODE,
                    SET_MODE,
                    Self::SCHEMA,
                    include_str!("statements/script/fence.mysql.sql"),
                    RESTORE_MODE,
                ],
                ScriptPart::DropFunction => {
                    &["DROP PROCEDURE IF EXISTS {fence}", "DROP TABLE IF EXISTS {fences}"]
                }
                ScriptPart::Trigger => {
                    &[SAVE_MODE, SET_MODE, include_str!("statements/script/trigger.mysql.sql"), RESTORE_MODE]
                }
                ScriptPart::DropTrigger => &["DROP TRIGGER IF EXISTS {trigger}"],
            }
        }

        /// The bodies of routines and triggers contain semicolons.
        fn client_script(statements: &[String]) -> String {
            let statements = statements.iter().map(|statement| format!("{statement}\n//\n"));
            format!("DELIMITER //\n{}DELIMITER ;\n", statements.collect::<String>())
        }

        async fn raise(
            connection: &mut MySqlConnection,
            table: &str,
            name: &str,
            token: i64,
        ) -> sqlx::Result<Vec<i64>> {
            // Bytes, not text: the name does not depend on the character set of the connection.
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
