//! The list of the stores on which everything is tested. A new store is added only here:
//! to [`targets!`](crate::targets!), and as a function of the same name.
//!
//! A store with a server uses the one of `POLYLOCK_TEST_<STORE>_URL`, or starts an installed one; otherwise the target is
//! missing, which is a failure if `POLYLOCK_TEST_REQUIRE=all` is set. Memory and SQLite
//! are never missing. `POLYLOCK_TEST_SQLITE_URL=sqlite:///directory` selects the directory for its files.

mod blobs;
mod keys;
mod log;
mod namespace;
mod objects;
mod own_server;
mod target;
mod znodes;

use std::sync::LazyLock;

use polylock_testkit::Missing;

use self::{
    log::Log,
    namespace::{Entries, behind_service, both, file, namespace, url_of, with_key},
};
pub use self::{
    namespace::{
        Namespace, blobs_of, keys_of, nodes_of, nodes_with, path_of, sessions_of, tables_of, watched_by,
    },
    objects::Objects,
    own_server::{Own, Servers, own, own_with, route},
};
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
            azure both_memory both_sqlite_redis http_sqlite http_postgres http_redis
        }
    };
}

/// Calls the macro `$then` with the names of the variants of a target. They differ from it only in the notification of waiters or in
/// the discovery of the server, so they run only the groups [`VARIED`] of the suite, to save time.
#[macro_export]
macro_rules! variants {
    ($then:ident $($more:tt)*) => {
        $then! { $($more)* postgres_listen_off postgres_pooled redis_sentinel }
    };
}

/// The groups of cases that depend on how waiters are notified.
pub const VARIED: &[&str] = &["exclusion", "order", "wait", "lost", "release", "breaking", "inspect"];

macro_rules! list {
    ($($name:ident)*) => {
        /// The names of all targets.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];

        $crate::variants! { constructors $($name)* }
    };
}

macro_rules! constructors {
    ($($name:ident)*) => {
        /// Creates a new namespace in the target or variant `name`.
        ///
        /// # Errors
        /// [`Missing`] if its server is not available, or there is no such target.
        pub async fn create(name: &str) -> Result<Namespace, Missing> {
            match name {
                $(stringify!($name) => $name().await,)*
                _ => Err(Missing(format!("there is no target {name:?}"))),
            }
        }
    };
}
crate::targets!(list);

/// Locks of this process alone.
///
/// # Errors
/// Never.
pub async fn memory() -> Result<Namespace, Missing> {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    namespace(format!("memory:test-{}", NEXT.fetch_add(1, Ordering::Relaxed)), Entries::Uncounted)
}

/// A SQLite file with grants that survive a power failure: the default.
///
/// # Errors
/// [`Missing`] if the directory can't be created.
pub async fn sqlite_full() -> Result<Namespace, Missing> {
    file("full")
}

/// A SQLite file with grants that survive the crash of processes.
///
/// # Errors
/// [`Missing`] if the directory can't be created.
pub async fn sqlite_normal() -> Result<Namespace, Missing> {
    file("normal")
}

/// A PostgreSQL database.
///
/// # Errors
/// [`Missing`] if there is no server.
pub async fn postgres() -> Result<Namespace, Missing> {
    tables_of(servers::postgres()?, "postgres")
}

/// A PostgreSQL database without a listener for notifications.
///
/// # Errors
/// [`Missing`] if there is no server.
pub async fn postgres_listen_off() -> Result<Namespace, Missing> {
    let mut namespace = tables_of(servers::postgres()?, "postgres")?;
    namespace.url = namespace.url_with("polylock.listen", "off");
    Ok(namespace)
}

/// A PostgreSQL database behind a pooler in transaction mode, which does not forward notifications.
///
/// # Errors
/// [`Missing`] if there is no server or no pooler.
pub async fn postgres_pooled() -> Result<Namespace, Missing> {
    let pooled = servers::pgbouncer()?;
    let (url, table) = url_of(&pooled.pooler, "postgres");
    let log = Log::of(&pooled.server, &table);
    // The entries can't be counted through the pooler: the driver of the tests prepares statements.
    Ok(namespace(url, Entries::Uncounted)?.with_log(log))
}

/// A MariaDB or MySQL database.
///
/// # Errors
/// [`Missing`] if there is no server.
pub async fn mariadb() -> Result<Namespace, Missing> {
    tables_of(servers::mariadb()?, "mysql")
}

/// A PostgreSQL database with locks that belong to open transactions.
///
/// # Errors
/// [`Missing`] if there is no server.
pub async fn postgres_pessimistic() -> Result<Namespace, Missing> {
    sessions_of(servers::postgres()?, "postgres")
}

/// A MariaDB or MySQL database with locks that belong to open transactions.
///
/// # Errors
/// [`Missing`] if there is no server.
pub async fn mariadb_pessimistic() -> Result<Namespace, Missing> {
    sessions_of(servers::mariadb()?, "mysql")
}

/// A Redis server.
///
/// # Errors
/// [`Missing`] if there is none.
pub async fn redis() -> Result<Namespace, Missing> {
    keys_of(servers::redis()?, "redis")
}

/// A Valkey server.
///
/// # Errors
/// [`Missing`] if there is none.
pub async fn valkey() -> Result<Namespace, Missing> {
    keys_of(servers::valkey()?, "valkey")
}

/// A Redis Cluster.
///
/// # Errors
/// [`Missing`] if there is none.
pub async fn redis_cluster() -> Result<Namespace, Missing> {
    let cluster = servers::redis_cluster()?;
    let prefix = cluster.name();
    let url = with_key(cluster.url(), "polylock.namespace", &prefix);
    let nodes = nodes::nodes(cluster.url());
    namespace(url, Entries::ClusterKeys(prefix, urls(&nodes)))
}

/// A Redis server that is found by Sentinels.
///
/// # Errors
/// [`Missing`] if there are none.
pub async fn redis_sentinel() -> Result<Namespace, Missing> {
    watched_by(servers::redis_sentinel()?)
}

/// Three independent Redis servers.
///
/// # Errors
/// [`Missing`] if there are none.
pub async fn redlock3() -> Result<Namespace, Missing> {
    nodes_of(&urls(&servers::redlock()?[..3]), [])
}

/// Five independent Redis servers.
///
/// # Errors
/// [`Missing`] if there are none.
pub async fn redlock5() -> Result<Namespace, Missing> {
    nodes_of(&urls(&servers::redlock()?[..5]), [])
}

/// Five Redis servers, of which two refuse every connection.
///
/// # Errors
/// [`Missing`] if there are none.
pub async fn redlock5_two_dead() -> Result<Namespace, Missing> {
    static DEAD: LazyLock<[Dead; 2]> = LazyLock::new(|| [Dead::new(), Dead::new()]);
    nodes_of(&urls(&servers::redlock()?[..3]), DEAD.each_ref().map(Dead::url))
}

/// A standalone ZooKeeper server.
///
/// # Errors
/// [`Missing`] if there is none.
pub async fn zookeeper() -> Result<Namespace, Missing> {
    path_of(servers::zookeeper()?)
}

/// A ZooKeeper ensemble of three servers.
///
/// # Errors
/// [`Missing`] if there are none.
pub async fn zookeeper_ensemble() -> Result<Namespace, Missing> {
    path_of(servers::zookeeper_ensemble()?)
}

/// Azure Blob Storage, or its emulator.
///
/// # Errors
/// [`Missing`] if there is none.
pub async fn azure() -> Result<Namespace, Missing> {
    blobs_of(servers::azurite()?)
}

/// Two in-memory stores, which acquire every lock together.
///
/// # Errors
/// Never.
pub async fn both_memory() -> Result<Namespace, Missing> {
    Ok(both(memory().await?, &memory().await?))
}

/// A SQLite file and a Redis server, which acquire every lock together.
///
/// # Errors
/// [`Missing`] if there is no server, or the directory can't be created.
pub async fn both_sqlite_redis() -> Result<Namespace, Missing> {
    Ok(both(sqlite_normal().await?, &redis().await?))
}

/// A SQLite file behind a lock service.
///
/// # Errors
/// [`Missing`] if the directory can't be created.
pub async fn http_sqlite() -> Result<Namespace, Missing> {
    Ok(behind_service(sqlite_normal().await?))
}

/// A PostgreSQL database behind a lock service.
///
/// # Errors
/// [`Missing`] if there is no server.
pub async fn http_postgres() -> Result<Namespace, Missing> {
    Ok(behind_service(postgres().await?))
}

/// A Redis server behind a lock service.
///
/// # Errors
/// [`Missing`] if there is none.
pub async fn http_redis() -> Result<Namespace, Missing> {
    Ok(behind_service(redis().await?))
}

fn urls(servers: &[Server]) -> Vec<String> {
    servers.iter().map(|server| server.url().to_owned()).collect()
}
