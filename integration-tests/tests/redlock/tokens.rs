//! Tokens grow, whatever happens to the nodes; and one node that is wrong locks out nobody.

use std::time::Duration;

use polylock::{Error, Fault};
use polylock_integration_tests::{
    clock::pause,
    proxy::{Flow, Way},
    servers::redis::DURABLE,
};

use crate::{
    load::{self, Load},
    site::{Site, told},
};

#[tokio::test(flavor = "multi_thread")]
async fn they_grow_while_nodes_are_killed_and_come_back() {
    let site = Site::private(5, DURABLE);
    let mut stores = Vec::new();
    for _ in 0..8 {
        stores.push(site.open("&polylock.ttl=2s").await);
    }
    let outcome = Load { more_than: 100, ..load::one("n", Duration::from_secs(8)) }
        .on(stores, async {
            for node in [0, 1, 2, 3, 4, 0, 2] {
                pause(Duration::from_millis(400)).await;
                tokio::task::block_in_place(|| site.nodes[node].kill());
                pause(Duration::from_millis(400)).await;
                tokio::task::block_in_place(|| site.nodes[node].restart());
            }
        })
        .await;
    outcome.is_clean();
    assert!(outcome.sections.len() > 100, "it goes on");
    for store in 0..8 {
        assert!(outcome.of(store) > 0, "{store} never had it");
    }
    site.is_free_soon().await;
}

/// The numbers of some nodes are an hour ahead of their clocks; how many tokens are so, too.
async fn an_hour_ahead(nodes: &[usize]) -> usize {
    let site = Site::shared(5);
    let mut stores = Vec::new();
    for _ in 0..8 {
        stores.push(site.open("").await);
    }
    let (seconds, _): (i64, i64) = site.ask(0, &["TIME"]).await;
    let ahead = (seconds + 3600) * 1_000_000;
    let wrong = ahead.to_string();
    for node in nodes {
        site.ask::<()>(*node, &["SET", &site.key("n", "n"), &wrong]).await;
    }
    let outcome = load::one("n", Duration::from_secs(3)).on(stores, async {}).await;
    outcome.is_clean();
    assert_eq!((outcome.failures, outcome.losses), (0, 0));
    for store in 0..8 {
        assert!(outcome.of(store) > 0, "{store} is locked out");
    }
    site.is_free_soon().await;
    let ahead = u64::try_from(ahead).unwrap();
    outcome.sections.iter().filter(|section| section.token.unwrap() > ahead).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wrong_number_of_one_node_locks_out_nobody() {
    // Nor does anybody follow it, or all nodes would be wrong for an hour.
    assert_eq!(an_hour_ahead(&[1]).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wrong_numbers_of_most_nodes_are_followed() {
    assert!(an_hour_ahead(&[0, 2, 3]).await > 0);
}

/// The servers' clock in us, by the first of them.
async fn clock_us(site: &Site) -> u64 {
    let (seconds, micros): (u64, u64) = site.ask(0, &["TIME"]).await;
    seconds * 1_000_000 + micros
}

async fn sets_last(site: &Site, nodes: &[usize], name: &str, last: &str) {
    for node in nodes {
        site.ask::<()>(*node, &["SET", &site.key("n", name), last]).await;
    }
}

/// Two servers have forgotten, and their clocks are behind; the third knows a greater number.
#[tokio::test(flavor = "multi_thread")]
async fn the_greater_number_of_a_server_that_replies_in_time_is_exceeded() {
    let site = Site::shared(3);
    let locks = site.open("").await;
    locks.lock("warm").acquire().await.unwrap().release().await.unwrap();
    for node in [0, 1] {
        site.proxies[node].set(Way::ToClient, Flow::Delay(Duration::from_millis(60)));
    }
    let ahead = clock_us(&site).await + 30_000_000;
    sets_last(&site, &[2], "n", &ahead.to_string()).await;
    let guard = locks.lock("n").acquire().await.unwrap();
    assert!(guard.fencing_token().get() > ahead, "{} after {ahead}", guard.fencing_token());
    guard.release().await.unwrap();
    site.is_free_soon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_numbers_of_one_lock_that_are_far_ahead_do_not_spoil_those_of_others() {
    let site = Site::shared(3);
    let locks = site.open("&polylock.wait=5s").await;
    let ahead = clock_us(&site).await + 3_600_000_000;
    sets_last(&site, &[0, 1, 2], "a", &ahead.to_string()).await;
    for _ in 0..3 {
        let guard = locks.lock("a").acquire().await.unwrap();
        assert!(guard.fencing_token().get() > ahead);
        guard.release().await.unwrap();
        let guard = locks.lock("b").acquire().await.unwrap();
        assert!(guard.fencing_token().get() < ahead);
        guard.release().await.unwrap();
    }
    site.is_free_soon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_greater_number_on_most_servers_nobody_is_granted() {
    let site = Site::shared(3);
    let locks = site.open("").await;
    for last in ["9007199254740991", "9007199254740992", "no number", "nan"] {
        let guard = locks.lock("held").acquire().await.unwrap();
        sets_last(&site, &[1], "n", last).await;
        locks.lock("n").acquire().await.unwrap().release().await.unwrap();
        sets_last(&site, &[0, 1], "n", last).await;
        let error = locks.lock("n").acquire().await.expect_err(last);
        let text = told(&error);
        let Error::Unavailable(failure) = error else { panic!("{last}: {text}") };
        assert_eq!(failure.fault, Fault::Permanent, "{last}: {text}");
        assert!(text.contains(":n:") && text.contains("greatest token"), "{last}: {text}");
        // What is held is renewed and released.
        sets_last(&site, &[0, 1, 2], "held", last).await;
        guard.release().await.unwrap();
        sets_last(&site, &[0, 1, 2], "n", "1").await;
        sets_last(&site, &[0, 1, 2], "held", "1").await;
        locks.lock("n").acquire().await.unwrap().release().await.unwrap();
        site.is_free_soon().await;
    }
}
