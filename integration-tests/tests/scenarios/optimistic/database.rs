//! Separate tables for each test: one to protect, and one that records the order of the writes.

use std::sync::Arc;

use polylock_integration_tests::{
    clock,
    servers::{self, Server},
};
use polylock_sql::optimistic::{FencedUpdate, Fences, Supported, VersionedUpdate};
use polylock_testkit::Missing;
use sqlx::{
    AssertSqlSafe, Connection, Executor, MySql, Pool, Postgres, Sqlite, Transaction,
    mysql::{MySqlConnectOptions, MySqlPoolOptions},
    postgres::{PgConnectOptions, PgPoolOptions},
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};
use tempfile::TempDir;

use super::token;

/// Connections of each pool.
const CONNECTIONS: u32 = 8;

type Options<D> = <<D as sqlx::Database>::Connection as Connection>::Options;

/// Tables that nothing else uses.
pub(crate) struct TestDatabase<D: Db> {
    pub(crate) options: Options<D>,
    pub(crate) pool: Pool<D>,
    pub(crate) fences: Fences,
    /// The prefix of the table names. Leaked: a test has one.
    pub(crate) name: &'static str,
    orders: &'static str,
    /// Kept for as long as the file in it is used.
    _directory: Option<Arc<TempDir>>,
}

/// The operations of the tests in their own SQL, for any database.
pub(crate) trait Db: Supported {
    /// The isolation levels it has, the default first.
    const ISOLATION_LEVELS: &[&str];

    /// The levels at which a row may be written after another transaction has read it, so that the reader has an old snapshot.
    const SNAPSHOTS: &[&str] = Self::ISOLATION_LEVELS;

    /// `orders`, with two unwritten rows, and `written`, in which a trigger records each new `note` of a row while the row is locked,
    /// so `written.id` is the order of the writes.
    const TABLES: &str;

    /// The server of all tests; `None` if it needs none.
    fn server() -> Option<Result<&'static Server, Missing>>;

    /// Returns the options for the database with the tables.
    fn options(server: Option<&Server>, directory: Option<&TempDir>) -> Options<Self>;

    /// Opens a pool of connections with this isolation level.
    async fn pool(options: Options<Self>, level: &'static str) -> Pool<Self>;

    /// Runs statements.
    fn run(connection: &mut Self::Connection, sql: &str) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// The first column.
    fn select(
        connection: &mut Self::Connection,
        sql: &str,
    ) -> impl Future<Output = sqlx::Result<Vec<i64>>> + Send;

    /// An update of the token's row `id`, which sets the note to the token.
    fn fenced<'q>(table: &'q str, number: i64, id: Option<i64>) -> FencedUpdate<'q, Self>;

    /// The same without anything to set.
    fn guard<'q>(table: &'q str, number: i64) -> FencedUpdate<'q, Self>;

    /// An update of the version's row `id`.
    fn versioned<'q>(table: &'q str, version: i64, id: i64, note: i64) -> VersionedUpdate<'q, Self>;

    /// Returns the number of connections that wait in a statement on tables of that name; `None` if the database can't report it.
    async fn waiting(pool: &Pool<Self>, name: &str) -> Option<i64>;

    /// Ends a transaction as an operator does: the connection that carries it is gone.
    async fn kill(pool: &Pool<Self>, transaction: Transaction<'_, Self>);
}

impl<D: Db> Clone for TestDatabase<D> {
    fn clone(&self) -> Self {
        let Self { options, pool, fences, name, orders, _directory } = self;
        let (options, pool, fences) = (options.clone(), pool.clone(), fences.clone());
        Self { options, pool, fences, name, orders, _directory: _directory.clone() }
    }
}

impl<D: Db> TestDatabase<D> {
    /// A fresh one; `None` if there is no server, and none is required.
    pub(crate) async fn create() -> Option<Self> {
        // Starting one blocks.
        let server = tokio::task::spawn_blocking(D::server).await.unwrap();
        let server = match server.transpose() {
            Ok(server) => server,
            Err(Missing(why)) => {
                let required = std::env::var("POLYLOCK_TEST_REQUIRE").is_ok_and(|required| required == "all");
                assert!(!required, "required and missing: {why}");
                eprintln!("missing: {why}");
                return None;
            }
        };
        let directory = server.is_none().then(|| TempDir::new().unwrap());
        let options = D::options(server, directory.as_ref());
        let name = server.map_or_else(|| "t".to_owned(), Server::name).leak();
        let pool = D::pool(options.clone(), D::ISOLATION_LEVELS[0]).await;
        let fences = Fences::new(format!("{name}_fences")).unwrap();
        fences.create(&pool).await.unwrap();
        let orders = format!("{name}_orders").leak();
        let directory = directory.map(Arc::new);
        let database = Self { options, pool, fences, name, orders, _directory: directory };
        database.run(D::TABLES).await;
        Some(database)
    }

    /// Opens a pool of connections with this isolation level.
    pub(crate) async fn pool_at(&self, level: &'static str) -> Pool<D> {
        D::pool(self.options.clone(), level).await
    }

    /// `sql` with the names that the tables have here.
    pub(crate) fn fill_names(&self, sql: &str) -> String {
        sql.replace("{p}", self.name)
    }

    pub(crate) async fn run(&self, sql: &str) {
        let mut connection = self.pool.acquire().await.unwrap();
        D::run(&mut connection, &self.fill_names(sql)).await.unwrap();
    }

    /// The numbers in the first column.
    pub(crate) async fn select(&self, connection: &mut D::Connection, sql: &str) -> sqlx::Result<Vec<i64>> {
        D::select(connection, &self.fill_names(sql)).await
    }

    /// Sets the note to the token, if the token may.
    pub(crate) fn fenced(&self, number: i64) -> FencedUpdate<'static, D> {
        self.fenced_row(number, 1)
    }

    /// The same for one of several rows.
    pub(crate) fn fenced_row(&self, number: i64, id: i64) -> FencedUpdate<'static, D> {
        D::fenced(self.orders, number, Some(id))
    }

    /// The same for all rows of the shop, which is a mistake.
    pub(crate) fn fenced_shop(&self, number: i64) -> FencedUpdate<'static, D> {
        D::fenced(self.orders, number, None)
    }

    /// Guards the row and sets nothing.
    pub(crate) fn guard(&self, number: i64) -> FencedUpdate<'static, D> {
        D::guard(self.orders, number)
    }

    /// Sets the note, if the row is at that version.
    pub(crate) fn versioned(&self, version: i64, note: i64) -> VersionedUpdate<'static, D> {
        D::versioned(self.orders, version, 1, note)
    }

    /// The same for a row that is not there.
    pub(crate) fn versioned_nowhere(&self, version: i64) -> VersionedUpdate<'static, D> {
        D::versioned(self.orders, version, 2, 0)
    }

    /// Any update of its table.
    pub(crate) fn update(&self, number: i64) -> FencedUpdate<'static, D> {
        FencedUpdate::new(self.orders, token(number))
    }

    /// Any update of its table.
    pub(crate) fn update_at(&self, version: i64) -> VersionedUpdate<'static, D> {
        VersionedUpdate::new(self.orders, version)
    }

    /// Writes `note` into the row, without any check.
    pub(crate) async fn write(&self, connection: &mut D::Connection, note: i64) -> sqlx::Result<()> {
        let sql = self.fill_names(&format!("UPDATE {{p}}_orders SET note = {note} WHERE id = 1"));
        D::run(connection, &sql).await
    }

    /// Returns the note of the row.
    pub(crate) async fn note(&self, connection: &mut D::Connection) -> i64 {
        self.select(connection, "SELECT note FROM {p}_orders WHERE id = 1").await.unwrap()[0]
    }

    /// Returns the notes that were written, in order.
    pub(crate) async fn written_tokens(&self) -> Vec<i64> {
        let mut connection = self.pool.acquire().await.unwrap();
        self.select(&mut connection, "SELECT note FROM {p}_landed ORDER BY id").await.unwrap()
    }

    /// Waits until another connection waits in a statement. Returns immediately if the database can't report it.
    pub(crate) async fn wait_for_waiter(&self) {
        clock::until("somebody waits for a lock", async || {
            D::waiting(&self.pool, self.name).await.is_none_or(|count| count > 0)
        })
        .await;
    }
}

macro_rules! by_driver {
    () => {
        async fn run(connection: &mut Self::Connection, sql: &str) -> sqlx::Result<()> {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.map(drop)
        }

        async fn select(connection: &mut Self::Connection, sql: &str) -> sqlx::Result<Vec<i64>> {
            sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(connection).await
        }

        fn fenced<'q>(table: &'q str, number: i64, id: Option<i64>) -> FencedUpdate<'q, Self> {
            let shop = FencedUpdate::new(table, token(number)).set("note", number).key("shop", "here");
            if let Some(id) = id { shop.key("id", id) } else { shop }
        }

        fn guard<'q>(table: &'q str, number: i64) -> FencedUpdate<'q, Self> {
            FencedUpdate::new(table, token(number)).key("id", 1_i64)
        }

        fn versioned<'q>(table: &'q str, version: i64, id: i64, note: i64) -> VersionedUpdate<'q, Self> {
            VersionedUpdate::new(table, version).set("note", note).key("shop", "here").key("id", id)
        }
    };
}

impl Db for Sqlite {
    const ISOLATION_LEVELS: &[&str] = &["SERIALIZABLE"];
    const TABLES: &str = "
        CREATE TABLE {p}_orders (
            shop TEXT, id INTEGER, note INTEGER, fence INTEGER, version INTEGER, PRIMARY KEY (shop, id)
        );
        INSERT INTO {p}_orders (shop, id, note) VALUES ('here', 1, 0), ('there', 1000, 0);
        CREATE TABLE {p}_landed (id INTEGER PRIMARY KEY AUTOINCREMENT, note INTEGER);
        CREATE TRIGGER {p}_lands AFTER UPDATE ON {p}_orders
            BEGIN INSERT INTO {p}_landed (note) VALUES (NEW.note); END";

    by_driver!();

    fn server() -> Option<Result<&'static Server, Missing>> {
        None
    }

    fn options(_: Option<&Server>, directory: Option<&TempDir>) -> SqliteConnectOptions {
        SqliteConnectOptions::new()
            .filename(directory.unwrap().path().join("app.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
    }

    async fn pool(options: SqliteConnectOptions, _: &'static str) -> Pool<Self> {
        SqlitePoolOptions::new().max_connections(CONNECTIONS).connect_with(options).await.unwrap()
    }

    async fn waiting(_: &Pool<Self>, _: &str) -> Option<i64> {
        None
    }

    async fn kill(_: &Pool<Self>, transaction: Transaction<'_, Self>) {
        // There is no server that could; the connection rolls back.
        drop(transaction);
    }
}

impl Db for Postgres {
    const ISOLATION_LEVELS: &[&str] = &["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
    const TABLES: &str = "
        CREATE TABLE {p}_orders (
            shop text, id bigint, note bigint, fence bigint, version integer, PRIMARY KEY (shop, id)
        );
        INSERT INTO {p}_orders (shop, id, note) VALUES ('here', 1, 0), ('there', 1000, 0);
        CREATE TABLE {p}_landed (id bigserial PRIMARY KEY, note bigint);
        CREATE FUNCTION {p}_lands() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN INSERT INTO {p}_landed (note) VALUES (NEW.note); RETURN NULL; END $$;
        CREATE TRIGGER lands AFTER UPDATE ON {p}_orders FOR EACH ROW EXECUTE FUNCTION {p}_lands()";

    by_driver!();

    fn server() -> Option<Result<&'static Server, Missing>> {
        Some(servers::postgres())
    }

    fn options(server: Option<&Server>, _: Option<&TempDir>) -> PgConnectOptions {
        server.unwrap().url().parse().unwrap()
    }

    async fn pool(options: PgConnectOptions, level: &'static str) -> Pool<Self> {
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).after_connect(move |connection, _| {
            let set = format!("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}");
            Box::pin(async move { connection.execute(AssertSqlSafe(set)).await.map(drop) })
        });
        pool.connect_with(options).await.unwrap()
    }

    async fn waiting(pool: &Pool<Self>, name: &str) -> Option<i64> {
        let sql = "SELECT count(*) FROM pg_stat_activity
                   WHERE wait_event_type = 'Lock' AND strpos(query, $1) > 0";
        Some(sqlx::query_scalar(sql).bind(name).fetch_one(pool).await.unwrap())
    }

    async fn kill(pool: &Pool<Self>, mut transaction: Transaction<'_, Self>) {
        let sql = "SELECT CAST(pg_backend_pid() AS bigint)";
        let process = Self::select(&mut transaction, sql).await.unwrap()[0];
        let kill = format!("SELECT pg_terminate_backend({process})");
        pool.execute(AssertSqlSafe(kill)).await.unwrap();
        assert!(transaction.commit().await.is_err());
    }
}

/// The default of MariaDB from 11.6 on; MySQL reads it as a comment.
const STRICT: &str = "REPEATABLE READ; SET @x = 1 /*M!101108 , SESSION innodb_snapshot_isolation = ON */";

impl Db for MySql {
    const ISOLATION_LEVELS: &[&str] =
        &["REPEATABLE READ", "READ COMMITTED", "READ UNCOMMITTED", "SERIALIZABLE"];
    // At SERIALIZABLE a read locks its rows against writes.
    const SNAPSHOTS: &[&str] = &["REPEATABLE READ", "READ COMMITTED", "READ UNCOMMITTED", STRICT];
    const TABLES: &str = "
        CREATE TABLE {p}_orders (
            shop VARCHAR(20), id BIGINT, note BIGINT, fence BIGINT UNSIGNED, version INT, PRIMARY KEY (shop, id)
        ) ENGINE = InnoDB;
        INSERT INTO {p}_orders (shop, id, note) VALUES ('here', 1, 0), ('there', 1000, 0);
        CREATE TABLE {p}_landed (id BIGINT PRIMARY KEY AUTO_INCREMENT, note BIGINT) ENGINE = InnoDB;
        CREATE TRIGGER {p}_lands AFTER UPDATE ON {p}_orders
            FOR EACH ROW INSERT INTO {p}_landed (note) VALUES (NEW.note)";

    by_driver!();

    fn server() -> Option<Result<&'static Server, Missing>> {
        Some(servers::mariadb())
    }

    fn options(server: Option<&Server>, _: Option<&TempDir>) -> MySqlConnectOptions {
        server.unwrap().url().parse().unwrap()
    }

    async fn pool(options: MySqlConnectOptions, level: &'static str) -> Pool<Self> {
        let pool =
            MySqlPoolOptions::new().max_connections(CONNECTIONS).after_connect(move |connection, _| {
                let set = format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}");
                Box::pin(async move { connection.execute(AssertSqlSafe(set)).await.map(drop) })
            });
        pool.connect_with(options).await.unwrap()
    }

    async fn waiting(pool: &Pool<Self>, name: &str) -> Option<i64> {
        // The sessions with a running statement. (InnoDB updates its own view of waiting transactions only if it was not read for
        // 100 ms, so it can't be polled.)
        let sql = "SELECT count(*) FROM information_schema.PROCESSLIST
                   WHERE ID <> connection_id() AND COMMAND IN ('Query', 'Execute') AND instr(INFO, ?) > 0";
        Some(sqlx::query_scalar(sql).bind(name).fetch_one(pool).await.unwrap())
    }

    async fn kill(pool: &Pool<Self>, mut transaction: Transaction<'_, Self>) {
        let sql = "SELECT CAST(connection_id() AS SIGNED)";
        let process = Self::select(&mut transaction, sql).await.unwrap()[0];
        pool.execute(AssertSqlSafe(format!("KILL {process}"))).await.unwrap();
        // The server replies before the session has ended.
        let sql = "SELECT count(*) FROM information_schema.PROCESSLIST WHERE ID = ?";
        clock::until("the session has ended", async || {
            let sessions: i64 = sqlx::query_scalar(sql).bind(process).fetch_one(pool).await.unwrap();
            sessions == 0
        })
        .await;
        assert!(transaction.commit().await.is_err());
    }
}
