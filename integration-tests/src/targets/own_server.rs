//! Targets on servers of their own, which may be killed.

use std::sync::Arc;

use async_trait::async_trait;
use polylock_core::{Result, Store};
use polylock_testkit::{Missing, OwnServer, Target};
use tokio::task::block_in_place;

use super::namespace::{Namespace, PESSIMISTIC, blobs_of, keys_of, path_of, tables_of};
use crate::servers::{PrivateServer, azurite, mariadb, postgres, redis, valkey, zookeeper};

#[derive(Debug)]
struct Own {
    namespace: Namespace,
    server: PrivateServer,
}

/// One like the target at `url`, if there is a kind of server for it that one can restart here.
pub(super) fn like(url: &str) -> Result<Option<Arc<dyn OwnServer>>> {
    let own = block_in_place(|| match url.split_once(':').map(|(scheme, _)| scheme) {
        Some("redis") => Some(of(redis::start(redis::DURABLE), |server| keys_of(server, "redis"))),
        Some("valkey") => Some(of(valkey::start(redis::DURABLE), |server| keys_of(server, "valkey"))),
        // An ensemble, too: a majority that is killed is as good as the one server.
        Some("zookeeper") => Some(of(zookeeper::start(&[]), path_of)),
        Some("az") => Some(of(azurite::start(azurite::DURABLE), blobs_of)),
        // Their locks end with the connections, and so with the server; memory and SQLite have no server. A process that is killed
        // in the middle of a write to a file has tests of its own.
        _ if url.contains(PESSIMISTIC) => None,
        Some("postgres") => Some(of(postgres::start(&[]), |server| tables_of(server, "postgres"))),
        Some("mysql") => Some(of(mariadb::start(&[]), |server| tables_of(server, "mysql"))),
        _ => None,
    });
    Ok(own.map(|own| Arc::new(own) as Arc<dyn OwnServer>))
}

fn of(
    server: Result<PrivateServer, Missing>,
    namespace: impl FnOnce(&crate::servers::Server) -> Result<Namespace, Missing>,
) -> Own {
    let own = server.and_then(|server| Ok(Own { namespace: namespace(&server)?, server }));
    own.unwrap_or_else(|Missing(why)| panic!("the target is there, and its server is missing: {why}"))
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
