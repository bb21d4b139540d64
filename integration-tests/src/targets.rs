//! The stores of this machine that everything is tested on. This is the one list; a new store is added here and
//! nowhere else: to [`targets!`](crate::targets!) and as a function of the same name.
//!
//! Where a server is needed, `POLYLOCK_TEST_<STORE>_URL` names one to attach to; else a private one is started from
//! what is installed; else the target is missing, which fails if `POLYLOCK_TEST_REQUIRE=all` is set. Memory and SQLite
//! are never missing. `POLYLOCK_TEST_SQLITE_URL=sqlite:///directory` puts the files on another disk.

use async_trait::async_trait;
use polylock_core::{Result, Store, memory, url::StoreUrl};
use polylock_sql::{mysql, postgres, sqlite};
use polylock_testkit::{Missing, Target};
use sqlx::{
    AssertSqlSafe, ColumnIndex, Connection, Database, Decode, Executor, MySql, Postgres, Row, Sqlite, Type,
    sqlite::SqliteConnectOptions,
};
use tempfile::TempDir;

use crate::servers::{self, Server};

/// Calls the macro `$then` with the names of all targets.
#[macro_export]
macro_rules! targets {
    ($then:ident) => {
        $then! {
            memory sqlite_full sqlite_normal postgres mariadb postgres_pessimistic mariadb_pessimistic
        }
    };
}

macro_rules! list {
    ($($name:ident)*) => {
        /// The names of all targets.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];

        /// A fresh one of the target `name`.
        ///
        /// # Errors
        /// [`Missing`] if its server is not there, or there is no such target.
        pub async fn make(name: &str) -> Result<Spot, Missing> {
            match name {
                $(stringify!($name) => $name().await,)*
                _ => Err(Missing(format!("there is no target {name:?}"))),
            }
        }
    };
}
crate::targets!(list);

/// A place in a store that nothing else uses.
#[derive(Debug)]
pub struct Spot {
    url: String,
    /// For the files of the store, where it has any, and of the test.
    directory: TempDir,
    /// What tells how many entries it keeps, where it has tables.
    count: String,
}

/// Locks of this process alone.
///
/// # Errors
/// Never.
pub async fn memory() -> Result<Spot, Missing> {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    spot(format!("memory:spot-{}", NEXT.fetch_add(1, Ordering::Relaxed)), String::new())
}

/// A SQLite file whose grants survive a power cut: the default.
///
/// # Errors
/// [`Missing`] if there is no place for a file.
pub async fn sqlite_full() -> Result<Spot, Missing> {
    file("full")
}

/// A SQLite file whose grants survive the crash of processes.
///
/// # Errors
/// [`Missing`] if there is no place for a file.
pub async fn sqlite_normal() -> Result<Spot, Missing> {
    file("normal")
}

/// A PostgreSQL database.
///
/// # Errors
/// [`Missing`] if there is no server.
pub async fn postgres() -> Result<Spot, Missing> {
    tables_of(servers::postgres()?, "postgres")
}

/// A MariaDB or MySQL database.
///
/// # Errors
/// [`Missing`] if there is no server.
pub async fn mariadb() -> Result<Spot, Missing> {
    tables_of(servers::mariadb()?, "mysql")
}

/// A PostgreSQL database whose locks are those of open transactions.
///
/// # Errors
/// [`Missing`] if there is no server.
pub async fn postgres_pessimistic() -> Result<Spot, Missing> {
    let (url, table) = url_of(servers::postgres()?, "postgres");
    // Rows, or transactions that have locked some.
    let count = format!(
        "SELECT greatest((SELECT count(*) FROM {table}_rows WHERE part = 1), (SELECT count(DISTINCT pid) FROM pg_locks \
         WHERE relation = '{table}_rows'::regclass AND mode = 'RowShareLock'))"
    );
    spot(format!("{url}{PESSIMISTIC}"), count)
}

/// A MariaDB or MySQL database whose locks are those of open transactions.
///
/// # Errors
/// [`Missing`] if there is no server.
pub async fn mariadb_pessimistic() -> Result<Spot, Missing> {
    let (url, table) = url_of(servers::mariadb()?, "mysql");
    spot(format!("{url}{PESSIMISTIC}"), format!("SELECT count(*) FROM {table}_rows WHERE part = 1"))
}

/// Each lock has a connection of its own, and one case takes eighty locks.
const PESSIMISTIC: &str = "&polylock.strategy=pessimistic&polylock.connections=100";

/// Tables of their own in the database of a server, reached under `scheme`.
///
/// # Errors
/// [`Missing`] if there is no place for files.
pub fn tables_of(server: &Server, scheme: &str) -> Result<Spot, Missing> {
    let (url, table) = url_of(server, scheme);
    spot(url, count_of(&table))
}

/// The URL with a prefix of its own for the tables, and the prefix.
fn url_of(server: &Server, scheme: &str) -> (String, String) {
    let (table, (_, rest)) = (server.name(), server.url().split_once(':').unwrap_or_default());
    let joint = if rest.contains('?') { '&' } else { '?' };
    (format!("{scheme}:{rest}{joint}polylock.table={table}"), table)
}

/// Of entries that are rows.
fn count_of(table: &str) -> String {
    format!("SELECT (SELECT count(*) FROM {table}_holds) + (SELECT count(*) FROM {table}_waiters)")
}

fn spot(url: String, count: String) -> Result<Spot, Missing> {
    let directory = TempDir::new().map_err(|error| Missing(format!("no directory for a file: {error}")))?;
    Ok(Spot { url, directory, count })
}

fn file(durability: &str) -> Result<Spot, Missing> {
    let directory = match std::env::var("POLYLOCK_TEST_SQLITE_URL") {
        Ok(url) => {
            let path = StoreUrl::parse(&url).and_then(|url| url.file());
            TempDir::new_in(path.map_err(|error| Missing(format!("POLYLOCK_TEST_SQLITE_URL: {error}")))?)
        }
        Err(_) => TempDir::new(),
    };
    let directory = directory.map_err(|error| Missing(format!("no directory for a file: {error}")))?;
    let path = directory.path().join("locks.db");
    let url = format!("sqlite://{}?polylock.durability={durability}", path.display());
    Ok(Spot { url, directory, count: count_of(sqlite::Config::DEFAULT_TABLE) })
}

impl Spot {
    /// Its URL, for [`polylock::Locks::connect`] here and in other processes.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its URL with one more key.
    #[must_use]
    pub fn url_with(&self, key: &str, value: &str) -> String {
        let joint = if self.url.contains('?') { '&' } else { '?' };
        format!("{}{joint}{key}={value}", self.url)
    }

    /// A path beside the store's own files, where nothing is yet; on the same disk, where it has files.
    #[must_use]
    pub fn file(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }
}

#[async_trait]
impl Target for Spot {
    async fn connect(&self) -> Result<Store> {
        let url = StoreUrl::parse(&self.url)?;
        let mut keys = url.keys();
        match url.scheme() {
            "sqlite" => sqlite::connect(sqlite::Config::from_url(&url, &mut keys)?).await,
            "postgres" => postgres::connect(postgres::Config::from_url(&url, &mut keys)?).await,
            "mysql" => mysql::connect(mysql::Config::from_url(&url, &mut keys)?).await,
            _ => Ok(memory::named(url.rest())),
        }
    }

    async fn leftovers(&self) -> Result<Option<u64>> {
        let (server, _) = self.url.split_once('?').unwrap_or((&self.url, ""));
        let counted = async {
            Ok::<_, sqlx::Error>(match server.split_once(':') {
                Some(("sqlite", _)) => {
                    let options = SqliteConnectOptions::new().filename(self.file("locks.db"));
                    Some(count::<Sqlite>(options, &self.count).await?)
                }
                Some(("postgres", _)) => Some(count::<Postgres>(server.parse()?, &self.count).await?),
                Some(("mysql", _)) => Some(count::<MySql>(server.parse()?, &self.count).await?),
                _ => None,
            })
        };
        match counted.await {
            Ok(rows) => Ok(rows.and_then(|rows| u64::try_from(rows).ok())),
            Err(error) => panic!("can't count the rows: {error}"),
        }
    }
}

/// What `sql` counts, asked past the store.
async fn count<DB: Database>(options: <DB::Connection as Connection>::Options, sql: &str) -> sqlx::Result<i64>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    usize: ColumnIndex<DB::Row>,
    for<'r> i64: Decode<'r, DB> + Type<DB>,
{
    let mut connection = <DB::Connection as Connection>::connect_with(&options).await?;
    let rows = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).fetch_one(&mut connection).await?.try_get(0)?;
    connection.close().await?;
    Ok(rows)
}
