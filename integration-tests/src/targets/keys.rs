//! Entries of stores in Redis, counted past the store.

use redis::{RedisResult, aio::MultiplexedConnection};

use super::objects::Objects;
use crate::servers::redis::connect;

/// The holds and waiters of a single server below `prefix`.
pub(super) async fn in_server(url: &str, prefix: &str) -> RedisResult<u64> {
    below(url, &format!("{{{prefix}}}")).await
}

/// The same of a cluster with these primaries.
pub(super) async fn in_cluster(nodes: &[String], prefix: &str) -> RedisResult<u64> {
    let mut sum = 0;
    for node in nodes {
        sum += below(node, &format!("{{{prefix}:??}}")).await?;
    }
    Ok(sum)
}

/// The same in a server, of keys that begin with what matches `tag`.
async fn below(url: &str, tag: &str) -> RedisResult<u64> {
    let mut server = connect(url).await?;
    // A waiter has its place in one and its particulars in the other; one that is in only one of them counts as well.
    let (holds, places, waiters) = (
        sum(&mut server, "HLEN", &format!("{tag}:h:")).await?,
        sum(&mut server, "ZCARD", &format!("{tag}:q:")).await?,
        sum(&mut server, "HLEN", &format!("{tag}:w:")).await?,
    );
    Ok(holds + places.max(waiters))
}

/// The holds below `prefix` of the one of these nodes that has most.
pub(super) async fn in_nodes(nodes: &[String], prefix: &str) -> RedisResult<u64> {
    let mut most = 0;
    for node in nodes {
        let mut server = connect(node).await?;
        most = most.max(sum(&mut server, "EXISTS", &format!("{{{prefix}}}:r:")).await?);
    }
    Ok(most)
}

/// All keys of this server.
pub(super) async fn all(url: &str) -> RedisResult<u64> {
    redis::cmd("DBSIZE").query_async(&mut connect(url).await?).await
}

/// Deletes all keys below `prefix` on each of these servers.
pub(super) async fn delete(servers: &[String], prefix: &str) -> RedisResult<()> {
    for server in servers {
        let mut server = connect(server).await?;
        // In a cluster each bucket has braces of its own.
        for tag in [format!("{{{prefix}}}"), format!("{{{prefix}:??}}")] {
            let keys: Vec<Vec<u8>> =
                redis::cmd("KEYS").arg(format!("{tag}:*")).query_async(&mut server).await?;
            for key in keys {
                redis::cmd("DEL").arg(key).exec_async(&mut server).await?;
            }
        }
    }
    Ok(())
}

/// The keys of these objects on all servers.
pub(super) async fn count(servers: &[String], objects: Objects<'_>) -> RedisResult<u64> {
    let mut count = 0;
    for server in servers {
        let mut server = connect(server).await?;
        let keys: Vec<String> =
            redis::cmd("KEYS").arg(format!("{{{}*", objects.begin)).query_async(&mut server).await?;
        count += keys.iter().filter(|key| objects.contains(&key[1..])).count() as u64;
    }
    Ok(count)
}

/// What `command` says of each of the keys that begin with this, added up.
async fn sum(server: &mut MultiplexedConnection, command: &str, beginning: &str) -> RedisResult<u64> {
    // Nothing in it is special in a pattern: a prefix is a name that a server gave.
    let (mut cursor, mut sum) = (0_u64, 0);
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(format!("{beginning}*")).arg("COUNT").arg(1000);
        let (next, keys): (u64, Vec<Vec<u8>>) = scan.query_async(server).await?;
        for key in keys {
            sum += redis::cmd(command).arg(key).query_async::<u64>(server).await?;
        }
        if next == 0 {
            return Ok(sum);
        }
        cursor = next;
    }
}
