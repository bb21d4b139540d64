//! Tokens grow, whatever happens to the nodes; and one node that is wrong locks out nobody.

use std::time::Duration;

use polylock_integration_tests::{clock::pause, servers::redis::DURABLE};

use crate::{load, site::Site};

#[tokio::test(flavor = "multi_thread")]
async fn they_grow_while_nodes_are_killed_and_come_back() {
    let site = Site::private(5, DURABLE);
    let mut stores = Vec::new();
    for _ in 0..8 {
        stores.push(site.open("&polylock.ttl=2s").await);
    }
    let outcome = load::one("n", Duration::from_secs(8))
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
