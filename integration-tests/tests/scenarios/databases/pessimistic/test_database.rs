//! A database with separate tables, inspected without the store.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{
    clock,
    process::Process,
    servers::{self, Server},
};
use sqlx::{
    AssertSqlSafe, ColumnIndex, Connection, Database, Decode, Executor, MySqlConnection, PgConnection, Row,
    Type,
};

/// The database and the tables of a test.
pub(crate) struct TestDatabase {
    pub(crate) url: String,
    server: String,
    pub(crate) table: String,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Postgres,
    MariaDb,
}

impl TestDatabase {
    pub(crate) async fn postgres() -> Self {
        Self::on_postgres(servers::postgres().unwrap())
    }

    pub(crate) fn on_postgres(server: &Server) -> Self {
        Self::new(Kind::Postgres, server.url().to_owned(), server.name())
    }

    /// In a separate database, because MariaDB does not report which transaction has locked which row.
    pub(crate) async fn mariadb() -> Self {
        Self::on_mariadb(servers::mariadb().unwrap()).await
    }

    pub(crate) async fn on_mariadb(server: &Server) -> Self {
        let (name, (base, _)) = (server.name(), server.url().rsplit_once('/').unwrap());
        let mut connection = MySqlConnection::connect(server.url()).await.unwrap();
        let create = format!("CREATE DATABASE IF NOT EXISTS {name}");
        connection.execute(sqlx::raw_sql(AssertSqlSafe(create))).await.unwrap();
        Self::new(Kind::MariaDb, format!("{base}/{name}"), name)
    }

    fn new(kind: Kind, server: String, table: String) -> Self {
        let separator = if server.contains('?') { '&' } else { '?' };
        let mut url = format!(
            "{server}{separator}polylock.strategy=pessimistic&polylock.namespace={table}&polylock.wait=60s"
        );
        if matches!(kind, Kind::Postgres) {
            url = format!("{url}&application_name={table}");
        }
        Self { url, server, table, kind }
    }

    /// Returns the URL with more keys, which begin with `&`.
    pub(crate) fn url_with(&self, more: &str) -> String {
        format!("{}{more}", self.url)
    }

    pub(crate) async fn open(&self, more: &str) -> Locks {
        Locks::connect(&self.url_with(more)).await.unwrap()
    }

    pub(crate) fn worker(&self, scenario: &str, more: &str, name: &str, arguments: &[&str]) -> Process {
        let url = self.url_with(more);
        Process::start(env!("CARGO_BIN_EXE_worker"), [scenario, &url, name].iter().chain(arguments))
    }

    /// Returns the number of names with rows.
    pub(crate) async fn count_names(&self) -> i64 {
        self.number(&format!("SELECT count(*) FROM {}_rows WHERE part = 1", self.table)).await
    }

    /// Locks the rows of all names against deletion until `work` has ended.
    pub(crate) async fn use_rows_during(&self, work: impl Future<Output = ()>) {
        let begin = |lock: &str| format!("BEGIN; SELECT part FROM {}_rows WHERE part = 0 {lock}", self.table);
        match self.kind {
            Kind::Postgres => {
                let mut user = PgConnection::connect(&self.server).await.unwrap();
                user.execute(sqlx::raw_sql(AssertSqlSafe(begin("FOR SHARE")))).await.unwrap();
                work.await;
                user.execute(sqlx::raw_sql("COMMIT")).await.unwrap();
            }
            Kind::MariaDb => {
                let mut user = MySqlConnection::connect(&self.server).await.unwrap();
                user.execute(sqlx::raw_sql(AssertSqlSafe(begin("LOCK IN SHARE MODE")))).await.unwrap();
                work.await;
                user.execute(sqlx::raw_sql("COMMIT")).await.unwrap();
            }
        }
    }

    /// Returns the number of open transactions that hold a lock or wait for one.
    pub(crate) async fn count_transactions(&self) -> i64 {
        match self.kind {
            Kind::Postgres => {
                self.number(&format!(
                    "SELECT count(DISTINCT pid) FROM pg_locks WHERE relation = '{}_rows'::regclass \
                     AND mode = 'RowShareLock'",
                    self.table
                ))
                .await
            }
            Kind::MariaDb => count(&self.mariadb_transactions(false).await),
        }
    }

    /// Returns the number of connections of the stores of this test.
    pub(crate) async fn count_connections(&self) -> i64 {
        let sql = match self.kind {
            Kind::Postgres => {
                format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{}'", self.table)
            }
            Kind::MariaDb => format!(
                "SELECT count(*) FROM information_schema.processlist WHERE db = '{}' \
                 AND id <> connection_id()",
                self.table
            ),
        };
        self.number(&sql).await
    }

    /// Returns the connections to this database that are in a transaction, or only those that wait for a lock. Does not read the
    /// server's tables of transactions, because they are not updated while they are read.
    async fn mariadb_transactions(&self, waiting: bool) -> Vec<u64> {
        let connections = self.connections().await;
        let mut connection = MySqlConnection::connect(&self.server).await.unwrap();
        let status = loop {
            let row = connection.fetch_one(sqlx::raw_sql("SHOW ENGINE INNODB STATUS")).await.unwrap();
            // With parts of statements, which are not always UTF-8.
            let status = String::from_utf8_lossy(row.get(2)).into_owned();
            // The server leaves out the transactions while another statement has the mutex of its lock tables.
            if !status.contains("SKIP LOCK INFO PRINTING") {
                break status;
            }
        };
        connection.close().await.unwrap();
        let open = status.split("---TRANSACTION ").skip(1).filter(|transaction| {
            let head = transaction.lines().next().unwrap_or_default();
            head.contains(", ACTIVE") && (!waiting || transaction.contains("LOCK WAIT"))
        });
        let ids = open.filter_map(|transaction| {
            let (_, id) = transaction.split_once("thread id ")?;
            id.split(',').next()?.parse().ok()
        });
        ids.filter(|id| connections.contains(id)).collect()
    }

    /// Returns the connections to this database of MariaDB.
    async fn connections(&self) -> Vec<u64> {
        let mut connection = MySqlConnection::connect(&self.server).await.unwrap();
        let sql = "SELECT CAST(id AS UNSIGNED) FROM information_schema.processlist WHERE db = database() AND id <> connection_id()";
        let rows = connection.fetch_all(sqlx::raw_sql(sql)).await.unwrap();
        connection.close().await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Closes the connections of all holders and waiters. Returns their number.
    pub(crate) async fn kill_sessions(&self) -> i64 {
        match self.kind {
            Kind::Postgres => {
                self.number(&format!(
                    // All at once; then it waits until they have ended.
                    "SELECT count(pg_terminate_backend(pid, 5000)) FROM unnest((SELECT array_agg(pid) FROM (SELECT DISTINCT pid \
                     FROM pg_locks WHERE relation = '{}_rows'::regclass AND mode = 'RowShareLock') AS open \
                     WHERE pg_terminate_backend(pid))) AS pid",
                    self.table
                ))
                .await
            }
            Kind::MariaDb => {
                let ids = self.mariadb_transactions(false).await;
                let mut connection = MySqlConnection::connect(&self.server).await.unwrap();
                for id in &ids {
                    let kill = format!("KILL {id}");
                    // It may have gone by itself.
                    connection.execute(sqlx::raw_sql(AssertSqlSafe(kill))).await.ok();
                }
                // The server ends their transactions first.
                let ended = async || {
                    let connected = self.connections().await;
                    !ids.iter().any(|id| connected.contains(id))
                };
                clock::until("the connections have ended", ended).await;
                count(&ids)
            }
        }
    }

    /// Waits until the server reports this number of transactions that wait for a lock.
    pub(crate) async fn wait_for_blocked(&self, waiting: i64) {
        // PostgreSQL notifies a waiter before it has the lock, and another request may take it first: a waiter waits until its
        // statement has ended.
        let waits = if waiting == 0 { "state = 'active'" } else { "wait_event_type = 'Lock'" };
        let sql = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE {waits} AND pid IN \
             (SELECT pid FROM pg_locks WHERE relation = '{}_rows'::regclass AND mode = 'RowShareLock')",
            self.table
        );
        let blocked = async || match self.kind {
            Kind::Postgres => self.number(&sql).await,
            Kind::MariaDb => count(&self.mariadb_transactions(true).await),
        };
        clock::until("so many wait", async || blocked().await == waiting).await;
    }

    /// Waits until this number of transactions is open, for less than the server's own timeouts.
    pub(crate) async fn wait_for_transactions(&self, transactions: i64, what: &str) {
        let until = clock::now() + Duration::from_secs(6);
        while self.count_transactions().await != transactions {
            assert!(clock::now() < until, "{what}: {} transactions", self.count_transactions().await);
            clock::pause(Duration::from_millis(1)).await;
        }
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        match self.kind {
            Kind::Postgres => number::<sqlx::Postgres>(&self.server, sql).await,
            Kind::MariaDb => number::<sqlx::MySql>(&self.server, sql).await,
        }
    }
}

fn count<T>(list: &[T]) -> i64 {
    i64::try_from(list.len()).unwrap()
}

/// The first column of the only row.
async fn number<DB: Database>(server: &str, sql: &str) -> i64
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    usize: ColumnIndex<DB::Row>,
    for<'r> i64: Decode<'r, DB> + Type<DB>,
{
    let mut connection = DB::Connection::connect(server).await.unwrap();
    let row = connection.fetch_one(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await.unwrap();
    let number = row.get(0);
    connection.close().await.unwrap();
    number
}

/// A connection of the test's own.
pub(crate) async fn connection(server: &Server) -> PgConnection {
    PgConnection::connect(server.url()).await.unwrap()
}
