//! The stores that are measured, each with the settings of the driver that it is measured against.

use std::sync::OnceLock;

use polylock_integration_tests::{
    servers::{self, Private},
    targets::{self, Spot},
};
use sqlx::sqlite::SqliteSynchronous;

use crate::raw::Raw;

/// A store with one setting of durability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    Memory,
    SqliteFull,
    SqliteNormal,
    PostgresFull,
    PostgresRelaxed,
    MariaDbFull,
    MariaDbRelaxed,
    RedisDurable,
    RedisForgetful,
    Redlock,
    RedlockOneFrozen,
    ZooKeeperDurable,
    ZooKeeperForgetful,
    Azure,
}

use Place::{
    Azure, MariaDbFull, MariaDbRelaxed, Memory, PostgresFull, PostgresRelaxed, RedisDurable, RedisForgetful,
    Redlock, RedlockOneFrozen, SqliteFull, SqliteNormal, ZooKeeperDurable, ZooKeeperForgetful,
};

impl Place {
    pub(crate) const ALL: [Self; 14] = [
        Memory,
        SqliteFull,
        SqliteNormal,
        PostgresFull,
        PostgresRelaxed,
        MariaDbFull,
        MariaDbRelaxed,
        RedisDurable,
        RedisForgetful,
        Redlock,
        RedlockOneFrozen,
        ZooKeeperDurable,
        ZooKeeperForgetful,
        Azure,
    ];

    /// The store, and what its durability is called.
    pub(crate) fn names(self) -> (&'static str, &'static str) {
        match self {
            Memory => ("memory", "none"),
            SqliteFull => ("sqlite", "full"),
            SqliteNormal => ("sqlite", "normal"),
            PostgresFull => ("postgres", "full"),
            PostgresRelaxed => ("postgres", "relaxed"),
            MariaDbFull => ("mariadb", "flush=1"),
            MariaDbRelaxed => ("mariadb", "flush=0"),
            RedisDurable => ("redis", "always"),
            RedisForgetful => ("redis", "none"),
            Redlock => ("redlock x5", "none"),
            RedlockOneFrozen => ("redlock x5", "none, 1 frozen"),
            ZooKeeperDurable => ("zookeeper", "forceSync=yes"),
            ZooKeeperForgetful => ("zookeeper", "forceSync=no"),
            Azure => ("azure", "emulator"),
        }
    }

    /// What a pair may cost, as a multiple of the raw one, on a multi-thread and on a current-thread runtime.
    pub(crate) fn goals(self) -> (f64, f64) {
        match self {
            MariaDbFull | MariaDbRelaxed => (1.3, 1.6),
            ZooKeeperDurable | ZooKeeperForgetful => (1.1, 1.1),
            _ => (1.15, 1.4),
        }
    }

    /// Whether a program may well have dozens of it open at once.
    pub(crate) fn is_light(self) -> bool {
        matches!(self, ZooKeeperDurable | ZooKeeperForgetful)
    }

    /// A fresh one, and the URL with its durability.
    pub(crate) async fn open(self) -> (Spot, String) {
        let spot = match self {
            Memory => targets::memory().await,
            SqliteFull => targets::sqlite_full().await,
            SqliteNormal => targets::sqlite_normal().await,
            PostgresFull | PostgresRelaxed => targets::postgres().await,
            MariaDbFull => targets::mariadb().await,
            MariaDbRelaxed => targets::tables_of(relaxed_mariadb(), "mysql"),
            RedisDurable => targets::redis().await,
            RedisForgetful => targets::keys_of(forgetful_redis(), "redis"),
            Redlock => targets::nodes_of(&nodes(five_nodes()), []),
            RedlockOneFrozen => targets::nodes_of(&nodes(four_nodes_and_one()), []),
            ZooKeeperDurable => targets::path_of(durable_zookeeper()),
            ZooKeeperForgetful => targets::path_of(forgetful_zookeeper()),
            Azure => targets::azure().await,
        };
        let spot = spot.unwrap();
        let url = match self {
            PostgresRelaxed => spot.url_with("polylock.durability", "relaxed"),
            // As the raw client has it, so that neither signs its requests.
            Azure => format!("{}&{}", spot.url(), servers::azurite::SAS),
            _ => spot.url().to_owned(),
        };
        (spot, url)
    }

    /// The raw driver on the same settings, as programs use it: on a pool, where there is a server.
    pub(crate) async fn raw(self, spot: &Spot) -> Option<Raw> {
        Some(match self {
            Memory => return None,
            SqliteFull => {
                Raw::sqlite(&spot.file("raw.db"), SqliteSynchronous::Full, SqliteSynchronous::Full).await
            }
            SqliteNormal => {
                Raw::sqlite(&spot.file("raw.db"), SqliteSynchronous::Normal, SqliteSynchronous::Normal).await
            }
            PostgresFull => Raw::postgres_pool(servers::postgres().unwrap().url(), "on").await,
            PostgresRelaxed => Raw::postgres_pool(servers::postgres().unwrap().url(), "off").await,
            MariaDbFull => Raw::mysql_pool(servers::mariadb().unwrap().url()).await,
            MariaDbRelaxed => Raw::mysql_pool(relaxed_mariadb().url()).await,
            RedisDurable => Raw::redis(servers::redis().unwrap().url()).await,
            RedisForgetful => Raw::redis(forgetful_redis().url()).await,
            // Healthy ones, for both: what a frozen one costs beside them is the question.
            Redlock | RedlockOneFrozen => Raw::redlock(&nodes(five_nodes())).await,
            ZooKeeperDurable => Raw::zookeeper(durable_zookeeper().url(), false).await,
            ZooKeeperForgetful => Raw::zookeeper(forgetful_zookeeper().url(), false).await,
            Azure => Raw::azure(servers::azurite().unwrap().url()).await,
        })
    }

    /// The least that could be: on connections of its own, and with a release that is as little durable as ours; in
    /// ZooKeeper, with the create and the list sent at once.
    pub(crate) async fn least(self, spot: &Spot) -> Option<Raw> {
        Some(match self {
            Memory | SqliteNormal | RedisDurable | RedisForgetful | Redlock | RedlockOneFrozen | Azure => {
                return None;
            }
            SqliteFull => {
                let file = spot.file("least.db");
                Raw::sqlite(&file, SqliteSynchronous::Full, SqliteSynchronous::Normal).await
            }
            PostgresFull => Raw::postgres(servers::postgres().unwrap().url(), "on").await,
            PostgresRelaxed => Raw::postgres(servers::postgres().unwrap().url(), "off").await,
            MariaDbFull => Raw::mysql(servers::mariadb().unwrap().url()).await,
            MariaDbRelaxed => Raw::mysql(relaxed_mariadb().url()).await,
            ZooKeeperDurable => Raw::zookeeper(durable_zookeeper().url(), true).await,
            ZooKeeperForgetful => Raw::zookeeper(forgetful_zookeeper().url(), true).await,
        })
    }
}

fn durable_zookeeper() -> &'static Private {
    static SERVER: OnceLock<Private> = OnceLock::new();
    SERVER.get_or_init(|| servers::zookeeper::start(&["forceSync=yes"]).unwrap())
}

/// One that leaves the disk to the system.
fn forgetful_zookeeper() -> &'static Private {
    static SERVER: OnceLock<Private> = OnceLock::new();
    SERVER.get_or_init(|| servers::zookeeper::start(&["forceSync=no"]).unwrap())
}

/// MariaDB has no durability for one session, so this one has it for all.
fn relaxed_mariadb() -> &'static Private {
    static SERVER: OnceLock<Private> = OnceLock::new();
    SERVER.get_or_init(|| servers::mariadb::start(&["innodb_flush_log_at_trx_commit=0"]).unwrap())
}

/// One that keeps nothing: what the network and the commands cost without a disk.
fn forgetful_redis() -> &'static Private {
    static SERVER: OnceLock<Private> = OnceLock::new();
    SERVER.get_or_init(|| servers::redis::start(&[]).unwrap())
}

/// The same five times.
fn five_nodes() -> &'static [Private] {
    static NODES: OnceLock<Vec<Private>> = OnceLock::new();
    NODES.get_or_init(|| servers::redlock::start(5, &[]).unwrap())
}

/// Five others, of which one has been frozen.
fn four_nodes_and_one() -> &'static [Private] {
    static NODES: OnceLock<Vec<Private>> = OnceLock::new();
    NODES.get_or_init(|| {
        let nodes = servers::redlock::start(5, &[]).unwrap();
        nodes[2].freeze();
        nodes
    })
}

fn nodes(servers: &[Private]) -> Vec<String> {
    servers.iter().map(|server| server.url().to_owned()).collect()
}
