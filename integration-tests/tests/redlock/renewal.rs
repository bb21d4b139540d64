//! Extending takes a majority, too, and goes on for as long as there is one.

use std::time::Duration;

use polylock::LostReason;
use polylock_integration_tests::clock::{self, now};

use crate::site::Site;

#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_the_lock_is_lost_at_its_deadline() {
    let site = Site::shared(5);
    let locks = site.open("&polylock.ttl=2s").await;
    let guard = locks.lock("n").acquire().await.unwrap();
    guard.renewed().await.expect("it is held");
    for node in 0..3 {
        site.freeze(node);
    }
    let deadline = guard.deadline();
    assert_eq!(guard.lost().await, LostReason::DeadlineReached);
    // One renewal may have been on its way.
    let late = now().since(guard.deadline().max(deadline));
    assert!(now() >= deadline && late < Duration::from_millis(100), "{late:?} after its deadline");
    for node in 0..3 {
        site.thaw(node);
    }
    drop(guard);
    site.is_free_soon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_majority_it_is_renewed_as_often_as_need_be() {
    let site = Site::shared(5);
    let locks = site.open("&polylock.ttl=400ms").await;
    let guard = locks.lock("n").acquire().await.unwrap();
    site.freeze(1);
    site.kill(3);
    let began = now();
    for renewal in 0..60 {
        assert!(guard.renewed().await.is_some(), "lost after {renewal} renewals in {:?}", now().since(began));
    }
    assert!(guard.is_held());
    println!("60 renewals in {:?}", now().since(began));
    site.thaw(1);
    guard.release().await.unwrap();
    site.is_free_soon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_has_forgotten_the_lock_gets_it_again() {
    let site = Site::private(3, &[]);
    let locks = site.open("&polylock.ttl=1500ms").await;
    let guard = locks.lock("n").acquire().await.unwrap();
    site.has(&[1; 3]).await;
    site.ask::<()>(0, &["FLUSHALL"]).await;
    site.has(&[1; 3]).await;
    tokio::task::block_in_place(|| site.nodes[1].restart());
    site.has(&[1; 3]).await;
    let holders = site.holders("n").await;
    assert_eq!(holders, vec![holders[2].clone(); 3]);
    let token: i64 = site.ask(1, &["GET", &site.key("n", "n")]).await;
    assert_eq!(u64::try_from(token).unwrap(), guard.fencing_token().get(), "the number, too");
    guard.release().await.unwrap();
    site.is_free_soon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_has_forgotten_and_heard_of_another_does_not_give_it_back() {
    let site = Site::private(3, &[]);
    let locks = site.open("&polylock.ttl=1500ms").await;
    let guard = locks.lock("n").acquire().await.unwrap();
    site.has(&[1; 3]).await;
    // As if another had had it there meanwhile, or the release had come.
    site.ask::<()>(0, &["DEL", &site.key("r", "n")]).await;
    let later = (guard.fencing_token().get() + 1).to_string();
    site.ask::<()>(0, &["SET", &site.key("n", "n"), &later]).await;
    for _ in 0..3 {
        guard.renewed().await.expect("two are a majority");
    }
    assert_eq!(site.votes().await, [0, 1, 1]);
    guard.release().await.unwrap();
    clock::until("free", || async { site.votes().await == [0; 3] }).await;
}
