//! Creates that reach a server long after their connection was given up.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{
    clock::{TIMEOUT, now, pause, until},
    proxy::{Direction, Flow, Proxy},
    servers::{Server, zookeeper},
};

use super::Namespace;

/// Far longer than the test: a late node would block the lock for that long.
const LONG: Duration = Duration::from_secs(60);

/// The delay of the create.
const LATE: Duration = Duration::from_secs(4);

/// 1. a create is held back on its way; the store gives the connection up, and continues its session on another one;
/// 2. the lock is acquired and released there;
/// 3. the create arrives, on a connection that its server has closed, or as one of a session that has moved to another server.
async fn check_no_effect(server: &Server, ports: &[u16]) {
    let namespace = Namespace::of(server);
    let raw = namespace.client().await;
    let proxies: Vec<_> = ports.iter().map(|port| Proxy::to(*port)).collect();
    let hosts: Vec<_> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
    let url = format!(
        "zookeeper://{}{}?polylock.session_timeout={}s",
        hosts.join(","),
        namespace.root,
        LONG.as_secs()
    );
    let here = Locks::connect(&url).await.unwrap();
    let there = Locks::connect(&namespace.url).await.unwrap();
    here.lock("a").acquire().await.unwrap().release().await.unwrap();
    for round in 0..2 {
        let connections = || proxies.iter().map(|proxy| proxy.counts().connections).sum::<u64>();
        let before = connections();
        proxies.iter().for_each(|proxy| proxy.set_existing(Direction::ToServer, Flow::Hold));
        let guard =
            tokio::time::timeout(TIMEOUT, here.lock("a").acquire()).await.expect("the lock is granted");
        let (guard, given_up) = (guard.unwrap(), now());
        assert!(connections() > before, "not on another connection");
        guard.release().await.unwrap();
        pause(LATE.saturating_sub(now().since(given_up))).await;
        let sent = || proxies.iter().map(|proxy| proxy.counts().to_server).sum::<u64>();
        let before = sent();
        proxies.iter().for_each(|proxy| proxy.set(Direction::ToServer, Flow::Pass));
        until("the create is sent", async || sent() > before).await;
        // Later requests follow the create on its way to the leader.
        let arrived = now();
        while now().since(arrived) < Duration::from_secs(1) {
            assert_eq!(namespace.requests(&raw).await, 0, "round {round}");
        }
        assert!(
            there.lock("a").try_acquire().await.unwrap().is_some(),
            "round {round}: the lock is not free"
        );
    }
    namespace.wait_until_empty().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_on_a_closed_connection_has_no_effect() {
    let server = zookeeper::start(&[]).unwrap();
    check_no_effect(&server, &[server.port()]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_through_a_former_server_has_no_effect() {
    let ensemble = zookeeper::ensemble(3, &[]).unwrap();
    let ports: Vec<_> = ensemble.members().iter().map(|member| member.port()).collect();
    check_no_effect(&ensemble, &ports).await;
}
