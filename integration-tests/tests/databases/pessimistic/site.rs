//! A database with tables of its own, looked at past the store.

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

/// Where the locks of a test are.
pub(crate) struct Site {
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

impl Site {
    pub(crate) async fn postgres() -> Self {
        Self::on_postgres(servers::postgres().unwrap())
    }

    pub(crate) fn on_postgres(server: &Server) -> Self {
        Self::new(Kind::Postgres, server.url().to_owned(), server.name())
    }

    /// In a database of its own, because MariaDB does not tell whose transaction has locked what.
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
        let joint = if server.contains('?') { '&' } else { '?' };
        let mut url =
            format!("{server}{joint}polylock.strategy=pessimistic&polylock.table={table}&polylock.wait=60s");
        if matches!(kind, Kind::Postgres) {
            url = format!("{url}&application_name={table}");
        }
        Self { url, server, table, kind }
    }

    /// Its URL with more keys, which begin with `&`.
    pub(crate) fn with(&self, more: &str) -> String {
        format!("{}{more}", self.url)
    }

    pub(crate) async fn open(&self, more: &str) -> Locks {
        Locks::connect(&self.with(more)).await.unwrap()
    }

    pub(crate) fn worker(&self, scenario: &str, more: &str, name: &str, arguments: &[&str]) -> Process {
        let url = self.with(more);
        Process::start(env!("CARGO_BIN_EXE_worker"), [scenario, &url, name].iter().chain(arguments))
    }

    /// How many names have rows.
    pub(crate) async fn names(&self) -> i64 {
        self.number(&format!("SELECT count(*) FROM {}_rows WHERE part = 1", self.table)).await
    }

    /// How many transactions are open that hold a lock or wait for one.
    pub(crate) async fn transactions(&self) -> i64 {
        match self.kind {
            Kind::Postgres => {
                self.number(&format!(
                    "SELECT count(DISTINCT pid) FROM pg_locks WHERE relation = '{}_rows'::regclass \
                     AND mode = 'RowShareLock'",
                    self.table
                ))
                .await
            }
            Kind::MariaDb => count(&self.open_on_mariadb(false).await),
        }
    }

    /// How many connections the stores of this test have.
    pub(crate) async fn connections(&self) -> i64 {
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

    /// The connections to this database that are in a transaction, or that wait in it for a lock. The server's tables of
    /// transactions are not asked: they are not made anew as long as somebody reads them.
    async fn open_on_mariadb(&self, waiting: bool) -> Vec<u64> {
        let mut connection = MySqlConnection::connect(&self.server).await.unwrap();
        let sql =
            "SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()";
        let ours = connection.fetch_all(sqlx::raw_sql(sql)).await.unwrap();
        let ours: Vec<i64> = ours.iter().map(|row| row.get(0)).collect();
        let status = connection.fetch_one(sqlx::raw_sql("SHOW ENGINE INNODB STATUS")).await.unwrap();
        connection.close().await.unwrap();
        let status: String = status.get(2);
        let open = status.split("---TRANSACTION ").skip(1).filter(|transaction| {
            let head = transaction.lines().next().unwrap_or_default();
            head.contains(", ACTIVE") && (!waiting || transaction.contains("LOCK WAIT"))
        });
        let ids = open.filter_map(|transaction| {
            let (_, id) = transaction.split_once("thread id ")?;
            id.split(',').next()?.parse().ok()
        });
        ids.filter(|id| ours.iter().any(|ours| u64::try_from(*ours) == Ok(*id))).collect()
    }

    /// Ends the connections of all who hold a lock or wait for one: how many there were.
    pub(crate) async fn kill(&self) -> i64 {
        match self.kind {
            Kind::Postgres => {
                self.number(&format!(
                    "SELECT count(pg_terminate_backend(pid)) FROM (SELECT DISTINCT pid FROM pg_locks \
                     WHERE relation = '{}_rows'::regclass AND mode = 'RowShareLock') AS open",
                    self.table
                ))
                .await
            }
            Kind::MariaDb => {
                let ids = self.open_on_mariadb(false).await;
                let mut connection = MySqlConnection::connect(&self.server).await.unwrap();
                for id in &ids {
                    let kill = format!("KILL {id}");
                    // It may have gone by itself.
                    connection.execute(sqlx::raw_sql(AssertSqlSafe(kill))).await.ok();
                }
                count(&ids)
            }
        }
    }

    /// Waits until so many wait for a lock, as the server sees it.
    pub(crate) async fn blocks(&self, waiting: i64) {
        let sql = format!(
            "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted AND pid IN \
             (SELECT pid FROM pg_locks WHERE relation = '{}_rows'::regclass)",
            self.table
        );
        let blocked = async || match self.kind {
            Kind::Postgres => self.number(&sql).await,
            Kind::MariaDb => count(&self.open_on_mariadb(true).await),
        };
        clock::until("so many wait", async || blocked().await == waiting).await;
    }

    /// Waits until so many transactions are open: much less than a lease, and than the server takes to find out by itself.
    pub(crate) async fn has(&self, transactions: i64, what: &str) {
        let until = clock::now() + Duration::from_secs(3);
        while self.transactions().await != transactions {
            assert!(clock::now() < until, "{what}: {} transactions", self.transactions().await);
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
