//! Redis and Valkey by the crate `redis`: `SET NX PX`, and a script that compares and deletes, as in
//! <https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>.

use async_trait::async_trait;
use polylock::StoreUrl;
use polylock_redis::single::Config;
use redis::{AsyncConnectionConfig, Client, Script, aio::MultiplexedConnection};

use super::client::{Floor, RawClient, store_keys};
use crate::{Error, Result};

/// The lease of a key. It limits the time for which the key of a pair remains that did not end.
const LEASE_MS: u32 = 30_000;

/// One connection.
#[derive(Clone)]
pub(super) struct Node {
    connection: MultiplexedConnection,
    compare_and_delete: Script,
    prefix: String,
}

impl Node {
    /// Opens a connection. The keys are deleted with the namespace.
    pub(super) async fn open(client: &Client, namespace: &str) -> Result<Self> {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let connection = client.get_multiplexed_async_connection_with_config(&config).await;
        let script = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
        let connection = connection.map_err(Error::raw)?;
        Ok(Self {
            connection,
            compare_and_delete: Script::new(script),
            prefix: format!("{{{namespace}}}:raw:"),
        })
    }

    pub(super) async fn set(&self, name: &str, owner: &[u8]) -> Result<()> {
        let mut set = redis::cmd("SET");
        set.arg(format!("{}{name}", self.prefix)).arg(owner).arg("NX").arg("PX").arg(LEASE_MS);
        set.query_async::<()>(&mut self.connection.clone()).await.map_err(Error::raw)
    }

    pub(super) async fn delete(&self, name: &str, owner: &[u8]) -> Result<()> {
        let mut script = self.compare_and_delete.key(format!("{}{name}", self.prefix));
        let deleted = script.arg(owner).invoke_async::<()>(&mut self.connection.clone()).await;
        deleted.map_err(Error::raw)
    }
}

struct Raw(Node);

pub(super) async fn open(
    url: &StoreUrl,
    namespace: &str,
    floor: Floor,
) -> Result<Option<Box<dyn RawClient>>> {
    if floor == Floor::Least {
        return Ok(None);
    }
    let client = Config::from_url(url, &mut store_keys(url)?)?.client()?;
    Ok(Some(Box::new(Raw(Node::open(&client, namespace).await?))))
}

#[async_trait]
impl RawClient for Raw {
    fn description(&self) -> &'static str {
        "SET NX PX, and a script that compares and deletes, on one connection"
    }

    async fn pair(&mut self, name: &str, owner: [u8; 16]) -> Result<()> {
        self.0.set(name, &owner).await?;
        self.0.delete(name, &owner).await
    }

    async fn trip(&mut self, name: &str) -> Result<bool> {
        // A script that finds nothing.
        self.0.delete(name, b"absent").await.map(|()| true)
    }

    fn share(&self) -> Option<Box<dyn RawClient>> {
        Some(Box::new(Self(self.0.clone())))
    }
}
