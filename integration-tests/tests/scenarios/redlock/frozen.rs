//! An unresponsive node costs little time.

use std::time::Duration;

use polylock::Locks;
use polylock_bench::Times;
use polylock_integration_tests::clock::now;

use super::setup::Setup;

/// Returns the median and the longest duration of some cycles.
async fn cycles(locks: &Locks, count: usize) -> (Duration, Duration) {
    let mut took = Times::new();
    for _ in 0..count {
        let began = now();
        locks.lock("n").acquire().await.unwrap().release().await.unwrap();
        took.record_since(began);
    }
    (took.p50(), took.max())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_node_does_not_slow_the_others_down() {
    let setup = Setup::shared(5);
    let locks = setup.open("").await;
    cycles(&locks, 20).await;
    let (healthy, _) = cycles(&locks, 200).await;
    setup.freeze(3);
    // Until the freeze is detected.
    cycles(&locks, 20).await;
    // An operation that waits for the node takes 200 ms. On a busy machine others do, too, but not in every round.
    let mut longest = Duration::MAX;
    for _ in 0..10 {
        let (frozen, longest_of_round) = cycles(&locks, 200).await;
        println!("p50 {healthy:?} healthy, {frozen:?} with a frozen node, the longest {longest_of_round:?}");
        longest = longest.min(longest_of_round);
        if longest < Duration::from_millis(200) {
            break;
        }
    }
    assert!(longest < Duration::from_millis(200), "{longest:?}: operations have waited for the node");
    setup.thaw(3);
    setup.wait_until_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn late_messages_of_a_stopped_node_have_no_effect() {
    let setup = Setup::private(3, &[]);
    // Two of three nodes must reply to a try. They count as silent later than a busy machine delays them.
    let patient = "&polylock.operation_timeout=2s";
    let locks = setup.open(patient).await;
    let other_route = setup.other_route();
    let other = other_route.open(patient).await;
    for _ in 0..3 {
        tokio::task::block_in_place(|| setup.nodes[1].freeze());
        cycles(&locks, 100).await;
        cycles(&other, 100).await;
        let guard = other.lock("n").acquire().await.unwrap();
        tokio::task::block_in_place(|| setup.nodes[1].thaw());
        assert!(locks.lock("n").try_acquire().await.unwrap().is_none());
        assert!(guard.is_held());
        let votes = setup.holders("n").await;
        assert!(votes[0].is_some() && votes[0] == votes[2], "the holder's votes are gone: {votes:?}");
        guard.release().await.unwrap();
        setup.wait_until_free().await;
    }
}
