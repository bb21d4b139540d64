//! The stores of this machine that everything is tested on. This is the one list; a new store is added here and
//! nowhere else: to [`targets!`](crate::targets!) and as a function of the same name.
//!
//! Where a server is needed, `POLYLOCK_TEST_<STORE>_URL` names one to attach to; else a private one is started from
//! what is installed; else the target is missing, which fails if `POLYLOCK_TEST_REQUIRE=all` is set. Memory and SQLite
//! are never missing. `POLYLOCK_TEST_SQLITE_URL=sqlite:///directory` puts the files on another disk.

mod blobs;
mod keys;
mod log;
mod own_server;
mod znodes;

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{Result, Store, memory, url::StoreUrl};
use polylock_redis::{cluster, redlock, sentinel, single};
use polylock_sql::{mysql, postgres, sqlite};
use polylock_testkit::{Missing, OwnServer, Target};
use sqlx::{
    AssertSqlSafe, ColumnIndex, Connection, Database, Decode, Executor, MySql, Postgres, Row, Sqlite, Type,
    sqlite::SqliteConnectOptions,
};
use tempfile::TempDir;

use log::Log;

use crate::servers::{
    self, Server,
    redlock::{self as nodes, Dead},
};

/// Calls the macro `$then` with the names of all targets.
#[macro_export]
macro_rules! targets {
    ($then:ident) => {
        $then! {
            memory sqlite_full sqlite_normal postgres mariadb postgres_pessimistic mariadb_pessimistic
            redis valkey redis_cluster redlock3 redlock5 redlock5_two_dead zookeeper zookeeper_ensemble
            azure
        }
    };
}

/// Calls the macro `$then` with the names of the variants of a target, which share all but the way in which waiters are
/// notified, or the server is found, with that target: of the suite they get [`VARIED`] alone, because the time of a run is limited.
#[macro_export]
macro_rules! variants {
    ($then:ident $($more:tt)*) => {
        $then! { $($more)* postgres_unheard postgres_pooled redis_sentinel }
    };
}

/// The groups of cases that depend on how waiters are notified.
pub const VARIED: &[&str] = &["exclusion", "order", "wait", "lost", "release", "breaking", "inspect"];

macro_rules! list {
    ($($name:ident)*) => {
        /// The names of all targets.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];

        $crate::variants! { makers $($name)* }
    };
}

macro_rules! makers {
    ($($name:ident)*) => {
        /// A fresh one of the target or variant `name`.
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
    entries: Entries,
    log: Option<Log>,
    /// The statements that empty all its tables.
    emptying: Option<String>,
}

/// What tells how many entries it keeps.
#[derive(Debug)]
enum Entries {
    /// Nothing does.
    Untold,
    /// A query.
    Rows(String),
    /// The prefix of its keys, and the server.
    Keys(String, String),
    /// The same with nodes that answer.
    OfNodes(String, Vec<String>),
    /// The same with the primaries of a cluster.
    OfCluster(String, Vec<String>),
    /// The node below which its locks are, and the servers.
    Below(String, String),
    /// Nothing tells; the blobs are below this path of a server.
    Blobs(String, String),
}

/// Locks of this process alone.
///
/// # Errors
/// Never.
pub async fn memory() -> Result<Spot, Missing> {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    spot(format!("memory:spot-{}", NEXT.fetch_add(1, Ordering::Relaxed)), Entries::Untold)
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

/// A PostgreSQL database whose notifications nobody listens to.
///
/// # Errors
/// [`Missing`] if there is no server.
pub async fn postgres_unheard() -> Result<Spot, Missing> {
    let mut spot = tables_of(servers::postgres()?, "postgres")?;
    spot.url = spot.url_with("polylock.listen", "off");
    Ok(spot)
}

/// A PostgreSQL database behind a pooler in transaction mode, which passes no notifications on.
///
/// # Errors
/// [`Missing`] if there is no server or no pooler.
pub async fn postgres_pooled() -> Result<Spot, Missing> {
    let pooled = servers::pgbouncer()?;
    let (url, table) = url_of(&pooled.pooler, "postgres");
    let log = Log::of(&pooled.server, &table);
    // The driver of the tests themselves prepares statements, which does not go through a pooler.
    Ok(Spot { log, ..spot(url, Entries::Untold)? })
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
    let server = servers::postgres()?;
    let (url, table) = url_of(server, "postgres");
    // Rows, or transactions that have locked some.
    let count = format!(
        "SELECT greatest((SELECT count(*) FROM {table}_rows WHERE part = 1), (SELECT count(*) FROM {table}_sessions), \
         (SELECT count(DISTINCT pid) FROM pg_locks WHERE relation = '{table}_rows'::regclass AND mode = 'RowShareLock'))"
    );
    let log = Log::of(server, &table);
    Ok(Spot { log, ..spot(format!("{url}{PESSIMISTIC}"), Entries::Rows(count))? })
}

/// A MariaDB or MySQL database whose locks are those of open transactions.
///
/// # Errors
/// [`Missing`] if there is no server.
pub async fn mariadb_pessimistic() -> Result<Spot, Missing> {
    let (url, table) = url_of(servers::mariadb()?, "mysql");
    let count = format!(
        "SELECT greatest((SELECT count(*) FROM {table}_rows WHERE part = 1), (SELECT count(*) FROM {table}_sessions))"
    );
    spot(format!("{url}{PESSIMISTIC}"), Entries::Rows(count))
}

/// Each lock has a connection of its own, and one case takes eighty locks.
const PESSIMISTIC: &str = "&polylock.strategy=pessimistic&polylock.connections=100";

/// A Redis server.
///
/// # Errors
/// [`Missing`] if there is none.
pub async fn redis() -> Result<Spot, Missing> {
    keys_of(servers::redis()?, "redis")
}

/// A Valkey server.
///
/// # Errors
/// [`Missing`] if there is none.
pub async fn valkey() -> Result<Spot, Missing> {
    keys_of(servers::valkey()?, "valkey")
}

/// A Redis Cluster.
///
/// # Errors
/// [`Missing`] if there is none.
pub async fn redis_cluster() -> Result<Spot, Missing> {
    let cluster = servers::redis_cluster()?;
    let prefix = cluster.name();
    let url = with_key(cluster.url(), "polylock.prefix", &prefix);
    let nodes = nodes::nodes(cluster.url());
    spot(url, Entries::OfCluster(prefix, urls(&nodes)))
}

/// The primary that Sentinels name.
///
/// # Errors
/// [`Missing`] if there are none.
pub async fn redis_sentinel() -> Result<Spot, Missing> {
    let sentinels = servers::redis_sentinel()?;
    let url = with_key(sentinels.url(), "polylock.prefix", &sentinels.name());
    spot(url, Entries::Untold)
}

/// Three independent Redis servers.
///
/// # Errors
/// [`Missing`] if there are none.
pub async fn redlock3() -> Result<Spot, Missing> {
    nodes_of(&urls(&servers::redlock()?[..3]), [])
}

/// Five.
///
/// # Errors
/// [`Missing`] if there are none.
pub async fn redlock5() -> Result<Spot, Missing> {
    nodes_of(&urls(&servers::redlock()?[..5]), [])
}

/// Five of which two refuse every connection.
///
/// # Errors
/// [`Missing`] if there are none.
pub async fn redlock5_two_dead() -> Result<Spot, Missing> {
    static DEAD: LazyLock<[Dead; 2]> = LazyLock::new(|| [Dead::new(), Dead::new()]);
    nodes_of(&urls(&servers::redlock()?[..3]), DEAD.each_ref().map(Dead::url))
}

/// A ZooKeeper server, alone.
///
/// # Errors
/// [`Missing`] if there is none.
pub async fn zookeeper() -> Result<Spot, Missing> {
    path_of(servers::zookeeper()?)
}

/// Three of them.
///
/// # Errors
/// [`Missing`] if there are none.
pub async fn zookeeper_ensemble() -> Result<Spot, Missing> {
    path_of(servers::zookeeper_ensemble()?)
}

/// Azure Blob Storage, or its emulator.
///
/// # Errors
/// [`Missing`] if there is none.
pub async fn azure() -> Result<Spot, Missing> {
    blobs_of(servers::azurite()?)
}

/// Blobs of their own in a container.
///
/// # Errors
/// [`Missing`] if there is no place for files.
pub fn blobs_of(server: &Server) -> Result<Spot, Missing> {
    let (container, query) = server.url().split_once('?').unwrap_or((server.url(), ""));
    let name = server.name();
    let url = format!("{}/{name}?{query}", container.trim_end_matches('/'));
    // What is left there keeps nobody out; what does, the store lists itself.
    spot(url, Entries::Blobs(name, server.url().to_owned()))
}

/// A path of its own in a ZooKeeper.
///
/// # Errors
/// [`Missing`] if there is no place for files.
pub fn path_of(server: &Server) -> Result<Spot, Missing> {
    let name = server.name();
    let url = format!("{}/{name}", server.url().trim_end_matches('/'));
    spot(url, Entries::Below(format!("/{name}"), server.url().to_owned()))
}

/// A shorter one it refuses.
const SHORTEST_OF_AZURE: Duration = Duration::from_secs(15);

const LONG_SESSION: Duration = Duration::from_secs(90);

fn urls(servers: &[Server]) -> Vec<String> {
    servers.iter().map(|server| server.url().to_owned()).collect()
}

/// Keys of their own in a server, reached under `scheme`.
///
/// # Errors
/// [`Missing`] if there is no place for files.
pub fn keys_of(server: &Server, scheme: &str) -> Result<Spot, Missing> {
    let (prefix, (_, rest)) = (server.name(), server.url().split_once(':').unwrap_or_default());
    let url = with_key(&format!("{scheme}:{rest}"), "polylock.prefix", &prefix);
    spot(url, Entries::Keys(prefix, server.url().to_owned()))
}

/// Keys of their own in all nodes that are `alive`, with the dead ones among them.
///
/// # Errors
/// [`Missing`] if there is no Redis.
pub fn nodes_of<const N: usize>(alive: &[String], dead: [String; N]) -> Result<Spot, Missing> {
    let prefix = servers::redlock()?[0].name();
    let mut all = alive.to_vec();
    for (index, dead) in dead.into_iter().enumerate() {
        all.insert(2 * index + 1, dead);
    }
    let url = with_key(&nodes::url(all.iter().map(String::as_str)), "polylock.prefix", &prefix);
    // They have only just been started, and lose nothing. Some tests take leases that nobody waits for the end of.
    spot(
        format!("{url}&polylock.restart=trust&polylock.max_ttl=10m"),
        Entries::OfNodes(prefix, alive.to_vec()),
    )
}

/// Tables of their own in the database of a server, reached under `scheme`.
///
/// # Errors
/// [`Missing`] if there is no place for files.
pub fn tables_of(server: &Server, scheme: &str) -> Result<Spot, Missing> {
    let (url, table) = url_of(server, scheme);
    let log = Log::of(server, &table);
    let emptying = Some(emptying(&table, if scheme == "mysql" { MYSQL_TABLES } else { TABLES }));
    Ok(Spot { log, emptying, ..spot(url, Entries::Rows(count_of(&table)))? })
}

/// The URL with a prefix of its own for the tables, and the prefix.
fn url_of(server: &Server, scheme: &str) -> (String, String) {
    let (table, (_, rest)) = (server.name(), server.url().split_once(':').unwrap_or_default());
    (with_key(&format!("{scheme}:{rest}"), "polylock.table", &table), table)
}

fn with_key(url: &str, key: &str, value: &str) -> String {
    let joint = if url.contains('?') { '&' } else { '?' };
    format!("{url}{joint}{key}={value}")
}

const TABLES: &[&str] = &["holds", "waiters", "broken", "meta"];
const MYSQL_TABLES: &[&str] = &["holds", "waiters", "broken", "gates", "meta"];

fn emptying(prefix: &str, tables: &[&str]) -> String {
    tables.iter().map(|table| format!("DELETE FROM {prefix}_{table};")).collect()
}

/// Of entries that are rows.
fn count_of(table: &str) -> String {
    format!("SELECT (SELECT count(*) FROM {table}_holds) + (SELECT count(*) FROM {table}_waiters)")
}

fn spot(url: String, entries: Entries) -> Result<Spot, Missing> {
    let directory = TempDir::new().map_err(|error| Missing(format!("no directory for a file: {error}")))?;
    Ok(Spot { url, directory, entries, log: None, emptying: None })
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
    let entries = Entries::Rows(count_of(sqlite::Config::DEFAULT_TABLE));
    let emptying = Some(emptying(sqlite::Config::DEFAULT_TABLE, TABLES));
    Ok(Spot { url, directory, entries, log: None, emptying })
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
        with_key(&self.url, key, value)
    }

    /// A lease for tests that wait until it runs out: this one, or the shortest that the store gives.
    #[must_use]
    pub fn lease(&self, wanted: Duration) -> Duration {
        if self.is_slow() { wanted.max(SHORTEST_OF_AZURE) } else { wanted }
    }

    /// How often a test repeats what it does: as often as it wants to, or a tenth of that where all takes long.
    #[must_use]
    pub fn times(&self, wanted: usize) -> usize {
        if self.is_slow() { wanted.div_ceil(10) } else { wanted }
    }

    fn is_slow(&self) -> bool {
        self.url.starts_with("az:")
    }

    /// How many rows this query counts in its database.
    async fn rows(&self, sql: &str) -> sqlx::Result<u64> {
        let (server, _) = self.url.split_once('?').unwrap_or((&self.url, ""));
        let rows = match server.split_once(':') {
            Some(("postgres", _)) => count::<Postgres>(server.parse()?, sql).await?,
            Some(("mysql", _)) => count::<MySql>(server.parse()?, sql).await?,
            _ => {
                let options = SqliteConnectOptions::new().filename(self.file("locks.db"));
                count::<Sqlite>(options, sql).await?
            }
        };
        Ok(rows.unsigned_abs())
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
            "redis" | "valkey" => single::connect(single::Config::from_url(&url, &mut keys)?).await,
            "redis-cluster" => cluster::connect(cluster::Config::from_url(&url, &mut keys)?).await,
            "redis+sentinel" => sentinel::connect(sentinel::Config::from_url(&url, &mut keys)?).await,
            "redlock" => redlock::connect(redlock::Config::from_url(&url, &mut keys)?).await,
            "zookeeper" => {
                // As long as the longest leases of the suite, so that a guard has what it asked for.
                let config = polylock_zookeeper::Config::from_url(&url, &mut keys)?;
                polylock_zookeeper::connect(config.session_timeout(LONG_SESSION)).await
            }
            "az" => polylock_azure::connect(polylock_azure::Config::from_url(&url, &mut keys)?).await,
            _ => Ok(memory::named(url.rest())),
        }
    }

    async fn empty(&self) -> Result<bool> {
        let emptied = match &self.entries {
            Entries::Untold | Entries::Rows(_) => {
                let Some(sql) = &self.emptying else { return Ok(false) };
                // Deletes, and then a row to be read.
                let zero = if self.url.starts_with("postgres") { "0::bigint" } else { "0" };
                let deleted = self.rows(&format!("{sql} SELECT {zero}")).await;
                deleted.map(|_| ()).map_err(|error| error.to_string())
            }
            Entries::Keys(prefix, server) => {
                keys::delete(std::slice::from_ref(server), prefix).await.map_err(|error| error.to_string())
            }
            Entries::OfNodes(prefix, nodes) | Entries::OfCluster(prefix, nodes) => {
                keys::delete(nodes, prefix).await.map_err(|error| error.to_string())
            }
            Entries::Below(root, servers) => {
                znodes::delete(servers, root).await.map_err(|error| error.to_string())
            }
            Entries::Blobs(prefix, server) => {
                blobs::delete(server, prefix).await.map_err(|error| error.to_string())
            }
        };
        emptied.unwrap_or_else(|error| panic!("can't empty the store: {error}"));
        Ok(true)
    }

    async fn on_own_server(&self) -> Result<Option<Arc<dyn OwnServer>>> {
        own_server::like(&self.url)
    }

    async fn leftovers(&self) -> Result<Option<u64>> {
        let entries = match &self.entries {
            Entries::Untold | Entries::Blobs(..) => return Ok(None),
            Entries::Rows(sql) => self.rows(sql).await.map_err(|error| error.to_string()),
            Entries::Keys(prefix, server) => {
                keys::in_server(server, prefix).await.map_err(|error| error.to_string())
            }
            Entries::OfNodes(prefix, nodes) => {
                keys::in_nodes(nodes, prefix).await.map_err(|error| error.to_string())
            }
            Entries::OfCluster(prefix, nodes) => {
                keys::in_cluster(nodes, prefix).await.map_err(|error| error.to_string())
            }
            Entries::Below(root, servers) => {
                znodes::below(servers, root).await.map_err(|error| error.to_string())
            }
        };
        Ok(Some(entries.unwrap_or_else(|error| panic!("can't count the entries: {error}"))))
    }

    async fn errors_logged(&self) -> Vec<String> {
        self.log.as_ref().map_or_else(Vec::new, Log::errors)
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
