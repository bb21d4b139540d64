//! Redlock by the crate `redis`: the commands of one server, to all at once, until a majority has replied.

use async_trait::async_trait;
use futures_util::{StreamExt, stream::FuturesUnordered};
use polylock::StoreUrl;
use polylock_redis::redlock::Config;

use super::{
    client::{Floor, RawClient, store_keys},
    redis::Node,
};
use crate::{Error, Result};

#[derive(Clone)]
struct Raw(Vec<Node>);

pub(super) async fn open(
    url: &StoreUrl,
    namespace: &str,
    floor: Floor,
) -> Result<Option<Box<dyn RawClient>>> {
    if floor == Floor::Least {
        return Ok(None);
    }
    let mut nodes = Vec::new();
    for client in Config::from_url(url, &mut store_keys(url)?)?.clients()? {
        nodes.push(Node::open(&client, namespace).await?);
    }
    Ok(Some(Box::new(Raw(nodes))))
}

/// Waits until a majority of `nodes` has replied without an error.
async fn majority(
    mut replies: FuturesUnordered<impl Future<Output = Result<()>>>,
    nodes: usize,
) -> Result<()> {
    let (mut successes, mut last) = (0, None);
    while let Some(reply) = replies.next().await {
        match reply {
            Ok(()) => successes += 1,
            Err(error) => last = Some(error),
        }
        if successes > nodes / 2 {
            return Ok(());
        }
    }
    Err(last.unwrap_or_else(|| Error::raw("no majority of the servers has replied")))
}

#[async_trait]
impl RawClient for Raw {
    fn description(&self) -> &'static str {
        "SET NX PX, and a script that compares and deletes, on all servers at once, until a majority has replied"
    }

    async fn pair(&mut self, name: &str, owner: [u8; 16]) -> Result<()> {
        majority(self.0.iter().map(|node| node.set(name, &owner)).collect(), self.0.len()).await?;
        majority(self.0.iter().map(|node| node.delete(name, &owner)).collect(), self.0.len()).await
    }

    fn share(&self) -> Option<Box<dyn RawClient>> {
        Some(Box::new(self.clone()))
    }
}
