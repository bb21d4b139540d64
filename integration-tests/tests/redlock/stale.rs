//! What a holder of before sends late is no harm to who holds now.

use polylock_integration_tests::{
    clock,
    proxy::{Flow, Way},
};

use crate::site::Site;

#[tokio::test(flavor = "multi_thread")]
async fn late_renewals_and_releases_leave_the_next_holder_alone() {
    let site = Site::shared(5);
    let other = site.other_way();
    let (locks, others) = (site.open("&polylock.ttl=1s").await, other.open("&polylock.ttl=1s").await);
    let guard = locks.lock("n").acquire().await.unwrap();
    site.has(&[1; 5]).await;
    for proxy in &site.proxies {
        proxy.set(Way::ToServer, Flow::Hold);
    }
    let next = others.lock("n").acquire().await.unwrap();
    assert!(!guard.is_held(), "before another has it, it is lost");
    assert!(next.fencing_token() > guard.fencing_token());
    drop(guard);
    other.has(&[1; 5]).await;
    let mine = other.holders("n").await[0].clone();
    // It was told to renew, to release, and on new connections to release again.
    let sent = || site.proxies.iter().map(|proxy| proxy.counts().requests).sum::<u64>();
    let before = sent();
    clock::until("something to be late", || async { sent() > before + 5 }).await;
    for proxy in &site.proxies {
        proxy.set(Way::ToServer, Flow::Pass);
    }
    // Some renewals of its own later ...
    for _ in 0..4 {
        next.renewed().await.expect("it is held");
    }
    // ... it holds what it held: each vote has its request's id.
    assert_eq!(other.holders("n").await, vec![mine; 5]);
    next.release().await.unwrap();
    site.is_free_soon().await;
}

/// 1. A claim's proposals arrive, its answers do not, and its releases come late.
/// 2. It is tried again, on new connections, and its votes are all there.
/// 3. The releases come.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_undo_leaves_a_later_try_of_the_same_request_alone() {
    let site = Site::shared(3);
    let locks = site.open("").await;
    let other_way = site.other_way();
    let other = other_way.open("").await;
    locks.lock("warm").acquire().await.unwrap().release().await.unwrap();
    site.is_free_soon().await;
    for proxy in &site.proxies {
        proxy.set_earlier(Way::ToClient, Flow::Hold);
    }
    let trying = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("n").acquire().await.unwrap() }
    });
    site.has(&[1; 3]).await;
    for proxy in &site.proxies {
        proxy.set_earlier(Way::ToServer, Flow::Hold);
    }
    let guard = trying.await.unwrap();
    site.has(&[1; 3]).await;
    for proxy in &site.proxies {
        proxy.set(Way::ToServer, Flow::Pass);
        proxy.set(Way::ToClient, Flow::Pass);
    }
    clock::until("the old connections end", || async {
        site.proxies.iter().all(|proxy| proxy.counts().open == 1)
    })
    .await;
    assert!(guard.is_held());
    assert_eq!(site.votes().await, [1; 3], "a late release has taken the votes of a later try");
    assert!(other.lock("n").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    site.is_free_soon().await;
}
