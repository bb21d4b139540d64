//! Entries of the store in ZooKeeper, counted past the store.

use zookeeper_client::{Client, Error};

use super::objects::Objects;
use crate::{clock, servers::zookeeper};

/// The holds and waiters below `root`.
pub(super) async fn below(url: &str, root: &str) -> Result<u64, Error> {
    let client = open(url).await?;
    let locks = match client.list_children(root).await {
        Err(Error::NoNode) => return Ok(0),
        locks => locks?,
    };
    let mut count = 0;
    for lock in locks {
        match client.list_children(&format!("{root}/{lock}")).await {
            // Empty for long enough to be gone.
            Err(Error::NoNode) => {}
            children => count += children?.len() as u64,
        }
    }
    Ok(count)
}

/// All nodes of the first of these servers.
pub(super) async fn all(url: &str) -> u64 {
    zookeeper::status(url.split(',').next().unwrap_or(url), "zk_znode_count").await
}

/// Deletes `root` and everything below it in one transaction, so that nothing that is made in between is deleted.
pub(super) async fn delete(url: &str, root: &str) -> Result<(), Error> {
    let client = open(url).await?;
    let children = async |path: &str| match client.list_children(path).await {
        Err(Error::NoNode) => Ok(Vec::new()),
        children => children,
    };
    clock::until("everything is deleted", async || {
        let all = async {
            let mut writer = client.new_multi_writer();
            for lock in children(root).await? {
                let lock = format!("{root}/{lock}");
                for request in children(&lock).await? {
                    writer.add_delete(&format!("{lock}/{request}"), None)?;
                }
                writer.add_delete(&lock, None)?;
            }
            writer.add_delete(root, None)?;
            Ok::<_, Error>(writer.commit().await)
        };
        // It fails if a node was made or deleted meanwhile.
        matches!(all.await, Ok(Ok(_)))
    })
    .await;
    Ok(())
}

/// The nodes of these objects.
pub(super) async fn count(url: &str, objects: Objects<'_>) -> Result<u64, Error> {
    let nodes = open(url).await?.list_children("/").await?;
    Ok(nodes.iter().filter(|node| objects.contains(node)).count() as u64)
}

async fn open(url: &str) -> Result<Client, Error> {
    let (_, servers) = url.split_once("://").unwrap_or_default();
    let client = Client::connect(servers.trim_end_matches('/')).await?;
    client.sync("/").await?;
    Ok(client)
}
