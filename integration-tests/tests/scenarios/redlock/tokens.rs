//! Tokens grow despite faults of the nodes, and one node with a wrong number blocks no claim.

use std::time::Duration;

use polylock::{Error, Fault};
use polylock_integration_tests::{
    clock::pause,
    load::{self, Load},
    proxy::{Direction, Flow},
    refusals::describe,
    servers::redis::DURABLE,
};

use super::setup::{PATIENT, Setup};

#[tokio::test(flavor = "multi_thread")]
async fn tokens_grow_while_nodes_are_killed_and_restarted() {
    let setup = Setup::private(5, DURABLE);
    let mut stores = Vec::new();
    for _ in 0..8 {
        stores.push(setup.open("&polylock.ttl=2s").await);
    }
    let outcome = Load { min_holds: 100, ..load::one("n", Duration::from_secs(8)) }
        .on(stores, async {
            for node in [0, 1, 2, 3, 4, 0, 2] {
                pause(Duration::from_millis(400)).await;
                tokio::task::block_in_place(|| setup.nodes[node].kill());
                pause(Duration::from_millis(400)).await;
                tokio::task::block_in_place(|| setup.nodes[node].restart());
            }
        })
        .await;
    outcome.assert_consistent();
    assert!(outcome.sections.len() > 100, "clients make progress");
    for store in 0..8 {
        assert!(outcome.of(store) > 0, "{store} was never granted it");
    }
    setup.wait_until_free().await;
}

/// Sets the numbers of some nodes an hour ahead of their clocks. Returns the number of tokens that are as far ahead.
async fn tokens_with_wrong_numbers(nodes: &[usize]) -> usize {
    let setup = Setup::shared(5);
    let mut stores = Vec::new();
    for _ in 0..8 {
        stores.push(setup.open("").await);
    }
    let (seconds, _): (i64, i64) = setup.query(0, &["TIME"]).await;
    let ahead = (seconds + 3600) * 1_000_000;
    let wrong = ahead.to_string();
    for node in nodes {
        setup.query::<()>(*node, &["SET", &setup.key("n", "n"), &wrong]).await;
    }
    let outcome = load::one("n", Duration::from_secs(3)).on(stores, async {}).await;
    outcome.assert_consistent();
    assert_eq!((outcome.failures, outcome.losses), (0, 0));
    for store in 0..8 {
        assert!(outcome.of(store) > 0, "{store} is locked out");
    }
    setup.wait_until_free().await;
    let ahead = u64::try_from(ahead).unwrap();
    outcome.sections.iter().filter(|section| section.token.unwrap() > ahead).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wrong_number_of_one_node_is_not_followed() {
    // No client follows it: otherwise all nodes would be wrong for an hour.
    assert_eq!(tokens_with_wrong_numbers(&[1]).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wrong_numbers_of_most_nodes_are_followed() {
    assert!(tokens_with_wrong_numbers(&[0, 2, 3]).await > 0);
}

/// Returns the clock of the first server, in us.
async fn clock_us(setup: &Setup) -> u64 {
    let (seconds, micros): (u64, u64) = setup.query(0, &["TIME"]).await;
    seconds * 1_000_000 + micros
}

async fn set_last_number(setup: &Setup, nodes: &[usize], name: &str, last: &str) {
    for node in nodes {
        setup.query::<()>(*node, &["SET", &setup.key("n", name), last]).await;
    }
}

/// Two servers have lost their data, and their clocks are behind; the third has a greater number.
#[tokio::test(flavor = "multi_thread")]
async fn the_greater_number_of_a_server_that_replies_in_time_is_exceeded() {
    let setup = Setup::shared(3);
    let locks = setup.open(PATIENT).await;
    locks.lock("warm").acquire().await.unwrap().release().await.unwrap();
    // Longer than a busy machine delays the reply of the third.
    for node in [0, 1] {
        setup.proxies[node].set(Direction::ToClient, Flow::Delay(Duration::from_millis(1500)));
    }
    let ahead = clock_us(&setup).await + 30_000_000;
    set_last_number(&setup, &[2], "n", &ahead.to_string()).await;
    let guard = locks.lock("n").acquire().await.unwrap();
    assert!(guard.fencing_token().get() > ahead, "{} after {ahead}", guard.fencing_token());
    guard.release().await.unwrap();
    setup.wait_until_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn far_numbers_of_one_lock_do_not_affect_other_locks() {
    let setup = Setup::shared(3);
    let locks = setup.open("&polylock.wait=5s").await;
    let ahead = clock_us(&setup).await + 3_600_000_000;
    set_last_number(&setup, &[0, 1, 2], "a", &ahead.to_string()).await;
    for _ in 0..3 {
        let guard = locks.lock("a").acquire().await.unwrap();
        assert!(guard.fencing_token().get() > ahead);
        guard.release().await.unwrap();
        let guard = locks.lock("b").acquire().await.unwrap();
        assert!(guard.fencing_token().get() < ahead);
        guard.release().await.unwrap();
    }
    setup.wait_until_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_greater_number_on_most_servers_claims_fail() {
    let setup = Setup::shared(3);
    let locks = setup.open("").await;
    for last in ["9007199254740991", "9007199254740992", "no number", "nan"] {
        let guard = locks.lock("held").acquire().await.unwrap();
        set_last_number(&setup, &[1], "n", last).await;
        locks.lock("n").acquire().await.unwrap().release().await.unwrap();
        set_last_number(&setup, &[0, 1], "n", last).await;
        let error = locks.lock("n").acquire().await.expect_err(last);
        let text = describe(&error).1;
        let Error::Unavailable(failure) = error else { panic!("{last}: {text}") };
        assert_eq!(failure.fault, Fault::Permanent, "{last}: {text}");
        assert!(text.contains(":n:") && text.contains("greatest token"), "{last}: {text}");
        // Held locks can be renewed and released.
        set_last_number(&setup, &[0, 1, 2], "held", last).await;
        guard.release().await.unwrap();
        set_last_number(&setup, &[0, 1, 2], "n", "1").await;
        set_last_number(&setup, &[0, 1, 2], "held", "1").await;
        locks.lock("n").acquire().await.unwrap().release().await.unwrap();
        setup.wait_until_free().await;
    }
}
