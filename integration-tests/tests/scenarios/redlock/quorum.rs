//! A majority is a majority of all nodes, including those that do not reply.

use std::time::Duration;

use polylock::{Error, Locks};
use polylock_integration_tests::{
    clock::{self, now, pause},
    load::{self, Load},
    refusals::describe,
};

use super::setup::Setup;

/// The options of the clients: a node counts as silent later than a busy machine delays it.
const OPTIONS: &str = "&polylock.operation_timeout=4s";

/// The longest duration of a failure: a node's timeout for the claim, one for the withdrawal, and the time that a busy machine may add.
const MAX_FAILURE_TIME: Duration = Duration::from_millis(2 * 4000 + 3000);

async fn assert_refused(locks: &Locks, setup: &Setup, reasons: &[(usize, &str)]) {
    let began = now();
    let error = locks.lock("n").try_acquire().await.expect_err("there is no majority");
    let took = now().since(began);
    assert!(error.is_temporary(), "{error:?}");
    assert!(took < MAX_FAILURE_TIME, "{took:?}");
    let text = describe(&error).1;
    println!("{took:?}: {text}");
    for node in 0..setup.proxies.len() {
        let why = reasons.iter().find(|(dead, _)| *dead == node).map(|(_, why)| why);
        let part = text.split_once("and 3 must: ").unwrap().1.split("; ");
        let part: Vec<&str> = part.filter(|part| part.contains(&setup.address(node))).collect();
        match why {
            Some(why) => {
                assert!(part.len() == 1 && part[0].contains(why), "{why} of node {node}: {text}");
            }
            None => assert_eq!(part, [""; 0], "node {node} is reachable: {text}"),
        }
    }
    setup.wait_until_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn five_nodes_tolerate_the_loss_of_two() {
    let setup = Setup::shared(5);
    let locks = setup.open(OPTIONS).await;
    setup.disconnect(0);
    setup.disconnect(3);
    let guard = locks.lock("n").acquire().await.unwrap();
    setup.wait_for_votes(&[0, 1, 1, 0, 1]).await;
    guard.release().await.unwrap();
    setup.wait_until_free().await;
    // A new client opens the store in this state.
    let fresh = setup.open(OPTIONS).await;
    fresh.lock("n").acquire().await.unwrap().release().await.unwrap();

    setup.disconnect(4);
    let refused = [(0, "can't be reached"), (3, "can't be reached"), (4, "can't be reached")];
    assert_refused(&locks, &setup, &refused).await;
    let error = Locks::connect(&setup.url("&polylock.outage=3s")).await.expect_err("there is no majority");
    assert!(error.is_temporary() && describe(&error).1.contains(&setup.address(4)), "{error:?}");

    setup.reconnect(0);
    fresh.lock("n").acquire().await.unwrap().release().await.unwrap();
    locks.lock("n").acquire().await.unwrap().release().await.unwrap();
    setup.wait_until_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_node_counts_as_a_dead_one() {
    let setup = Setup::shared(5);
    let locks = setup.open(OPTIONS).await;
    // The servers have its list, for which a claim would wait otherwise.
    locks.lock("n").acquire().await.unwrap().release().await.unwrap();
    setup.disconnect(1);
    setup.disconnect(2);
    setup.freeze(4);
    let reasons = [(1, "can't be reached"), (2, "can't be reached"), (4, "no reply within 4s")];
    assert_refused(&locks, &setup, &reasons).await;
    setup.thaw(4);
    locks.lock("n").acquire().await.unwrap().release().await.unwrap();
    setup.wait_until_free().await;
}

/// Returns two clients, each of which can reach some of the nodes.
async fn sides<const A: usize, const B: usize>(a: [usize; A], b: [usize; B]) -> [(Setup, Locks); 2] {
    let one = Setup::shared(5);
    let other = one.other_route();
    let (locks, others) = (one.open(OPTIONS).await, other.open(OPTIONS).await);
    for node in 0..5 {
        if !a.contains(&node) {
            one.disconnect(node);
        }
        if !b.contains(&node) {
            other.disconnect(node);
        }
    }
    [(one, locks), (other, others)]
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_majority_side_of_a_partition_is_granted_the_lock() {
    let [(setup, a), (_other_setup, b)] = sides([0, 1], [2, 3, 4]).await;
    for _ in 0..20 {
        let (few, most) = tokio::join!(a.lock("n").try_acquire(), b.lock("n").try_acquire());
        assert!(matches!(few, Err(Error::Unavailable(_))), "{few:?}");
        most.unwrap().expect("it is free").release().await.unwrap();
        // The release has ended at some of the nodes.
        setup.wait_until_free().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn majorities_that_share_one_node_exclude_each_other() {
    let [(setup, a), (_other_setup, b)] = sides([0, 1, 2], [2, 3, 4]).await;
    let load = Load { min_holds: 100, ..load::one("n", Duration::from_secs(2)) };
    let outcome = load.on(vec![a, b], async {}).await;
    outcome.assert_consistent();
    // Both sides are a majority. There is no order between them, so a busy machine may prefer one.
    assert!(outcome.of(0) > 0 && outcome.of(1) > 0, "{} and {}", outcome.of(0), outcome.of(1));
    pause(Duration::from_millis(1)).await;
    setup.wait_until_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_server_under_two_names_is_refused() {
    let setup = Setup::private(4, &[]);
    let ports: Vec<u16> = setup.nodes.iter().map(|node| node.port()).collect();
    let url = |servers: &[(&str, usize)]| {
        let hosts: Vec<String> =
            servers.iter().map(|(host, node)| format!("{host}:{}", ports[*node])).collect();
        format!("redlock://{}?polylock.restart=trust", hosts.join(","))
    };
    let twice = url(&[("127.0.0.1", 0), ("localhost", 0), ("127.0.0.1", 1)]);
    let error = Locks::connect(&twice).await.expect_err("its vote counts twice");
    let text = describe(&error).1;
    assert!(!error.is_temporary() && text.contains("same server") && text.contains("localhost"), "{text}");
    Locks::connect(&url(&[("127.0.0.1", 0), ("localhost", 1), ("127.0.0.1", 2)])).await.unwrap();

    // It was down when the store was opened.
    tokio::task::block_in_place(|| setup.nodes[0].kill());
    let hosts = [("127.0.0.1", 0), ("localhost", 0), ("127.0.0.1", 1), ("127.0.0.1", 2), ("127.0.0.1", 3)];
    // Under another name: it is not the list from before.
    let locks = Locks::connect(&format!("{}&polylock.namespace=down", url(&hosts))).await.unwrap();
    tokio::task::block_in_place(|| setup.nodes[0].restart());
    for node in &setup.nodes[2..] {
        tokio::task::block_in_place(|| node.kill());
    }
    clock::until("the servers that are up have been tried", async || {
        let outcome = locks.lock("n").try_acquire().await;
        let error = outcome.expect_err("two servers are no majority of five");
        describe(&error).1.contains("same server")
    })
    .await;
}
