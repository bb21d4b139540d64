//! The stores that are measured, each with the settings of the driver that it is measured against.

use std::sync::OnceLock;

use polylock::StoreUrl;
use polylock_bench::{Floor, RawClient, raw};
use polylock_integration_tests::{
    counter::Counter,
    proxy::Proxy,
    servers::{self, PrivateServer, Server},
    targets::{self, Namespace},
};
use polylock_testkit::Missing;

/// A store with one setting of durability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Setup {
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

use Setup::{
    Azure, MariaDbFull, MariaDbRelaxed, Memory, PostgresFull, PostgresRelaxed, RedisDurable, RedisForgetful,
    Redlock, RedlockOneFrozen, SqliteFull, SqliteNormal, ZooKeeperDurable, ZooKeeperForgetful,
};

impl Setup {
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

    /// Why it can't be measured here, if it can't: a server is not installed.
    pub(crate) fn missing(self) -> Option<Missing> {
        match self {
            Memory | SqliteFull | SqliteNormal => None,
            PostgresFull | PostgresRelaxed => servers::postgres().err(),
            MariaDbFull => servers::mariadb().err(),
            MariaDbRelaxed => relaxed_mariadb().err(),
            RedisDurable => servers::redis().err(),
            RedisForgetful => forgetful_redis().err(),
            Redlock => five_nodes().err(),
            RedlockOneFrozen => four_nodes_and_one().err(),
            ZooKeeperDurable => durable_zookeeper().err(),
            ZooKeeperForgetful => forgetful_zookeeper().err(),
            Azure => servers::azurite().err(),
        }
    }

    /// The URL of its Redis, if it is one.
    pub(crate) fn redis_url(self) -> Option<&'static str> {
        match self {
            RedisDurable => servers::redis().ok().map(Server::url),
            RedisForgetful => forgetful_redis().ok().map(|server| server.url()),
            _ => None,
        }
    }

    /// What counts the statements that its servers receive, and the URL to be used for that; `None` if there is no server.
    pub(crate) fn counter(self, url: String) -> Option<(Counter<'static>, String)> {
        let counter = match self {
            // A frozen server does not answer.
            Memory | SqliteFull | SqliteNormal | RedlockOneFrozen => return None,
            PostgresFull | PostgresRelaxed => Counter::Postgres(servers::postgres().unwrap()),
            MariaDbFull => Counter::MariaDb(servers::mariadb().unwrap()),
            MariaDbRelaxed => Counter::MariaDb(relaxed_mariadb().unwrap()),
            RedisDurable => Counter::Scripts(vec![servers::redis().unwrap()]),
            RedisForgetful => Counter::Scripts(vec![forgetful_redis().unwrap()]),
            Redlock => Counter::Scripts(five_nodes().unwrap().iter().map(|node| &**node).collect()),
            ZooKeeperDurable => Counter::ZooKeeper(vec![durable_zookeeper().unwrap()]),
            ZooKeeperForgetful => Counter::ZooKeeper(vec![forgetful_zookeeper().unwrap()]),
            Azure => {
                let port = port_of_emulator(&url)?;
                let proxy = Proxy::to_http(port);
                let through = url.replace(&port.to_string(), &proxy.address().port().to_string());
                return Some((Counter::Azure(proxy), through));
            }
        };
        Some((counter, url))
    }

    /// Whether a program may well have dozens of it open at once.
    pub(crate) fn is_light(self) -> bool {
        matches!(self, ZooKeeperDurable | ZooKeeperForgetful)
    }

    /// A fresh one, and the URL with its durability.
    pub(crate) async fn open(self) -> (Namespace, String) {
        let namespace = match self {
            Memory => targets::memory().await,
            SqliteFull => targets::sqlite_full().await,
            SqliteNormal => targets::sqlite_normal().await,
            PostgresFull | PostgresRelaxed => targets::postgres().await,
            MariaDbFull => targets::mariadb().await,
            MariaDbRelaxed => targets::tables_of(relaxed_mariadb().unwrap(), "mysql"),
            RedisDurable => targets::redis().await,
            RedisForgetful => targets::keys_of(forgetful_redis().unwrap(), "redis"),
            Redlock => targets::nodes_of(&nodes(five_nodes().unwrap()), []),
            RedlockOneFrozen => targets::nodes_of(&nodes(four_nodes_and_one().unwrap()), []),
            ZooKeeperDurable => targets::path_of(durable_zookeeper().unwrap()),
            ZooKeeperForgetful => targets::path_of(forgetful_zookeeper().unwrap()),
            Azure => targets::azure().await,
        };
        let namespace = namespace.unwrap();
        let url = match self {
            PostgresRelaxed => namespace.url_with("polylock.durability", "relaxed"),
            // As the raw client has it, so that neither signs its requests.
            Azure => format!("{}&{}", namespace.url(), servers::azurite::SAS),
            _ => namespace.url().to_owned(),
        };
        (namespace, url)
    }

    /// The raw driver with the settings of the store at `url`.
    pub(crate) async fn raw(self, url: &str, floor: Floor) -> Option<Box<dyn RawClient>> {
        let url = match self {
            // Healthy servers, for both: the cost of a frozen one beside them is the question.
            RedlockOneFrozen => servers::redlock::url(five_nodes().unwrap().iter().map(|node| node.url())),
            _ => url.to_owned(),
        };
        let namespace = format!("bench_{:08x}", fastrand::u32(..));
        raw::open(&StoreUrl::parse(&url).unwrap(), &namespace, floor).await.unwrap()
    }
}

fn port_of_emulator(url: &str) -> Option<u16> {
    let (_, address) = url.split_once("emulator=")?.1.split_once("127.0.0.1")?;
    let port = address.trim_start_matches(':').trim_start_matches("%3A");
    port.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok()
}

type Started<T> = OnceLock<Result<T, Missing>>;

fn started<T: Send + Sync>(
    server: &'static Started<T>,
    start: impl FnOnce() -> Result<T, Missing>,
) -> Result<&'static T, Missing> {
    server.get_or_init(start).as_ref().map_err(Clone::clone)
}

fn durable_zookeeper() -> Result<&'static PrivateServer, Missing> {
    static SERVER: Started<PrivateServer> = OnceLock::new();
    started(&SERVER, || servers::zookeeper::start(&["forceSync=yes"]))
}

/// One that leaves the disk to the system.
fn forgetful_zookeeper() -> Result<&'static PrivateServer, Missing> {
    static SERVER: Started<PrivateServer> = OnceLock::new();
    started(&SERVER, || servers::zookeeper::start(&["forceSync=no"]))
}

/// MariaDB has no durability for one session, so this one has it for all.
fn relaxed_mariadb() -> Result<&'static PrivateServer, Missing> {
    static SERVER: Started<PrivateServer> = OnceLock::new();
    started(&SERVER, || servers::mariadb::start(&["innodb_flush_log_at_trx_commit=0"]))
}

/// One that keeps nothing: what the network and the commands cost without a disk.
fn forgetful_redis() -> Result<&'static PrivateServer, Missing> {
    static SERVER: Started<PrivateServer> = OnceLock::new();
    started(&SERVER, || servers::redis::start(&[]))
}

/// The same five times.
fn five_nodes() -> Result<&'static Vec<PrivateServer>, Missing> {
    static NODES: Started<Vec<PrivateServer>> = OnceLock::new();
    started(&NODES, || servers::redlock::start(5, &[]))
}

/// Five others, of which one has been frozen.
fn four_nodes_and_one() -> Result<&'static Vec<PrivateServer>, Missing> {
    static NODES: Started<Vec<PrivateServer>> = OnceLock::new();
    started(&NODES, || {
        let nodes = servers::redlock::start(5, &[])?;
        nodes[2].freeze();
        Ok(nodes)
    })
}

fn nodes(servers: &[PrivateServer]) -> Vec<String> {
    servers.iter().map(|server| server.url().to_owned()).collect()
}
