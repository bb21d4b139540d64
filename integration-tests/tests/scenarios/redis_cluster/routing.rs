//! The node of each lock, and the servers that can be used.

use std::time::Duration;

use polylock::{Fault, Locks};
use polylock_integration_tests::{
    clock::now,
    refusals::{refusal, timed_refusal},
    servers::{redis, redis_cluster, redlock::Dead},
    stores::wait_for_waiters,
};

#[tokio::test(flavor = "multi_thread")]
async fn locks_are_spread_over_the_primaries_each_in_the_slot_of_its_bucket() {
    let cluster = super::shared();
    let locks = Locks::connect(&super::url(cluster, "spread")).await.unwrap();
    let mut guards = Vec::new();
    for number in 0..60 {
        guards.push(locks.lock(format!("spread/{number:02}")).acquire().await.unwrap());
    }
    let mut all = Vec::new();
    for node in 0..3 {
        let keys: Vec<String> = cluster.ask(node, &["KEYS", "{spread:*:h:*"]).await;
        assert!(keys.len() > 5, "node {node} has {} of 60", keys.len());
        for key in &keys {
            let slot: u16 = cluster.ask(node, &["CLUSTER", "KEYSLOT", key]).await;
            assert_eq!(cluster.primary_of(slot, 0).await, Some(node), "{key}");
        }
        all.extend(keys);
    }
    assert_eq!(all.len(), 60);
    let listed = locks.list("spread/").await.unwrap();
    assert!(listed.iter().map(|lock| lock.name.as_str()).eq((0..60).map(|it| format!("spread/{it:02}"))));
    // One batch renews all.
    for guard in &guards {
        assert!(guard.is_held());
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
    assert_eq!(locks.list("").await.unwrap(), []);
    let mut left = Vec::new();
    for node in 0..3 {
        left.extend(cluster.ask::<Vec<String>>(node, &["KEYS", "{spread:*"]).await);
    }
    assert!(left.iter().all(|key| key.ends_with("}:last")), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn any_node_leads_to_the_cluster_and_other_servers_are_refused() {
    let cluster = redis_cluster::start(&[]).unwrap();
    let (dead, alone) = (Dead::new(), redis::start(&[]).unwrap());
    let host = |url: &str| url.trim_start_matches("redis://").to_owned();
    let nodes: Vec<String> = cluster.nodes().iter().map(|node| host(node.url())).collect();
    // A replica; a dead node before a live one.
    for hosts in [nodes[4].clone(), format!("{},{}", host(&dead.url()), nodes[2])] {
        let locks = Locks::connect(&format!("valkey-cluster://{hosts}/0")).await.unwrap();
        for number in 0..10 {
            let guard = locks.lock(format!("found/{number}")).acquire().await.unwrap();
            guard.release().await.unwrap();
        }
    }
    let (fault, text, took) = timed_refusal(&format!("redis-cluster://{}", host(&dead.url()))).await;
    assert!(fault == Some(Fault::Temporary) && text.contains("can't be reached"), "{text}");
    assert!(took < Duration::from_secs(3), "{took:?}");
    let (fault, text) = refusal(&format!("redis-cluster://{}", host(alone.url()))).await;
    assert!(fault == Some(Fault::Permanent) && text.contains("write redis://"), "{fault:?}: {text}");
    let (fault, text) = refusal(&format!("redis://{}", nodes[0])).await;
    assert!(fault == Some(Fault::Permanent) && text.contains("write redis-cluster://"), "{fault:?}: {text}");
    // Every primary is checked.
    cluster.ask::<()>(1, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    let (fault, text) = refusal(&super::url(&cluster, "p")).await;
    assert!(fault == Some(Fault::Permanent) && text.contains("polylock.allow=eviction"), "{fault:?}: {text}");
    assert!(text.contains(&nodes[1]), "{text}");
    Locks::connect(&format!("{}&polylock.allow=eviction", super::url(&cluster, "p"))).await.unwrap();
}

/// Each hand-over would take half a second if the waiters polled.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_notifies_the_next_waiter_in_another_process() {
    const WAITERS: usize = 24;
    let cluster = super::shared();
    let url = super::url(cluster, "next");
    let stores = [Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap()];
    let guard = stores[0].lock("next").acquire().await.unwrap();
    let mut waiting = Vec::new();
    for number in 0..WAITERS {
        let lock = stores[number % 2].lock("next");
        waiting.push(tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() }));
        wait_for_waiters(&stores[0], "next", number + 1).await;
    }
    let began = now();
    guard.release().await.unwrap();
    for waiting in waiting {
        waiting.await.unwrap();
    }
    let took = now().since(began);
    println!("{WAITERS} hand-overs in {took:?}");
    assert!(took < Duration::from_secs(3), "{took:?}");
}

/// The user has exactly the rights on the page of the store.
#[tokio::test(flavor = "multi_thread")]
async fn the_documented_rights_are_sufficient() {
    let cluster = super::shared();
    let mut rules = vec!["ACL", "SETUSER", "app", "reset", "on", ">canary", "~{rights:*", "&{rights:*"];
    rules.push("&polylock:broken:rights");
    rules.extend(
        "+evalsha +script|load +subscribe +publish +time +info +get +set +del +exists +hget +hset +hdel +hgetall +hmget +zadd +zrem \
         +zrange +zrank +zscore +zremrangebyscore +pttl +pexpire +config|get +scan +ssubscribe +spublish +cluster|slots +asking"
            .split(' '),
    );
    for node in 0..cluster.nodes().len() {
        cluster.ask::<()>(node, &rules).await;
    }
    let (name, slot) = super::names_by_primary(cluster, "rights").await.swap_remove(0);
    let url = super::url(cluster, "rights").replace("://", "://app:canary@");
    let stores = [Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap()];
    let guard = stores[0].lock(&name).ttl(Duration::from_secs(2)).acquire().await.unwrap();
    let next = tokio::spawn(stores[1].lock(&name).acquire());
    wait_for_waiters(&stores[0], &name, 1).await;
    cluster.move_slot(slot, 0, 1).await;
    assert!(guard.renewed().await.is_some());
    assert_eq!(stores[1].list("").await.unwrap().len(), 1);
    guard.release().await.unwrap();
    next.await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(stores[0].once(&name).last_run().await.unwrap(), None);
    let other = super::url(cluster, "others").replace("://", "://app:canary@");
    let (fault, text) = refusal(&other).await;
    assert!(fault == Some(Fault::Denied) && text.contains("+ssubscribe"), "{fault:?}: {text}");
}
