//! The store of a run: its servers, and the four processes with their relays.

use std::{io, net::SocketAddr, path::Path, time::Duration};

use futures_util::future::join_all;
use polylock::{HoldLifetime, Locks, Modes, Order};
use polylock_testkit::Missing;
use tokio::task::block_in_place;

use super::{
    acts::{Can, ROLES, Role},
    copies::Upstream,
    frames::Protocol,
    history::Bounds,
    message::{Action, Way},
    relay::{Relays, TIMEOUT},
    remote::Remote,
};
use crate::{
    servers::{PrivateServer, redis},
    service::Service,
    targets::{Own, own_with},
};

/// The stores, as arguments.
pub const STORES: [&str; 11] = [
    "redis",
    "postgres",
    "mariadb",
    "redlock3",
    "redlock5",
    "zookeeper",
    "azure",
    "http_redis",
    "http_postgres",
    "both_redis_postgres",
    "sqlite",
];

/// The time for which a store may be away.
const OUTAGE: &str = "polylock.outage=8s";

/// The time until a release in the background is confirmed, although a message was withheld, on a busy machine.
const SETTLED: Duration = Duration::from_secs(8);

/// The time in which Azure's lease of a late acquisition is released: a second after its arrival, on a busy machine.
const UNDONE: Duration = Duration::from_millis(2500);

/// The time in which a session of ZooKeeper ends without a sign of life.
const SESSION: Duration = Duration::from_secs(4);

/// A store with its servers.
#[derive(Debug)]
pub struct Servers {
    /// The name of the store.
    pub store: &'static str,
    /// The URL without relays.
    pub url: String,
    /// The URL of the store behind a lock service, or of the last store.
    pub namespace: String,
    /// The servers to which clients connect.
    pub upstreams: Vec<Upstream>,
    _services: Vec<Service>,
    _own: Vec<Own>,
}

impl Servers {
    /// Starts the servers of the store with this name.
    ///
    /// # Errors
    /// [`Missing`] if they are not installed, or there is no such store.
    ///
    /// # Panics
    /// If a server does not start, with its log.
    pub fn start(name: &str) -> Result<Self, Missing> {
        let store = STORES.iter().find(|store| **store == name);
        let store =
            *store.ok_or_else(|| Missing(format!("there is no store {name:?}: {}", STORES.join(", "))))?;
        block_in_place(|| Self::start_blocking(store))
    }

    fn start_blocking(store: &'static str) -> Result<Self, Missing> {
        // Some stores have a longer timeout by default.
        let keys = format!("polylock.operation_timeout={}s&{OUTAGE}", TIMEOUT.as_secs());
        let many = ["max_connections=2000"];
        let redis = || own_with("redis", redis::DURABLE, &keys);
        let postgres = || own_with("postgres", &many, &keys);
        let (own, services) = match store {
            "http_redis" => (vec![redis()?], 2),
            "http_postgres" => (vec![postgres()?], 2),
            "both_redis_postgres" => (vec![redis()?, postgres()?], 0),
            "redis" => (vec![redis()?], 0),
            "postgres" => (vec![postgres()?], 0),
            "mariadb" => (vec![own_with("mariadb", &many, &keys)?], 0),
            "redlock3" | "redlock5" => {
                let keys = format!("polylock.restart=trust&polylock.max_ttl=1h&{OUTAGE}");
                (vec![own_with(store, redis::DURABLE, &keys)?], 0)
            }
            "zookeeper" => (vec![own_with("zookeeper", &["maxClientCnxns=0"], "")?], 0),
            "azure" => (vec![own_with("azure", &[], &keys)?], 0),
            _ => (vec![own_with("sqlite_full", &[], &keys)?], 0),
        };
        let services: Vec<Service> = (0..services).map(|_| Service::start(own[0].namespace.url())).collect();
        let urls: Vec<&str> = own.iter().map(|own| own.namespace.url()).collect();
        let namespace = urls.last().map_or_else(String::new, |url| (*url).to_owned());
        let (url, upstreams) = if services.is_empty() {
            let upstreams =
                own.iter().flat_map(|own| own.servers.all().iter().map(|server| upstream(own, server)));
            let url = match (store, urls.len()) {
                ("zookeeper", _) => format!("{}&{OUTAGE}", own[0].namespace.url_with_lease(SESSION)),
                (_, 2) => format!("both:{}", urls.join(";")),
                _ => urls[0].to_owned(),
            };
            (url, upstreams.collect())
        } else {
            let addresses: Vec<&str> = services
                .iter()
                .filter_map(|service| service.url().split_once("://"))
                .map(|(_, it)| it)
                .collect();
            let url = format!("polylock+http://{}?{keys}", addresses.join(","));
            let upstreams = addresses.iter().filter_map(|address| {
                let address = address.parse().ok()?;
                Some(Upstream { protocol: Protocol::Http2, address, database: String::new() })
            });
            (url, upstreams.collect())
        };
        Ok(Self { store, url, namespace, upstreams, _services: services, _own: own })
    }
}

fn upstream(own: &Own, server: &PrivateServer) -> Upstream {
    let url = own.namespace.url();
    let protocol = match url.split_once(':').map(|(scheme, _)| scheme) {
        Some("postgres") => Protocol::Postgres,
        Some("mysql") => Protocol::MySql,
        Some("zookeeper") => Protocol::ZooKeeper,
        Some("az") => Protocol::Http,
        _ => Protocol::Redis,
    };
    let database = url.split_once('?').map_or(url, |(url, _)| url).to_owned();
    Upstream { protocol, address: SocketAddr::from(([127, 0, 0, 1], server.port())), database }
}

/// Opens the connections of all processes, and acquires a lock on each. Many that are opened while schedules run keep a busy machine from renewing
/// the leases for seconds, and the first claim of a client waits for other messages: Redlock's servers record its list before.
async fn open(processes: &[(Remote, Relays)], lanes: usize) -> io::Result<()> {
    for lane in 0..lanes {
        let opening = processes.iter().enumerate().map(async |(number, (remote, _))| {
            let owner = format!("opening/{lane}/{number}");
            let (name, guard) = (owner.clone(), owner.clone());
            let acquire =
                Action::Acquire { name, owner, shared: false, ttl: None, wait: None, guard: guard.clone() };
            remote.call(lane, acquire).await?;
            remote.call(lane, Action::End { guard, way: Way::Release }).await
        });
        if join_all(opening).await.iter().any(Option::is_none) {
            return Err(io::Error::other("a process has ended, or does not reply"));
        }
    }
    Ok(())
}

/// The processes of a run on one store.
#[derive(Debug)]
pub struct Site {
    /// The store.
    pub servers: Servers,
    /// What the store can do.
    pub can: Can,
    /// The times that it may take.
    pub bounds: Bounds,
    processes: Vec<(Remote, Relays)>,
}

impl Site {
    /// Starts the four processes, each with this number of connections.
    ///
    /// # Errors
    /// If a process does not start, or the store can't be opened.
    pub async fn start(servers: Servers, worker: &Path, lanes: usize) -> io::Result<Self> {
        let mut processes = Vec::new();
        let behind: Vec<(Protocol, SocketAddr)> =
            servers.upstreams.iter().map(|server| (server.protocol, server.address)).collect();
        for _ in ROLES {
            let relays = Relays::start(&behind).await?;
            let mut url = servers.url.clone();
            for ((_, server), relay) in behind.iter().zip(&relays.addresses) {
                url = url.replace(&server.to_string(), &relay.to_string());
            }
            processes.push((Remote::start(worker, &url, lanes)?, relays));
        }
        open(&processes, lanes).await?;
        let locks = Locks::connect(&servers.url).await.map_err(|error| io::Error::other(error.chain()))?;
        let can = locks.capabilities();
        let is_session = can.hold_lifetime == HoldLifetime::Session;
        let can = Can {
            shared: can.modes != Modes::ExclusiveOnly,
            handles: !is_session,
            ttl: (!is_session).then(|| can.ttl.clone()),
            is_fifo: can.order == Order::Fifo,
            servers: behind.len(),
            is_quorum: servers.store.starts_with("redlock"),
            is_both: servers.store.starts_with("both"),
        };
        let shows_last_grant = servers.store == "azure";
        let undone = if shows_last_grant { UNDONE } else { Duration::ZERO };
        Ok(Self { servers, can, bounds: Bounds { settled: SETTLED, undone, shows_last_grant }, processes })
    }

    /// Returns the process with this role.
    #[must_use]
    pub fn remote(&self, role: Role) -> &Remote {
        &self.processes[role as usize].0
    }

    /// Returns the relays of the process with this role.
    #[must_use]
    pub fn relays(&self, role: Role) -> &Relays {
        &self.processes[role as usize].1
    }
}
