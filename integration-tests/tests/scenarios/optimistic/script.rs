//! The fence that `polylock schema --fence` prints, for programs in any language: the function, and the trigger of a table.

use polylock_sql::{
    mysql::Config as MySqlConfig,
    optimistic::{Error, FenceScript},
    postgres::Config as PostgresConfig,
    sqlite::Config as SqliteConfig,
};
use sqlx::{MySql, Postgres, Sqlite};

use super::{
    database::{Db, TestDatabase},
    on_every_database, token,
};

on_every_database!(
    the_function_accepts_no_smaller_token,
    the_function_refuses_values_that_are_no_token,
    the_function_compares_names_byte_by_byte,
    the_function_and_the_library_share_their_fences,
    the_function_waits_for_a_transaction_stalled_after_its_call,
    the_function_that_waited_for_a_greater_token_is_refused,
    the_function_in_an_old_snapshot_accepts_no_stale_token,
    the_trigger_accepts_no_smaller_token,
    the_trigger_that_waited_for_a_greater_token_is_refused,
    the_scripts_may_be_run_again_and_removed,
);

/// The scripts of a database, and the call of the function in its SQL.
pub(super) trait Scripted: Db {
    /// The code of the error for a stale token.
    const STALE: &str;
    /// A quotation mark in a text, and a backslash.
    const ESCAPED: [&str; 2];

    fn fence_script(database: &TestDatabase<Self>) -> FenceScript<Self>;

    fn call(resource: &str, token: &str) -> String;
}

impl Scripted for Sqlite {
    const STALE: &str = "1811";
    const ESCAPED: [&str; 2] = ["''", "\\"];

    fn fence_script(database: &TestDatabase<Self>) -> FenceScript<Self> {
        SqliteConfig::new("app.db").namespace(database.name).fence_script().unwrap()
    }

    fn call(resource: &str, token: &str) -> String {
        format!("INSERT INTO {{p}}_fence (resource, token) VALUES ({resource}, {token})")
    }
}

impl Scripted for Postgres {
    const STALE: &str = "23PLF";
    const ESCAPED: [&str; 2] = ["''", "\\"];

    fn fence_script(database: &TestDatabase<Self>) -> FenceScript<Self> {
        let config = PostgresConfig::from_options(database.options.clone()).unwrap();
        config.namespace(database.name).fence_script().unwrap()
    }

    fn call(resource: &str, token: &str) -> String {
        format!("SELECT {{p}}_fence({resource}, {token})")
    }
}

impl Scripted for MySql {
    const STALE: &str = "23PLF";
    const ESCAPED: [&str; 2] = ["''", "\\\\"];

    fn fence_script(database: &TestDatabase<Self>) -> FenceScript<Self> {
        let config = MySqlConfig::from_options(database.options.clone()).unwrap();
        config.namespace(database.name).fence_script().unwrap()
    }

    fn call(resource: &str, token: &str) -> String {
        format!("CALL {{p}}_fence({resource}, {token})")
    }
}

/// The code of SQLite is that of all triggers.
fn is_stale<D: Scripted>(result: &sqlx::Result<()>) -> bool {
    let error = result.as_ref().err().and_then(sqlx::Error::as_database_error);
    error.is_some_and(|error| error.code().as_deref() == Some(D::STALE) && error.message().contains("stale"))
}

/// Returns true if the error requires a new transaction.
fn is_retryable(result: sqlx::Result<()>) -> bool {
    result.is_err_and(|error| Error::Database(error).is_retryable())
}

impl<D: Scripted> TestDatabase<D> {
    /// With the function, and a trigger on the table of orders.
    async fn with_scripts(self) -> Self {
        for script in [D::fence_script(&self), self.trigger()] {
            self.run_all(&script.statements()).await;
        }
        self
    }

    fn trigger(&self) -> FenceScript<D> {
        D::fence_script(self).for_table(&format!("{}_orders", self.name), Some("fence")).unwrap()
    }

    /// In one session.
    async fn run_all(&self, statements: &[String]) {
        let mut connection = self.pool.acquire().await.unwrap();
        for statement in statements {
            let result = D::run(&mut connection, statement).await;
            result.unwrap_or_else(|error| panic!("{statement}: {error}"));
        }
    }

    /// Calls the function.
    async fn call(&self, connection: &mut D::Connection, resource: &str, token: &str) -> sqlx::Result<()> {
        D::run(connection, &self.fill_names(&D::call(resource, token))).await
    }

    /// Calls it in a transaction of its own.
    async fn accepts_call(&self, resource: &str, token: &str) -> sqlx::Result<()> {
        let mut transaction = self.pool.begin().await?;
        self.call(&mut transaction, resource, token).await?;
        transaction.commit().await
    }

    /// Calls it and writes the token into the row, in a task of its own.
    fn calling_writer(&self, number: i64) -> tokio::task::JoinHandle<sqlx::Result<()>> {
        let database = self.clone();
        tokio::spawn(async move {
            let mut transaction = database.pool.begin().await?;
            database.call(&mut transaction, "'orders/1'", &number.to_string()).await?;
            database.write(&mut transaction, number).await?;
            transaction.commit().await
        })
    }

    /// Writes the row with the token in its column.
    async fn update_with(&self, connection: &mut D::Connection, token: &str) -> sqlx::Result<()> {
        let sql = format!("UPDATE {{p}}_orders SET fence = {token}, note = {token} WHERE id = 1");
        D::run(connection, &self.fill_names(&sql)).await
    }

    async fn accepts_update(&self, token: &str) -> sqlx::Result<()> {
        self.update_with(&mut *self.pool.acquire().await?, token).await
    }
}

async fn the_function_accepts_no_smaller_token<D: Scripted>(database: TestDatabase<D>) {
    let database = database.with_scripts().await;
    for (number, passes) in
        [(0, true), (7, true), (7, true), (6, false), (10, true), (9, false), (i64::MAX, true), (0, false)]
    {
        let result = database.accepts_call("'orders/1'", &number.to_string()).await;
        assert_eq!(is_stale::<D>(&result), !passes, "{number}: {result:?}");
        assert!(!is_retryable(result));
    }
    // Outside a transaction, too, and for another resource.
    let mut connection = database.pool.acquire().await.unwrap();
    assert!(is_stale::<D>(&database.call(&mut connection, "'orders/1'", "8").await));
    database.call(&mut connection, "'orders/2'", "8").await.unwrap();
    drop(connection);
    // A token of a transaction that was rolled back was not recorded.
    let mut transaction = database.pool.begin().await.unwrap();
    database.call(&mut transaction, "'orders/2'", "9").await.unwrap();
    transaction.rollback().await.unwrap();
    database.accepts_call("'orders/2'", "8").await.unwrap();
}

async fn the_function_refuses_values_that_are_no_token<D: Scripted>(database: TestDatabase<D>) {
    let database = database.with_scripts().await;
    let refused = [
        ("'a'", "-1"),
        ("'a'", "NULL"),
        ("NULL", "1"),
        ("''", "1"),
        ("'a'", "'x'"),
        ("'a'", "'9x'"),
        ("'a'", "''"),
    ];
    for (resource, number) in refused {
        let result = database.accepts_call(resource, number).await;
        assert!(result.is_err() && !is_stale::<D>(&result), "{resource} {number}: {result:?}");
        assert!(!is_retryable(result));
    }
    let mut connection = database.pool.acquire().await.unwrap();
    assert_eq!(database.select(&mut connection, "SELECT count(*) FROM {p}_fences").await.unwrap(), [0]);
}

async fn the_function_compares_names_byte_by_byte<D: Scripted>(database: TestDatabase<D>) {
    let database = database.with_scripts().await;
    let long = "é".repeat(127);
    let [quote, backslash] = D::ESCAPED;
    let escaped = format!("{quote}; --{backslash}b");
    let names = ["job", "Job", "job ", "jöb", "jo\u{308}b", " job", &escaped, "%", &long, "日本", "a\n", "a"]
        .map(|name| format!("'{name}'"));
    for (number, name) in (0..).zip(&names) {
        let result = database.accepts_call(name, &i64::to_string(&number)).await;
        result.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    for (number, name) in (0..).zip(&names).skip(1) {
        let result = database.accepts_call(name, &i64::to_string(&(number - 1))).await;
        assert!(is_stale::<D>(&result), "{name}: {result:?}");
    }
}

async fn the_function_and_the_library_share_their_fences<D: Scripted>(database: TestDatabase<D>) {
    let database = database.with_scripts().await;
    for name in ["orders/1", "jöb"] {
        let quoted = format!("'{name}'");
        database.accepts_call(&quoted, "7").await.unwrap();
        let refused = database.fences.begin(&database.pool, name, token(6)).await.unwrap_err();
        assert!(refused.is_stale(), "{refused}");
        database.fences.begin(&database.pool, name, token(9)).await.unwrap().commit().await.unwrap();
        assert!(is_stale::<D>(&database.accepts_call(&quoted, "8").await));
        database.accepts_call(&quoted, "9").await.unwrap();
    }
}

async fn the_function_waits_for_a_transaction_stalled_after_its_call<D: Scripted>(database: TestDatabase<D>) {
    let database = database.with_scripts().await;
    for (number, commits) in [(1, false), (3, true), (5, false), (7, true)] {
        let mut stalled = database.pool.begin().await.unwrap();
        database.call(&mut stalled, "'orders/1'", &number.to_string()).await.unwrap();
        let next = database.calling_writer(number + 1);
        database.wait_for_waiter().await;
        assert!(!next.is_finished());
        database.write(&mut stalled, number).await.unwrap();
        if commits {
            stalled.commit().await.unwrap();
        } else {
            drop(stalled);
        }
        next.await.unwrap().unwrap();
        assert!(is_stale::<D>(&database.accepts_call("'orders/1'", &number.to_string()).await));
    }
    assert_eq!(database.written_tokens().await, [2, 3, 4, 6, 7, 8]);
}

async fn the_function_that_waited_for_a_greater_token_is_refused<D: Scripted>(database: TestDatabase<D>) {
    let database = database.with_scripts().await;
    for (number, commits) in [(2_i64, true), (4, true), (6, false)] {
        let mut greater = database.pool.begin().await.unwrap();
        database.call(&mut greater, "'orders/1'", &number.to_string()).await.unwrap();
        let smaller = database.calling_writer(number - 1);
        database.wait_for_waiter().await;
        database.write(&mut greater, number).await.unwrap();
        if commits {
            greater.commit().await.unwrap();
        } else {
            drop(greater);
        }
        let result = smaller.await.unwrap();
        assert_eq!(is_stale::<D>(&result), commits, "{result:?}");
    }
    assert_eq!(database.written_tokens().await, [2, 4, 5]);
}

async fn the_function_in_an_old_snapshot_accepts_no_stale_token<D: Scripted>(database: TestDatabase<D>) {
    let database = database.with_scripts().await;
    for (step, level) in (0_i64..).step_by(10).zip(D::SNAPSHOTS) {
        let old = database.pool_at(level).await;
        database.accepts_call("'orders/1'", &step.to_string()).await.unwrap();
        // A snapshot in which the fence is low, then a later holder, then the call.
        let mut stale = old.begin().await.unwrap();
        database.select(&mut stale, "SELECT token FROM {p}_fences").await.unwrap();
        database.calling_writer(step + 2).await.unwrap().unwrap();
        let result = database.call(&mut stale, "'orders/1'", &(step + 1).to_string()).await;
        assert!(is_stale::<D>(&result) || is_retryable(result), "{level}");
    }
}

async fn the_trigger_accepts_no_smaller_token<D: Scripted>(database: TestDatabase<D>) {
    let database = database.with_scripts().await;
    // Rows without a token accept any.
    for (token, passes) in [
        ("NULL", true),
        ("7", true),
        ("7", true),
        ("6", false),
        ("NULL", false),
        ("10", true),
        ("9", false),
        ("0", false),
    ] {
        let result = database.accepts_update(token).await;
        assert_eq!(is_stale::<D>(&result), !passes, "{token}: {result:?}");
        assert_eq!(result.is_ok(), passes, "{token}: {result:?}");
    }
    // An update without a token is not compared, and the token stays.
    let mut connection = database.pool.acquire().await.unwrap();
    database.write(&mut connection, 3).await.unwrap();
    assert!(is_stale::<D>(&database.update_with(&mut connection, "9").await));
    assert_eq!(
        database
            .select(&mut connection, "SELECT COUNT(*) FROM {p}_orders WHERE id = 1 AND fence = 10")
            .await
            .unwrap(),
        [1]
    );
    drop(connection);
    // The library's update of a row refuses the same tokens.
    assert!(database.fenced(9).execute(&database.pool).await.unwrap_err().is_stale());
    database.fenced(11).execute(&database.pool).await.unwrap();
    assert!(is_stale::<D>(&database.accepts_update("10").await));
}

async fn the_trigger_that_waited_for_a_greater_token_is_refused<D: Scripted>(database: TestDatabase<D>) {
    let database = database.with_scripts().await;
    for (number, commits) in [(2_i64, true), (4, true), (6, false)] {
        let mut greater = database.pool.begin().await.unwrap();
        database.update_with(&mut greater, &number.to_string()).await.unwrap();
        let smaller = tokio::spawn({
            let database = database.clone();
            async move { database.accepts_update(&(number - 1).to_string()).await }
        });
        database.wait_for_waiter().await;
        if commits {
            greater.commit().await.unwrap();
        } else {
            drop(greater);
        }
        let result = smaller.await.unwrap();
        assert_eq!(is_stale::<D>(&result), commits, "{result:?}");
    }
    assert_eq!(database.written_tokens().await, [2, 4, 5]);
}

async fn the_scripts_may_be_run_again_and_removed<D: Scripted>(database: TestDatabase<D>) {
    let database = database.with_scripts().await;
    database.accepts_call("'orders/1'", "7").await.unwrap();
    database.accepts_update("7").await.unwrap();
    database.run_all(&D::fence_script(&database).statements()).await;
    let mut connection = database.pool.acquire().await.unwrap();
    for statement in database.trigger().statements() {
        let result = D::run(&mut connection, &statement).await;
        // MySQL does not replace a trigger.
        assert!(
            result.as_ref().err().is_none_or(|error| error.to_string().contains("already exists")),
            "{result:?}"
        );
    }
    drop(connection);
    assert!(is_stale::<D>(&database.accepts_call("'orders/1'", "6").await));
    assert!(is_stale::<D>(&database.accepts_update("6").await));
    for _ in 0..2 {
        database.run_all(&database.trigger().drop_statements()).await;
        database.run_all(&D::fence_script(&database).drop_statements()).await;
    }
    database.accepts_update("6").await.unwrap();
    let result = database.accepts_call("'orders/1'", "8").await;
    assert!(result.is_err() && !is_stale::<D>(&result), "{result:?}");
}

/// SQLite keeps a text in a column of integers, and sorts it after all integers.
#[tokio::test]
async fn the_trigger_of_sqlite_refuses_a_token_that_is_no_integer() {
    let database = TestDatabase::<Sqlite>::create().await.unwrap().with_scripts().await;
    for token in ["'x'", "x'39'", "7.5"] {
        assert!(is_stale::<Sqlite>(&database.accepts_update(token).await), "{token}");
    }
    database.accepts_update("'7'").await.unwrap();
    assert!(is_stale::<Sqlite>(&database.accepts_update("6").await));
}

/// The clauses that make other errors warnings.
#[tokio::test]
async fn no_clause_about_conflicts_makes_a_stale_token_pass() {
    let database = TestDatabase::<Sqlite>::create().await.unwrap().with_scripts().await;
    database.accepts_call("'orders/1'", "7").await.unwrap();
    database.accepts_update("7").await.unwrap();
    let mut connection = database.pool.acquire().await.unwrap();
    for clause in ["IGNORE", "REPLACE", "FAIL"] {
        let call = format!("INSERT OR {clause} INTO {{p}}_fence VALUES ('orders/1', 6)");
        let result = Sqlite::run(&mut connection, &database.fill_names(&call)).await;
        assert!(is_stale::<Sqlite>(&result), "{clause}: {result:?}");
        let update = format!("UPDATE OR {clause} {{p}}_orders SET fence = 6 WHERE id = 1");
        let result = Sqlite::run(&mut connection, &database.fill_names(&update)).await;
        assert!(is_stale::<Sqlite>(&result), "{clause}: {result:?}");
    }
    let Some(database) = TestDatabase::<MySql>::create().await else { return };
    let database = database.with_scripts().await;
    database.accepts_update("7").await.unwrap();
    let mut connection = database.pool.acquire().await.unwrap();
    let update = database.fill_names("UPDATE IGNORE {p}_orders SET fence = 6 WHERE id = 1");
    // The row is not written; MariaDB reports the refusal as an error.
    MySql::run(&mut connection, &update).await.ok();
    assert_eq!(
        database
            .select(&mut connection, "SELECT COUNT(*) FROM {p}_orders WHERE id = 1 AND fence = 7")
            .await
            .unwrap(),
        [1]
    );
}
