//! Creates that reach a server when their connection has long been given up.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{
    clock::{PATIENCE, now, pause, until},
    proxy::{Flow, Proxy, Way},
    servers::{Server, zookeeper},
};

use crate::Spot;

/// Far longer than the test: what came true would block the lock for as long.
const LONG: Duration = Duration::from_secs(60);

/// How late it is.
const LATE: Duration = Duration::from_secs(4);

/// 1. a create is held back on its way; the store gives the connection up, and continues its session on another one;
/// 2. the lock is acquired and released there;
/// 3. the create arrives, on a connection that its server has closed, or as one of a session that has moved to another server.
async fn has_no_effect(server: &Server, ports: &[u16]) {
    let spot = Spot::of(server);
    let raw = spot.raw().await;
    let proxies: Vec<_> = ports.iter().map(|port| Proxy::to(*port)).collect();
    let hosts: Vec<_> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
    let url =
        format!("zookeeper://{}{}?polylock.session_timeout={}s", hosts.join(","), spot.root, LONG.as_secs());
    let here = Locks::connect(&url).await.unwrap();
    let there = Locks::connect(&spot.url).await.unwrap();
    here.lock("a").acquire().await.unwrap().release().await.unwrap();
    for round in 0..2 {
        let connections = || proxies.iter().map(|proxy| proxy.counts().connections).sum::<u64>();
        let before = connections();
        proxies.iter().for_each(|proxy| proxy.set_earlier(Way::ToServer, Flow::Hold));
        let guard = tokio::time::timeout(PATIENCE, here.lock("a").acquire()).await.expect("it is granted");
        let (guard, given_up) = (guard.unwrap(), now());
        assert!(connections() > before, "on another connection");
        guard.release().await.unwrap();
        pause(LATE.saturating_sub(now().since(given_up))).await;
        let sent = || proxies.iter().map(|proxy| proxy.counts().to_server).sum::<u64>();
        let before = sent();
        proxies.iter().for_each(|proxy| proxy.set(Way::ToServer, Flow::Pass));
        until("it is sent", async || sent() > before).await;
        // Behind it on the way to the leader, in each server.
        let arrived = now();
        while now().since(arrived) < Duration::from_secs(1) {
            assert_eq!(spot.requests(&raw).await, 0, "round {round}");
        }
        assert!(there.lock("a").try_acquire().await.unwrap().is_some(), "round {round}: it is free");
    }
    spot.is_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_connection_that_its_server_has_closed_has_no_effect() {
    let server = zookeeper::start(&[]).unwrap();
    has_no_effect(&server, &[server.port()]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn through_a_server_that_its_session_has_left_has_no_effect() {
    let ensemble = zookeeper::ensemble(3, &[]).unwrap();
    let ports: Vec<_> = ensemble.members().iter().map(|member| member.port()).collect();
    has_no_effect(&ensemble, &ports).await;
}
