//! Late messages of a former holder do not affect the present one.

use polylock_integration_tests::{
    clock,
    proxy::{Direction, Flow},
};

use super::setup::{PATIENT, Setup};

#[tokio::test(flavor = "multi_thread")]
async fn late_renewals_and_releases_do_not_affect_the_next_holder() {
    let setup = Setup::shared(5);
    let other = setup.other_route();
    let (locks, others) = (setup.open("&polylock.ttl=4s").await, other.open("&polylock.ttl=5s").await);
    let guard = locks.lock("n").acquire().await.unwrap();
    setup.wait_for_votes(&[1; 5]).await;
    let former = setup.holders("n").await[0].clone();
    for proxy in &setup.proxies {
        proxy.set(Direction::ToServer, Flow::Hold);
    }
    let next = others.lock("n").acquire().await.unwrap();
    assert!(!guard.is_held(), "lost before another request is granted");
    assert!(next.fencing_token() > guard.fencing_token());
    drop(guard);
    // The former votes do not expire at the same time.
    clock::until("it has all votes", async || {
        other.holders("n").await.iter().all(|holder| holder.is_some() && *holder != former)
    })
    .await;
    let mine = other.holders("n").await[0].clone();
    // Renewals and releases were sent, and releases again on new connections.
    let sent = || setup.proxies.iter().map(|proxy| proxy.counts().requests).sum::<u64>();
    let before = sent();
    clock::until("something to be late", || async { sent() > before + 5 }).await;
    for proxy in &setup.proxies {
        proxy.set(Direction::ToServer, Flow::Pass);
    }
    // After some renewals ...
    for _ in 0..2 {
        next.renewed().await.expect("it is held");
    }
    // ... it still has all votes: each has its request's id.
    assert_eq!(other.holders("n").await, vec![mine; 5]);
    next.release().await.unwrap();
    setup.wait_until_free().await;
}

/// 1. The proposals of a claim are delivered, the replies are not, and the withdrawals are late.
/// 2. The claim is retried on new connections, and gets all votes.
/// 3. The withdrawals are delivered.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_withdrawal_does_not_affect_a_later_proposal() {
    let setup = Setup::shared(3);
    let locks = setup.open("").await;
    let other_route = setup.other_route();
    let other = other_route.open(PATIENT).await;
    setup.warm_up(&locks).await;
    let old: Vec<u64> = setup.proxies.iter().map(|proxy| proxy.counts().connections).collect();
    for proxy in &setup.proxies {
        proxy.set_existing(Direction::ToClient, Flow::Hold);
    }
    let trying = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("n").acquire().await.unwrap() }
    });
    setup.wait_for_votes(&[1; 3]).await;
    for proxy in &setup.proxies {
        proxy.set_existing(Direction::ToServer, Flow::Hold);
    }
    let guard = trying.await.unwrap();
    setup.wait_for_votes(&[1; 3]).await;
    for proxy in &setup.proxies {
        proxy.set(Direction::ToServer, Flow::Pass);
        proxy.set(Direction::ToClient, Flow::Pass);
    }
    // The client gives up those of a majority. The reply of the third server may arrive before: then nothing was late there.
    clock::until("the connections of the proposals end", || async {
        let ended = setup.proxies.iter().zip(&old).filter(|(proxy, old)| proxy.open_of_first(**old) < **old);
        ended.count() >= 2
    })
    .await;
    assert!(guard.is_held());
    assert_eq!(setup.votes().await, [1; 3], "a late release has removed the votes of a later proposal");
    assert!(other.lock("n").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    setup.wait_until_free().await;
}
