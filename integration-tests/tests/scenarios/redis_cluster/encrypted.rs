//! Encrypted connections to all nodes.

use polylock::{Fault, Locks};
use polylock_integration_tests::{
    clock,
    refusals::refusal,
    servers::{
        PrivateServer, redis,
        redis_cluster::{self, Cluster},
    },
    stores::wait_for_waiters,
};

fn url_with_authority(cluster: &Cluster, authority: &PrivateServer) -> String {
    let authority = authority.directory().join("ca.crt");
    format!("{}&polylock.tls_ca={}", super::url(cluster, "p"), authority.display())
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_all_nodes_require_the_right_authority() {
    let (cluster, alone) = (redis_cluster::start_tls(&[]).unwrap(), redis::start_tls(&[]).unwrap());
    let node = &cluster.nodes()[0];
    let url = url_with_authority(&cluster, node);
    let stores = [Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap()];
    let mut nodes = [0; redis_cluster::PRIMARIES];
    for number in 0.. {
        let name = format!("lock-{number}");
        let guard = stores[0].lock(&name).acquire().await.unwrap();
        assert!(stores[1].lock(&name).try_acquire().await.unwrap().is_none());
        let waiting = tokio::spawn(stores[1].lock(&name).acquire());
        wait_for_waiters(&stores[0], &name, 1).await;
        for (node, served) in nodes.iter_mut().enumerate() {
            *served += cluster.ask::<Vec<String>>(node, &["KEYS", &format!("{{p:*:h:{name}")]).await.len();
        }
        let token = guard.fencing_token();
        guard.release().await.unwrap();
        let next = waiting.await.unwrap().unwrap();
        assert!(next.fencing_token() > token);
        next.release().await.unwrap();
        if !nodes.contains(&0) {
            break;
        }
    }

    // The nodes are found by their host names. The certificates are also valid for these.
    for node in 0..cluster.nodes().len() {
        for (setting, value) in
            [("cluster-announce-hostname", "localhost"), ("cluster-preferred-endpoint-type", "hostname")]
        {
            cluster.ask::<()>(node, &["CONFIG", "SET", setting, value]).await;
        }
    }
    cluster.ask::<()>(1, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    clock::until("the nodes know the host names", async || {
        for node in 0..cluster.nodes().len() {
            if cluster.ask::<String>(node, &["CLUSTER", "NODES"]).await.matches(",localhost").count() < 6 {
                return false;
            }
        }
        true
    })
    .await;
    let (_, text) = refusal(&url).await;
    assert!(text.contains(&format!("localhost:{}", cluster.nodes()[1].port())), "{text}");

    // Signed by an unknown authority, and by another than expected.
    for url in [super::url(&cluster, "p"), url_with_authority(&cluster, &alone)] {
        let (fault, text) = refusal(&url).await;
        assert!(fault == Some(Fault::Permanent) && text.contains("polylock.tls_ca"), "{fault:?}: {text}");
    }
    // The other kind of connection.
    let (fault, text) = refusal(&super::url(&cluster, "p").replace("rediss-", "redis-")).await;
    assert!(fault == Some(Fault::Temporary) && text.contains("write rediss-cluster://"), "{fault:?}: {text}");
    let plain = redis::start(&[]).unwrap();
    let (fault, text) = refusal(&plain.url().replace("redis:", "rediss-cluster:")).await;
    assert!(fault == Some(Fault::Temporary) && text.contains("write redis-cluster://"), "{fault:?}: {text}");
    // A server alone, and a node of a cluster, name the other scheme.
    let (fault, text) = refusal(&alone_as_cluster(&alone)).await;
    assert!(fault == Some(Fault::Permanent) && text.contains("(or rediss://)"), "{fault:?}: {text}");
    let authority = node.directory().join("ca.crt");
    let (fault, text) = refusal(&format!("{}?polylock.tls_ca={}", node.url(), authority.display())).await;
    assert!(fault == Some(Fault::Permanent) && text.contains("(or rediss-cluster://)"), "{fault:?}: {text}");
}

fn alone_as_cluster(alone: &PrivateServer) -> String {
    let authority = alone.directory().join("ca.crt");
    format!("{}?polylock.tls_ca={}", alone.url().replace("rediss:", "rediss-cluster:"), authority.display())
}
