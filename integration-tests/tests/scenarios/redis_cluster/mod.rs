//! A Redis Cluster: the routing of each lock to its node, slots that move, nodes that fail.

mod encrypted;
mod failover;
mod fence;
mod garbled;
mod keeping;
mod moving;
mod routing;

use std::{collections::BTreeMap, sync::LazyLock};

use polylock::Locks;
use polylock_integration_tests::servers::redis_cluster::{self, Cluster};

/// The cluster of the tests that affect only their own locks.
fn shared() -> &'static Cluster {
    static SHARED: LazyLock<Cluster> = LazyLock::new(|| redis_cluster::start(&[]).unwrap());
    &SHARED
}

/// Returns the URL of a store in a cluster, with a prefix.
fn url(cluster: &Cluster, prefix: &str) -> String {
    format!("{}?polylock.namespace={prefix}", cluster.url())
}

/// Returns the name of a lock, and the slot of its bucket below `prefix`, for each of the three primaries in order.
async fn names_by_primary(cluster: &Cluster, prefix: &str) -> Vec<(String, u16)> {
    let others = format!("{prefix}/names");
    let locks = Locks::connect(&url(cluster, &others)).await.unwrap();
    let mut found: BTreeMap<usize, (String, u16)> = BTreeMap::new();
    for number in 0.. {
        let name = format!("lock-{number}");
        let guard = locks.lock(&name).acquire().await.unwrap();
        for node in 0..3 {
            let keys: Vec<String> = cluster.ask(node, &["KEYS", &format!("{{{others}:*:h:{name}")]).await;
            if let Some(key) = keys.first() {
                // The bucket is that of the name, whatever the prefix.
                let bucket = key.trim_start_matches(&format!("{{{others}:")).split('}').next().unwrap();
                let slot: u16 =
                    cluster.ask(node, &["CLUSTER", "KEYSLOT", &format!("{{{prefix}:{bucket}}}")]).await;
                if let Some(primary) = cluster.primary_of(slot, 0).await {
                    found.entry(primary).or_insert((name.clone(), slot));
                }
            }
        }
        guard.release().await.unwrap();
        if found.len() == 3 {
            return found.into_values().collect();
        }
    }
    unreachable!()
}
