//! A node that says nothing costs little.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{
    clock::now,
    history::{at, nanos},
};

use crate::site::Site;

/// The median and the longest of some cycles.
async fn cycles(locks: &Locks, count: usize) -> (Duration, Duration) {
    let mut took = nanos();
    for _ in 0..count {
        let began = now();
        locks.lock("n").acquire().await.unwrap().release().await.unwrap();
        took.saturating_record(u64::try_from(now().since(began).as_nanos()).unwrap());
    }
    (at(&took, 0.5), at(&took, 1.0))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_node_does_not_slow_the_others_down() {
    let site = Site::shared(5);
    let locks = site.open("").await;
    cycles(&locks, 20).await;
    let (healthy, _) = cycles(&locks, 200).await;
    site.freeze(3);
    // Until it is known.
    cycles(&locks, 20).await;
    let (frozen, longest) = cycles(&locks, 200).await;
    println!("p50 {healthy:?} healthy, {frozen:?} with a frozen node, of which the longest {longest:?}");
    assert!(longest < Duration::from_millis(200), "{longest:?}: somebody has waited for it");
    site.thaw(3);
    site.is_free_soon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_stopped_node_hears_late_does_no_harm() {
    let site = Site::private(3, &[]);
    let locks = site.open("").await;
    let other_way = site.other_way();
    let other = other_way.open("").await;
    for _ in 0..3 {
        tokio::task::block_in_place(|| site.nodes[1].freeze());
        cycles(&locks, 100).await;
        cycles(&other, 100).await;
        let guard = other.lock("n").acquire().await.unwrap();
        tokio::task::block_in_place(|| site.nodes[1].thaw());
        assert!(locks.lock("n").try_acquire().await.unwrap().is_none());
        assert!(guard.is_held());
        let votes = site.holders("n").await;
        assert!(votes[0].is_some() && votes[0] == votes[2], "the holder's votes are gone: {votes:?}");
        guard.release().await.unwrap();
        site.is_free_soon().await;
    }
}
