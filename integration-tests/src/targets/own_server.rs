//! Targets on servers of their own, which may be killed.

use std::sync::Arc;

use async_trait::async_trait;
use polylock_core::{Result, Store};
use polylock_testkit::{Missing, OwnServer, Target};
use tokio::task::block_in_place;

use super::namespace::{
    Namespace, PESSIMISTIC, blobs_of, file, keys_of, nodes_of, nodes_with, path_of, services_of, sessions_of,
    tables_of, watched_by,
};
use crate::{
    proxy::Proxy,
    servers::{
        PrivateServer, Server, azurite, lock_service, mariadb,
        pair::{self, Pair, SwitchOver},
        postgres, redis,
        redis_sentinel::{self, Watched},
        redlock, valkey,
        zookeeper::{self, Ensemble},
    },
};

/// A namespace on servers of its own.
#[derive(Debug)]
pub struct Own {
    /// The namespace.
    pub namespace: Namespace,
    /// The servers.
    pub servers: Servers,
}

/// The servers of one store.
#[derive(Debug)]
pub enum Servers {
    /// The store is a file.
    None,
    /// One server.
    One(PrivateServer),
    /// Independent ones.
    Nodes(Vec<PrivateServer>),
    /// Two servers behind one address, which change their roles.
    Pair(Pair),
    /// Redis servers that Sentinels watch.
    Watched(Watched),
    /// A ZooKeeper ensemble.
    Ensemble(Ensemble),
    /// Lock services in front of one store.
    Services {
        /// The services.
        services: Vec<PrivateServer>,
        /// The servers of the store.
        store: Box<Servers>,
        /// The namespace in it.
        tables: Box<Namespace>,
    },
}

impl Own {
    /// Returns the namespace in which entries can be counted: of lock services, that of their store.
    #[must_use]
    pub const fn counted(&self) -> &Namespace {
        match &self.servers {
            Servers::Services { tables, .. } => tables,
            _ => &self.namespace,
        }
    }
}

impl Servers {
    /// Returns all to which clients connect.
    #[must_use]
    pub fn all(&self) -> &[PrivateServer] {
        match self {
            Self::None => &[],
            Self::One(server) => std::slice::from_ref(server),
            Self::Nodes(nodes) => nodes,
            Self::Pair(pair) => pair.members(),
            Self::Watched(watched) => &watched.servers,
            Self::Ensemble(ensemble) => ensemble.members(),
            Self::Services { services, .. } => services,
        }
    }

    /// Returns proxies in front of the addresses of these servers, which are in `url`, and the URL through them.
    #[must_use]
    pub fn route(&self, url: &str) -> (Vec<Proxy>, String) {
        match self {
            Self::Pair(pair) => route_to([pair.port()], url),
            // The clients connect to the address that the Sentinels name.
            Self::Watched(_) => (Vec::new(), url.to_owned()),
            _ => route(self.all(), url),
        }
    }

    /// Ends the role of the server that accepts the writes. Calls `wait` while none accepts them, and returns when one does: the other one
    /// of two, the next leader of an ensemble, or the same one if there is no other. [`rejoin`](Self::rejoin) must follow.
    ///
    /// # Panics
    /// If a server refuses.
    pub fn switch_over(&self, how: SwitchOver, wait: &dyn Fn()) {
        match self {
            Self::Pair(pair) => pair.switch_over(how, wait),
            Self::Watched(watched) => watched.switch_over(wait),
            Self::Services { store, .. } => store.switch_over(how, wait),
            Self::Ensemble(ensemble) => interrupt(&ensemble.members()[ensemble.leader()], how, wait),
            _ => self.all().iter().take(1).for_each(|server| interrupt(server, how, wait)),
        }
    }

    /// Completes a switch-over while clients go on: the former primary becomes the standby.
    ///
    /// # Panics
    /// If a server refuses.
    pub fn rejoin(&self) {
        match self {
            Self::Pair(pair) => pair.rejoin(),
            Self::Services { store, .. } => store.rejoin(),
            _ => {}
        }
    }
}

/// Kills or stops the server for a while.
fn interrupt(server: &PrivateServer, how: SwitchOver, wait: &dyn Fn()) {
    if how.kills {
        server.kill();
        wait();
        server.restart();
    } else {
        server.freeze();
        wait();
        server.thaw();
    }
}

/// Starts servers like those of the target with this name. They keep their data when they are killed.
///
/// # Errors
/// [`Missing`] if they are not installed, or the target shares those of other targets.
///
/// # Panics
/// If a server does not start, with its log.
pub fn own(target: &str) -> Result<Own, Missing> {
    let settings: &[&str] = match target {
        // A commit that does not wait for the disk is lost with the server, also after some seconds.
        "postgres" | "postgres_pessimistic" => &["wal_writer_delay=10s"],
        "redis" | "valkey" | "redlock3" => redis::DURABLE,
        "azure" => azurite::DURABLE,
        _ => &[],
    };
    own_with(target, settings, "")
}

/// Starts servers like those of the target with this name, with these settings, and with these keys in the URL of the namespace.
///
/// # Errors
/// [`Missing`] if they are not installed, or the target shares those of other targets.
///
/// # Panics
/// If a server does not start, with its log.
pub fn own_with(target: &str, settings: &[&str], keys: &str) -> Result<Own, Missing> {
    let of = |server: Result<PrivateServer, Missing>,
              namespace: fn(&Server) -> Result<Namespace, Missing>| {
        let server = server?;
        Ok(Own { namespace: namespace(&server)?, servers: Servers::One(server) })
    };
    let nodes = |count| {
        let nodes = redlock::start(count, settings)?;
        let urls: Vec<String> = nodes.iter().map(|node| node.url().to_owned()).collect();
        let namespace = if keys.is_empty() { nodes_of(&urls, []) } else { nodes_with(&urls, [], keys) };
        Ok(Own { namespace: namespace?, servers: Servers::Nodes(nodes) })
    };
    let mut own = block_in_place(|| match target {
        "sqlite_full" => Ok(Own { namespace: file("full")?, servers: Servers::None }),
        "postgres" => of(postgres::start(settings), |server| tables_of(server, "postgres")),
        "mariadb" => of(mariadb::start(settings), |server| tables_of(server, "mysql")),
        "postgres_pessimistic" => of(postgres::start(settings), |server| sessions_of(server, "postgres")),
        "mariadb_pessimistic" => of(mariadb::start(settings), |server| sessions_of(server, "mysql")),
        "redis" => of(redis::start(settings), |server| keys_of(server, "redis")),
        "valkey" => of(valkey::start(settings), |server| keys_of(server, "valkey")),
        "redlock3" => nodes(3),
        "redlock5" => nodes(5),
        "zookeeper" => of(zookeeper::start(settings), path_of),
        "zookeeper_ensemble" => {
            let ensemble = zookeeper::ensemble(3, settings)?;
            Ok(Own { namespace: path_of(&ensemble)?, servers: Servers::Ensemble(ensemble) })
        }
        "http_postgres" => {
            let store = postgres::start(settings)?;
            let tables = tables_of(&store, "postgres")?;
            in_front_of(Servers::One(store), tables)
        }
        "http_postgres_standby" => {
            let store = pair::postgres(settings)?;
            let mut tables = tables_of(&store, "postgres")?;
            tables.url = format!("{}&{keys}", tables.url);
            in_front_of(Servers::Pair(store), tables)
        }
        "postgres_standby" => behind(pair::postgres(settings), |pair| tables_of(pair, "postgres")),
        "mariadb_replica" => behind(pair::mariadb(settings), |pair| tables_of(pair, "mysql")),
        "redis_replica" => behind(pair::redis(settings), |pair| keys_of(pair, "redis")),
        "redis_sentinel" => {
            // Without another reason, they replace no primary while its writes are paused.
            let watching = format!("sentinel down-after-milliseconds {} 60000", redis_sentinel::NAME);
            let watched = redis_sentinel::start(settings, &[&watching])?;
            Ok(Own { namespace: watched_by(&watched)?, servers: Servers::Watched(watched) })
        }
        "azure" => of(azurite::start(settings), blobs_of),
        _ => Err(Missing(format!("the target {target:?} has no servers of its own"))),
    })?;
    if !keys.is_empty() && !target.starts_with("redlock") {
        let joint = if own.namespace.url.contains('?') { '&' } else { '?' };
        own.namespace.url = format!("{}{joint}{keys}", own.namespace.url);
    }
    Ok(own)
}

/// A store in a pair of servers.
fn behind(
    pair: Result<Pair, Missing>,
    namespace: fn(&Server) -> Result<Namespace, Missing>,
) -> Result<Own, Missing> {
    let pair = pair?;
    Ok(Own { namespace: namespace(&pair)?, servers: Servers::Pair(pair) })
}

/// Lock services in front of these tables.
fn in_front_of(store: Servers, tables: Namespace) -> Result<Own, Missing> {
    let services = lock_service::start(2, tables.url())?;
    let namespace = services_of(services.iter().map(|service| service.url()))?;
    let (store, tables) = (Box::new(store), Box::new(tables));
    Ok(Own { namespace, servers: Servers::Services { services, store, tables } })
}

/// Returns proxies in front of these servers, which are in `url`, and the URL through them.
#[must_use]
pub fn route<'s>(servers: impl IntoIterator<Item = &'s PrivateServer>, url: &str) -> (Vec<Proxy>, String) {
    route_to(servers.into_iter().map(PrivateServer::port), url)
}

fn route_to(ports: impl IntoIterator<Item = u16>, url: &str) -> (Vec<Proxy>, String) {
    let start = if url.starts_with("az:") { Proxy::to_http } else { Proxy::to };
    let (mut proxies, mut url) = (Vec::new(), url.to_owned());
    for port in ports {
        let proxy = start(port);
        url = url.replace(&format!("127.0.0.1:{port}"), &proxy.address().to_string());
        proxies.push(proxy);
    }
    (proxies, url)
}

/// One like the target at `url`, if there is a kind of server for it that one can restart here.
pub(super) fn like(url: &str) -> Result<Option<Arc<dyn OwnServer>>> {
    let target = match url.split_once(':').map(|(scheme, _)| scheme) {
        // Their locks end with the connections, and so with the server.
        _ if url.contains(PESSIMISTIC) => return Ok(None),
        // An ensemble, too: a majority that is killed is as good as the one server.
        Some(target @ ("postgres" | "redis" | "valkey" | "zookeeper")) => target,
        Some("mysql") => "mariadb",
        Some("az") => "azure",
        // Memory and SQLite have no server. A process that is killed in the middle of a write to a file has tests of its own.
        _ => return Ok(None),
    };
    let own = own(target)
        .unwrap_or_else(|Missing(why)| panic!("the target is there, and its server is missing: {why}"));
    Ok(Some(Arc::new(own)))
}

#[async_trait]
impl Target for Own {
    async fn connect(&self) -> Result<Store> {
        self.namespace.connect().await
    }

    async fn leftovers(&self) -> Result<Option<u64>> {
        self.namespace.leftovers().await
    }

    async fn leftovers_text(&self) -> Option<String> {
        self.namespace.leftovers_text().await
    }
}

#[async_trait]
impl OwnServer for Own {
    async fn restart(&self) {
        block_in_place(|| self.servers.all().iter().for_each(PrivateServer::restart));
    }
}
