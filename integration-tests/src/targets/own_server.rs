//! Targets on servers of their own, which may be killed.

use std::sync::Arc;

use async_trait::async_trait;
use polylock_core::{Result, Store};
use polylock_testkit::{Missing, OwnServer, Target};
use tokio::task::block_in_place;

use super::namespace::{
    Namespace, PESSIMISTIC, blobs_of, file, keys_of, nodes_of, nodes_with, path_of, services_of, sessions_of,
    tables_of,
};
use crate::{
    proxy::Proxy,
    servers::{
        PrivateServer, Server, azurite, lock_service, mariadb, postgres, redis, redlock, valkey,
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
    /// A ZooKeeper ensemble.
    Ensemble(Ensemble),
    /// Lock services in front of one store.
    Services {
        /// The services.
        services: Vec<PrivateServer>,
        /// The server of the store.
        store: PrivateServer,
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
            Self::Ensemble(ensemble) => ensemble.members(),
            Self::Services { services, .. } => services,
        }
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
            let tables = Box::new(tables_of(&store, "postgres")?);
            let services = lock_service::start(2, tables.url())?;
            let urls = services.iter().map(|service| service.url());
            Ok(Own { namespace: services_of(urls)?, servers: Servers::Services { services, store, tables } })
        }
        "azure" => of(azurite::start(settings), blobs_of),
        _ => Err(Missing(format!("the target {target:?} has no servers of its own"))),
    })?;
    if !keys.is_empty() && !target.starts_with("redlock") {
        own.namespace.url = format!("{}&{keys}", own.namespace.url);
    }
    Ok(own)
}

/// Returns proxies in front of these servers, which are in `url`, and the URL through them.
#[must_use]
pub fn route<'s>(servers: impl IntoIterator<Item = &'s PrivateServer>, url: &str) -> (Vec<Proxy>, String) {
    let start = if url.starts_with("az:") { Proxy::to_http } else { Proxy::to };
    let (mut proxies, mut url) = (Vec::new(), url.to_owned());
    for server in servers {
        let proxy = start(server.port());
        url = url.replace(&format!("127.0.0.1:{}", server.port()), &proxy.address().to_string());
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
