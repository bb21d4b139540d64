//! A majority is one of all nodes, whoever of them answers.

use std::time::Duration;

use polylock::{Error, Locks};
use polylock_integration_tests::clock::{now, pause};

use crate::{
    load,
    site::{Site, told},
};

/// How long a failure may take: a node's time-out for the claim, and one for taking it back.
const IN_TIME: Duration = Duration::from_millis(900);

async fn is_refused(locks: &Locks, site: &Site, reasons: &[(usize, &str)]) {
    let began = now();
    let error = locks.lock("n").try_acquire().await.expect_err("there is no majority");
    let took = now().since(began);
    assert!(error.is_temporary(), "{error:?}");
    assert!(took < IN_TIME, "{took:?}");
    let told = told(&error);
    println!("{took:?}: {told}");
    for node in 0..site.proxies.len() {
        let why = reasons.iter().find(|(dead, _)| *dead == node).map(|(_, why)| why);
        let part = told.split_once("and 3 must: ").unwrap().1.split("; ");
        let part: Vec<&str> = part.filter(|part| part.contains(&site.address(node))).collect();
        match why {
            Some(why) => assert!(part.len() == 1 && part[0].contains(why), "{why} of node {node}: {told}"),
            None => assert_eq!(part, [""; 0], "node {node} is well: {told}"),
        }
    }
    site.is_free_soon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn five_nodes_bear_two_dead_and_no_more() {
    let site = Site::shared(5);
    let locks = site.open("").await;
    site.kill(0);
    site.kill(3);
    let guard = locks.lock("n").acquire().await.unwrap();
    site.has(&[0, 1, 1, 0, 1]).await;
    guard.release().await.unwrap();
    site.is_free_soon().await;
    // A fresh client finds it like that.
    let fresh = site.open("").await;
    fresh.lock("n").acquire().await.unwrap().release().await.unwrap();

    site.kill(4);
    let refused = [(0, "can't be reached"), (3, "can't be reached"), (4, "can't be reached")];
    is_refused(&locks, &site, &refused).await;
    let error = Locks::connect(&site.url("")).await.expect_err("there is no majority");
    assert!(error.is_temporary() && told(&error).contains(&site.address(4)), "{error:?}");

    site.revive(0);
    fresh.lock("n").acquire().await.unwrap().release().await.unwrap();
    locks.lock("n").acquire().await.unwrap().release().await.unwrap();
    site.is_free_soon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_node_counts_as_a_dead_one() {
    let site = Site::shared(5);
    let locks = site.open("").await;
    site.kill(1);
    site.kill(2);
    site.freeze(4);
    let reasons = [(1, "can't be reached"), (2, "can't be reached"), (4, "no answer within 200ms")];
    is_refused(&locks, &site, &reasons).await;
    site.thaw(4);
    locks.lock("n").acquire().await.unwrap().release().await.unwrap();
    site.is_free_soon().await;
}

/// Two clients, each of which reaches some of the nodes.
async fn sides<const A: usize, const B: usize>(a: [usize; A], b: [usize; B]) -> [(Site, Locks); 2] {
    let one = Site::shared(5);
    let other = one.other_way();
    let (locks, others) = (one.open("").await, other.open("").await);
    for node in 0..5 {
        if !a.contains(&node) {
            one.kill(node);
        }
        if !b.contains(&node) {
            other.kill(node);
        }
    }
    [(one, locks), (other, others)]
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_sides_of_a_partition_only_the_greater_one_gets_the_lock() {
    let [(site, a), (_b_side, b)] = sides([0, 1], [2, 3, 4]).await;
    for _ in 0..20 {
        let (few, most) = tokio::join!(a.lock("n").try_acquire(), b.lock("n").try_acquire());
        assert!(matches!(few, Err(Error::Unavailable(_))), "{few:?}");
        most.unwrap().expect("it is free").release().await.unwrap();
    }
    site.is_free_soon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn majorities_that_share_one_node_exclude_each_other() {
    let [(site, a), (_b_side, b)] = sides([0, 1, 2], [2, 3, 4]).await;
    let outcome = load::one("n", Duration::from_secs(2)).on(vec![a, b], async {}).await;
    outcome.is_clean();
    assert!(outcome.of(0) > 10 && outcome.of(1) > 10, "{} and {}", outcome.of(0), outcome.of(1));
    pause(Duration::from_millis(1)).await;
    site.is_free_soon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_under_two_names_is_refused() {
    let site = Site::private(3, &[]);
    let ports: Vec<u16> = site.nodes.iter().map(|node| node.port()).collect();
    let url = |hosts: [&str; 3], at: [usize; 3]| {
        let hosts: Vec<String> =
            hosts.iter().zip(at).map(|(host, node)| format!("{host}:{}", ports[node])).collect();
        format!("redlock://{}?polylock.restart=trust", hosts.join(","))
    };
    let twice = url(["127.0.0.1", "localhost", "127.0.0.1"], [0, 0, 1]);
    let Err(Error::Config(error)) = Locks::connect(&twice).await else { panic!("its vote counts twice") };
    assert!(error.to_string().contains("same server"), "{error}");
    assert!(error.to_string().contains("localhost"), "{error}");
    Locks::connect(&url(["127.0.0.1", "localhost", "127.0.0.1"], [0, 1, 2])).await.unwrap();
}
