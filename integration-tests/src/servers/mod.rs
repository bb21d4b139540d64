//! Real servers for tests.
//!
//! - Shared servers, which all tests of a process use: [`postgres()`], [`pgbouncer()`], [`mariadb()`], [`redis()`], [`valkey()`], [`zookeeper()`],
//!   the three of [`zookeeper_ensemble()`], the five of [`redlock()`], the six of [`redis_cluster()`], those of
//!   [`redis_sentinel()`], and [`azurite()`]. Each test uses its own [`name`](Server::name) for its tables, keys, nodes or
//!   blobs. `POLYLOCK_TEST_POSTGRES_URL`, `_MYSQL_URL`, `_REDIS_URL`, `_VALKEY_URL`, `_ZOOKEEPER_URL`,
//!   `_ZOOKEEPER_ENSEMBLE_URL`, `_REDLOCK_URL`, `_REDIS_CLUSTER_URL`, `_REDIS_SENTINEL_URL` and `_AZURE_URL` name an existing server to
//!   use instead.
//! - Private servers, which a test may kill, restart, freeze and thaw: [`postgres::start`], [`mariadb::start`], [`pgbouncer::start`], [`redis::start`],
//!   [`valkey::start`], [`zookeeper::start`], [`zookeeper::ensemble`], [`redlock::start`], [`redis_cluster::start`],
//!   [`redis_sentinel::start`], [`azurite::start`] return one [`PrivateServer`], or several.
//! - Pairs of servers behind one address, which change their roles in a switch-over: [`pair::postgres`], [`pair::mariadb`], [`pair::redis`].
//!
//! Servers are started from installed programs, on a free port of 127.0.0.1, and have replied in their protocol when
//! they are returned. A program that is not installed is [`Missing`]; one that does not start causes a panic with its log.
//!
//! No server and no directory outlives the test process: a shell supervises both, and removes them when the pipe from the
//! test process closes, by a panic, by Ctrl-C or by SIGKILL.
//!
//! All functions block, so that tests can call them on any runtime or without one. In a task that shares its thread with others,
//! use `spawn_blocking`.
//!
//! An empty data directory of each version is created once and kept in `target/test-servers`, or in `POLYLOCK_TEST_CACHE`.
//! `cargo run -p polylock-integration-tests --bin server postgres` starts one for manual tests.
//!
//! To add a kind of server, add a module with a `ServerKind` and a `start`, and a line here.

pub mod azurite;
mod disk;
mod installed;
mod keeper;
pub mod lock_service;
pub mod mariadb;
pub mod pair;
pub mod pgbouncer;
pub mod postgres;
mod private;
pub mod redis;
pub mod redis_cluster;
pub mod redis_sentinel;
pub mod redlock;
mod tls;
pub mod valkey;
mod wall_clock;
pub mod zookeeper;

use std::{env, ops::Deref, sync::OnceLock};

use polylock_testkit::Missing;
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection};

use self::private::{Failure, missing, start_or_fail};
pub use self::private::{PrivateServer, Server};

/// The PostgreSQL server that the tests of this process share.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If the server does not start, with its log.
pub fn postgres() -> Result<&'static Server, Missing> {
    static SHARED: Shared = Shared::new();
    shared(&SHARED, "POLYLOCK_TEST_POSTGRES_URL", || start_or_fail(postgres::Postgres::default()))
}

/// A PgBouncer in transaction mode that the tests of this process share, in front of a PostgreSQL server of its own.
///
/// # Errors
/// [`Missing`] if one of them is not installed.
///
/// # Panics
/// If a server does not start, with its log.
pub fn pgbouncer() -> Result<&'static pgbouncer::Pooled, Missing> {
    static SHARED: OnceLock<Result<pgbouncer::Pooled, Missing>> = OnceLock::new();
    SHARED.get_or_init(pgbouncer::Pooled::start).as_ref().map_err(Clone::clone)
}

/// The MariaDB server that the tests of this process share.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If the server does not start, with its log.
pub fn mariadb() -> Result<&'static Server, Missing> {
    static SHARED: Shared = Shared::new();
    shared(&SHARED, "POLYLOCK_TEST_MYSQL_URL", || start_or_fail(mariadb::MariaDb::default()))
}

/// The Redis server that the tests of this process share. It is [durable](redis::DURABLE).
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If the server does not start, with its log.
pub fn redis() -> Result<&'static Server, Missing> {
    static SHARED: Shared = Shared::new();
    shared(&SHARED, "POLYLOCK_TEST_REDIS_URL", || redis::start_durable(&redis::REDIS))
}

/// The Valkey server that the tests of this process share. It is [durable](redis::DURABLE).
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If the server does not start, with its log.
pub fn valkey() -> Result<&'static Server, Missing> {
    static SHARED: Shared = Shared::new();
    shared(&SHARED, "POLYLOCK_TEST_VALKEY_URL", || redis::start_durable(&valkey::VALKEY))
}

/// The ZooKeeper server that the tests of this process share.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If the server does not start, with its log.
pub fn zookeeper() -> Result<&'static Server, Missing> {
    static SHARED: Shared = Shared::new();
    shared(&SHARED, "POLYLOCK_TEST_ZOOKEEPER_URL", || start_or_fail(zookeeper::ZooKeeper::default()))
}

/// The ZooKeeper ensemble that the tests of this process share: three members.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If the server does not start, with its log.
pub fn zookeeper_ensemble() -> Result<&'static Server, Missing> {
    static SHARED: Shared<zookeeper::Ensemble> = Shared::new();
    shared(&SHARED, "POLYLOCK_TEST_ZOOKEEPER_ENSEMBLE_URL", || zookeeper::assemble(3, &[]))
}

/// The nodes of a Redlock that the tests of this process share: five Redis servers, [durable](redis::DURABLE) all.
///
/// # Errors
/// [`Missing`] if Redis is not installed.
///
/// # Panics
/// If one does not start, with its log, or if `POLYLOCK_TEST_REDLOCK_URL` names fewer.
pub fn redlock() -> Result<&'static [Server], Missing> {
    static SHARED: OnceLock<Result<redlock::SharedNodes, Failure>> = OnceLock::new();
    let nodes = SHARED.get_or_init(|| redlock::shared(env::var("POLYLOCK_TEST_REDLOCK_URL").ok().as_deref()));
    nodes.as_ref().map(|(servers, _)| &servers[..]).map_err(|failure| missing(failure.clone()))
}

/// The Redis Cluster that the tests of this process share. Its nodes are [durable](redis::DURABLE).
///
/// # Errors
/// [`Missing`] if Redis is not installed.
///
/// # Panics
/// If it does not start, with the log of a server.
pub fn redis_cluster() -> Result<&'static Server, Missing> {
    static SHARED: Shared<redis_cluster::Cluster> = Shared::new();
    shared(&SHARED, "POLYLOCK_TEST_REDIS_CLUSTER_URL", redis_cluster::shared)
}

/// The Sentinels that the tests of this process share, with a primary and a replica that are [durable](redis::DURABLE).
///
/// # Errors
/// [`Missing`] if Redis is not installed.
///
/// # Panics
/// If a server does not start, with its log.
pub fn redis_sentinel() -> Result<&'static Server, Missing> {
    static SHARED: Shared<redis_sentinel::Watched> = Shared::new();
    shared(&SHARED, "POLYLOCK_TEST_REDIS_SENTINEL_URL", redis_sentinel::shared)
}

/// The Azurite that the tests of this process share. It keeps nothing when it ends.
///
/// # Errors
/// [`Missing`] if it is not installed.
///
/// # Panics
/// If the server does not start, with its log.
pub fn azurite() -> Result<&'static Server, Missing> {
    static SHARED: Shared = Shared::new();
    shared(&SHARED, "POLYLOCK_TEST_AZURE_URL", || start_or_fail(azurite::Azurite::default()))
}

/// Runs statements on a connection of their own to the PostgreSQL or MariaDB server at `url`.
///
/// # Errors
/// If the server refuses one.
pub async fn execute(url: &str, statements: &str) -> sqlx::Result<()> {
    let sql = sqlx::raw_sql(AssertSqlSafe(statements.to_owned()));
    if url.starts_with("postgres") {
        let mut connection = PgConnection::connect(url).await?;
        connection.execute(sql).await?;
        connection.close().await
    } else {
        let mut connection = MySqlConnection::connect(url).await?;
        connection.execute(sql).await?;
        connection.close().await
    }
}

/// A shared server, and its owner if it was started here.
type Shared<T = PrivateServer> = OnceLock<Result<(Server, Option<T>), Failure>>;

fn shared<T: Deref<Target = Server>>(
    shared: &'static Shared<T>,
    variable: &str,
    start: impl FnOnce() -> Result<T, Failure>,
) -> Result<&'static Server, Missing> {
    let server = shared.get_or_init(|| match env::var(variable) {
        Ok(url) => Ok((Server::at(url), None)),
        Err(_) => start().map(|own| (Server::clone(&own), Some(own))),
    });
    server.as_ref().map(|(server, _)| server).map_err(|failure| missing(failure.clone()))
}

#[cfg(test)]
mod tests {
    use std::{iter, net::TcpListener, sync::Arc};

    use super::{
        private::{ServerKind, ports, start_at},
        *,
    };

    #[test]
    fn a_port_that_was_taken_meanwhile_is_skipped() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let taken = taken.local_addr().expect("its number").port();
        let kinds: [Arc<dyn ServerKind>; 6] = [
            Arc::new(postgres::Postgres::default()),
            Arc::new(mariadb::MariaDb::default()),
            Arc::new(redis::Redis::of(&redis::REDIS, &[])),
            Arc::new(redis::Redis::of(&valkey::VALKEY, &[])),
            Arc::new(zookeeper::ZooKeeper::default()),
            Arc::new(azurite::Azurite::default()),
        ];
        for kind in kinds {
            let start = |taken| start_at(&kind, iter::once(taken).chain(ports()));
            let other = start(taken).expect("it starts at another port");
            assert_ne!(other.port(), taken);
            // Here a server of this kind replies, possibly before the new one notices it.
            let private = start(other.port()).expect("it starts at a third port");
            assert_ne!(private.port(), other.port());
        }
    }
}
