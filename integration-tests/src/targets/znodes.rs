//! Entries of the store in ZooKeeper, counted past the store.

use zookeeper_client::{Client, Error};

/// The holds and waiters below `root`.
pub(super) async fn below(url: &str, root: &str) -> Result<u64, Error> {
    let (_, servers) = url.split_once("://").unwrap_or_default();
    let client = Client::connect(servers.trim_end_matches('/')).await?;
    client.sync("/").await?;
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
