//! Targets on servers of their own, which may be killed.

use std::sync::Arc;

use async_trait::async_trait;
use polylock_core::{Result, Store};
use polylock_testkit::{Missing, OwnServer, Target};
use tokio::task::block_in_place;

use super::namespace::{Namespace, PESSIMISTIC, blobs_of, keys_of, path_of, sessions_of, tables_of};
use crate::servers::{PrivateServer, Server, azurite, mariadb, postgres, redis, valkey, zookeeper};

/// A namespace in a server of its own.
#[derive(Debug)]
pub struct Own {
    /// The namespace.
    pub namespace: Namespace,
    /// The server, which keeps its data when it is killed.
    pub server: PrivateServer,
}

/// Starts a server like that of the target with this name.
///
/// # Errors
/// [`Missing`] if it is not installed, or the target has several servers or none.
///
/// # Panics
/// If the server does not start, with its log.
pub fn own(target: &str) -> Result<Own, Missing> {
    let of = |server: Result<PrivateServer, Missing>,
              namespace: fn(&Server) -> Result<Namespace, Missing>| {
        let server = server?;
        Ok(Own { namespace: namespace(&server)?, server })
    };
    // A commit that does not wait for the disk is lost with the server, also after some seconds.
    let settings = &["wal_writer_delay=10s"];
    block_in_place(|| match target {
        "postgres" => of(postgres::start(settings), |server| tables_of(server, "postgres")),
        "mariadb" => of(mariadb::start(&[]), |server| tables_of(server, "mysql")),
        "postgres_pessimistic" => of(postgres::start(settings), |server| sessions_of(server, "postgres")),
        "mariadb_pessimistic" => of(mariadb::start(&[]), |server| sessions_of(server, "mysql")),
        "redis" => of(redis::start(redis::DURABLE), |server| keys_of(server, "redis")),
        "valkey" => of(valkey::start(redis::DURABLE), |server| keys_of(server, "valkey")),
        "zookeeper" => of(zookeeper::start(&[]), path_of),
        "azure" => of(azurite::start(azurite::DURABLE), blobs_of),
        _ => Err(Missing(format!("the target {target:?} has no single server"))),
    })
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
}

#[async_trait]
impl OwnServer for Own {
    async fn restart(&self) {
        block_in_place(|| self.server.restart());
    }
}
