//! Nodes that forget at a restart, and how long they must be silent after it.

use std::time::Duration;

use polylock::{Error, Fault, Locks, Mode};
use polylock_integration_tests::{
    clock::{now, pause},
    servers::{redis, redlock},
};
use polylock_testkit::history::{self, Recorder};

use crate::{
    load,
    site::{Site, told},
};

const DELAY: &str = "&polylock.max_ttl=2s&polylock.ttl=1s";

#[tokio::test(flavor = "multi_thread")]
async fn fresh_nodes_have_no_vote_and_say_for_how_long() {
    let site = Site::private(3, &[]);
    let began = now();
    let locks = Locks::connect(&site.url_without_trust(DELAY)).await.unwrap();
    let error = locks.lock("n").try_acquire().await.expect_err("they may have forgotten");
    let told = told(&error);
    assert!(error.is_temporary(), "{error:?}");
    let why = |node| format!("{} has restarted, and has no vote for another ", site.address(node));
    // Two of three are too many, whatever the third says.
    assert!((0..3).filter(|node| told.contains(&why(*node))).count() >= 2, "{told}");
    assert!(!told.contains("no answer"), "{told}");
    site.is_free_soon().await;
    // Who waits gets it by then.
    let guard = locks.lock("n").acquire().await.unwrap();
    let took = now().since(began);
    println!("{told}\nafter {took:?}");
    assert!(took > Duration::from_secs(1) && took < Duration::from_secs(6), "{took:?}");
    guard.release().await.unwrap();
    site.is_free_soon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarts_in_turn_under_load_give_no_lock_twice() {
    let site = Site::private(3, &[]);
    let mut stores = Vec::new();
    for _ in 0..8 {
        stores.push(Locks::connect(&site.url_without_trust(DELAY)).await.unwrap());
    }
    let outcome = load::one("n", Duration::from_secs(16))
        .on(stores, async {
            for node in [0, 1, 2, 1] {
                // Shorter and longer than a node is silent.
                pause(Duration::from_millis(if node == 2 { 1500 } else { 4000 })).await;
                tokio::task::block_in_place(|| site.nodes[node].restart());
            }
        })
        .await;
    outcome.is_clean();
    assert!(outcome.sections.len() > 300, "it went on");
}

/// A holds by the votes of two of three nodes. One of them forgets, and B is given it and the third: what comes of it.
async fn after_a_restart(more: &str) -> Vec<history::Violation> {
    let site = Site::private(3, &[]);
    let more = format!("&polylock.ttl=2s&polylock.max_ttl=2s{more}");
    let url = site.url_without_trust(&more);
    let (a, b) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    // Until they have votes.
    a.lock("warm").acquire().await.unwrap().release().await.unwrap();

    let recorder = Recorder::new();
    tokio::task::block_in_place(|| site.nodes[2].kill());
    let attempt = recorder.invoke("n", "a", Mode::Exclusive);
    let guard = a.lock("n").acquire().await.unwrap();
    let (hold, mut deadline) = (attempt.acquired(&guard), guard.deadline());
    let holding = tokio::spawn(async move {
        while let Some(later) = guard.renewed().await {
            deadline = later;
        }
        hold.lost(deadline);
    });
    tokio::task::block_in_place(|| {
        site.nodes[2].restart();
        site.nodes[1].restart();
    });
    // It takes a while where they are not trusted.
    let attempt = recorder.invoke("n", "b", Mode::Exclusive);
    let other = b.lock("n").acquire().await.unwrap();
    let other_hold = attempt.acquired(&other);
    // A hears of it with its next renewal.
    holding.await.unwrap();
    other_hold.releasing(&other);
    history::overlaps(&recorder.sections())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_has_forgotten_does_not_give_the_lock_to_another() {
    assert_eq!(after_a_restart("").await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn planted_trust_in_nodes_that_forget_is_found() {
    let found = after_a_restart("&polylock.restart=trust").await;
    assert_eq!(found.len(), 1, "the checker finds nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_ask_for_the_uptime_must_trust() {
    let nodes: Vec<_> = tokio::task::block_in_place(|| {
        let user = "user app on >secret ~* &* +@all -info";
        (0..3).map(|_| redis::start_as("app:secret", &["user default off", user]).unwrap()).collect()
    });
    let url = redlock::url(nodes.iter().map(|node| node.url()));
    let error = Locks::connect(&format!("{url}?polylock.max_ttl=2s")).await.expect_err("nobody knows");
    let told = told(&error);
    assert!(matches!(&error, Error::Unavailable(failure) if failure.fault == Fault::Denied), "{error:?}");
    assert!(told.contains("+info") && told.contains("polylock.restart=trust"), "{told}");
    assert!(!told.contains("secret"), "{told}");
    let locks = Locks::connect(&format!("{url}?polylock.restart=trust")).await.unwrap();
    locks.lock("n").acquire().await.unwrap().release().await.unwrap();
}
