//! ZooKeeper by the crate `zookeeper-client`: create a node, list the directory, and delete the node, as in
//! <https://zookeeper.apache.org/doc/current/recipes.html#sc_recipes_Locks>.

use async_trait::async_trait;
use futures_util::future::join;
use polylock::StoreUrl;
use polylock_zookeeper::{
    Config,
    zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error as Failure},
};

use super::client::{Floor, RawClient, store_keys};
use crate::{Error, Result};

const PERSISTENT: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());
const NUMBERED: CreateOptions<'static> = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());

/// One session.
#[derive(Clone)]
struct Raw {
    client: Client,
    root: String,
    /// True if the create and the list are sent at once.
    at_once: bool,
}

pub(super) async fn open(
    url: &StoreUrl,
    namespace: &str,
    floor: Floor,
) -> Result<Option<Box<dyn RawClient>>> {
    let config = Config::from_url(url, &mut store_keys(url)?)?;
    let client = config.open_client().await?;
    // Beside the root of the locks, as namespaces are, so that it is deleted with them.
    let (parent, _) = config.root().rsplit_once('/').unwrap_or_default();
    let root = format!("{parent}/{namespace}");
    for path in ancestors(&root) {
        match client.create(path, b"", &PERSISTENT).await {
            Ok(_) | Err(Failure::NodeExists) => {}
            Err(error) => return Err(Error::raw(error)),
        }
    }
    Ok(Some(Box::new(Raw { client, root, at_once: floor == Floor::Least })))
}

/// Returns the paths of a node and of those above it, from the top.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    let ends = path.match_indices('/').map(|(at, _)| at).skip(1).chain([path.len()]);
    ends.map(|end| &path[..end])
}

#[async_trait]
impl RawClient for Raw {
    fn description(&self) -> &'static str {
        "create a node, list the directory, delete the node, in one session"
    }

    async fn pair(&mut self, name: &str, owner: [u8; 16]) -> Result<()> {
        let directory = format!("{}/{name}", self.root);
        let prefix = format!("{directory}/{:032x}_", u128::from_be_bytes(owner));
        let create = self.client.create(&prefix, &owner, &NUMBERED);
        let (created, listed) = if self.at_once {
            join(create, self.client.list_children(&directory)).await
        } else {
            (create.await, self.client.list_children(&directory).await)
        };
        match created {
            Ok((_, number)) => {
                let path = format!("{prefix}{number}");
                if !listed.map_err(Error::raw)?.iter().any(|child| path.ends_with(child)) {
                    return Err(Error::raw("the new node is not in its directory"));
                }
                self.client.delete(&path, None).await.map_err(Error::raw)
            }
            // Only the first time.
            Err(Failure::NoNode) => match self.client.create(&directory, b"", &PERSISTENT).await {
                Ok(_) | Err(Failure::NodeExists) => Ok(()),
                Err(error) => Err(Error::raw(error)),
            },
            Err(error) => Err(Error::raw(error)),
        }
    }

    fn share(&self) -> Option<Box<dyn RawClient>> {
        Some(Box::new(self.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_path_is_a_node() {
        assert_eq!(ancestors("/a/b/c").collect::<Vec<_>>(), ["/a", "/a/b", "/a/b/c"]);
        assert_eq!(ancestors("/a").collect::<Vec<_>>(), ["/a"]);
    }
}
