//! Partitions, in both directions or in one.

use std::time::Duration;

use polylock::{Locks, LostReason};
use polylock_integration_tests::{
    clock::{TIMEOUT, now, pause, until},
    proxy::{BOTH, Direction, End, Flow, Proxy},
    servers::zookeeper,
    stores::wait_for_waiters,
};
use tokio::task::block_in_place;

use super::{Namespace, SLACK};

const SESSION: Duration = Duration::from_secs(4);
/// A session that does not end during a test.
const LONG: Duration = Duration::from_secs(60);
/// Two ticks of the servers.
const TICKS: Duration = Duration::from_millis(400);

/// Checks that a holder whose packets are lost in these directions is notified before the next grant, which happens `within` this
/// time.
async fn check_partition(ways: &[Direction], within: Duration) {
    let server = zookeeper::start(&[]).unwrap();
    let (namespace, proxy) = (Namespace::of(&server), Proxy::to(server.port()));
    let there = Locks::connect(&namespace.url_with_session(LONG)).await.unwrap();
    let here = Locks::connect(&proxy.url(&namespace.url_with_session(SESSION))).await.unwrap();
    for round in 0..3 {
        let guard = here.lock("n").acquire().await.unwrap();
        let next = tokio::spawn(there.lock("n").acquire());
        wait_for_waiters(&there, "n", 1).await;
        // At any point between two renewals.
        pause(SESSION / 7 * round).await;
        let lost = guard.lost();
        let lost = tokio::spawn(async { (lost.await, now()) });
        for way in ways {
            proxy.set(*way, Flow::Drop);
        }
        let began = now();
        let next = tokio::time::timeout(TIMEOUT, next)
            .await
            .expect("the waiter is granted the lock")
            .unwrap()
            .unwrap();
        let granted = now();
        assert!(lost.is_finished(), "the lock was granted before the former holder was notified");
        let (reason, notified) = lost.await.unwrap();
        println!(
            "{ways:?}: notified after {:.2?}, {:.2?} before the next grant",
            notified.since(began),
            granted.since(notified)
        );
        assert_eq!(reason, LostReason::DeadlineReached);
        assert!(!guard.is_held());
        assert!(granted.since(began) < within + TICKS + SLACK, "{:?}", granted.since(began));
        assert!(next.fencing_token() > guard.fencing_token());
        proxy.set_both(Flow::Pass);
        drop(guard);
        next.release().await.unwrap();
        // In a new session, or in the old one if it is still alive.
        here.lock("n").acquire().await.unwrap().release().await.unwrap();
    }
    namespace.wait_until_empty().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partitioned_holder_is_notified_in_time() {
    check_partition(&BOTH, SESSION).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_with_lost_requests_is_notified_in_time() {
    check_partition(&[Direction::ToServer], SESSION).await;
}

/// The servers receive its reconnections, so its session lives until the driver gives up, after 1.4 times its timeout.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_with_lost_replies_is_notified_in_time() {
    check_partition(&[Direction::ToClient], SESSION * 24 / 10).await;
}

/// Neither for a holder nor for a waiter.
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_connection_loses_neither_hold_nor_queue_position() {
    // A hold lasts for half of the session without a renewal.
    const SESSION: Duration = Duration::from_secs(6);
    let server = zookeeper::start(&[]).unwrap();
    let (namespace, proxy) = (Namespace::of(&server), Proxy::to(server.port()));
    let there = Locks::connect(&namespace.url_with_session(LONG)).await.unwrap();
    let here = Locks::connect(&proxy.url(&namespace.url_with_session(SESSION))).await.unwrap();
    for end in [End::Reset, End::Close] {
        let guard = here.lock("held").acquire().await.unwrap();
        let other = there.lock("waited").acquire().await.unwrap();
        let waiting = tokio::spawn(here.lock("waited").acquire());
        wait_for_waiters(&there, "waited", 1).await;
        let before = there.inspect("waited").await.unwrap();
        for _ in 0..3 {
            assert!(proxy.cut(end) > 0);
            until("it connects again", async || proxy.counts().open > 0).await;
            pause(Duration::from_millis(500)).await;
        }
        pause(SESSION).await;
        assert!(guard.is_held());
        assert_eq!(there.inspect("waited").await.unwrap().waiters.len(), before.waiters.len());
        let (token, began) = (other.fencing_token(), now());
        other.release().await.unwrap();
        let next = tokio::time::timeout(TIMEOUT, waiting)
            .await
            .expect("the waiter is granted the lock")
            .unwrap()
            .unwrap();
        assert!(next.fencing_token() > token && now().since(began) < Duration::from_secs(1) + SLACK);
        next.release().await.unwrap();
        guard.release().await.unwrap();
    }
    namespace.wait_until_empty().await;
}

/// A server without contact to the leader replies to reads until it notices, while the leader ends its sessions.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_without_its_leader_renews_no_hold() {
    // It notices after twenty seconds.
    let ensemble = zookeeper::ensemble(3, &["syncLimit=100"]).unwrap();
    let namespace = Namespace::of(&ensemble);
    let leader = block_in_place(|| ensemble.leader());
    let follower = (leader + 1) % 3;
    let server = format!("zookeeper://127.0.0.1:{}", ensemble.members()[follower].port());
    let timeout = format!("polylock.session_timeout={}ms", SESSION.as_millis());
    let locks = Locks::connect(&format!("{server}{}?{timeout}", namespace.root)).await.unwrap();
    let guard = locks.lock("n").acquire().await.unwrap();
    let others = || ensemble.members().iter().enumerate().filter(|(index, _)| *index != follower);
    block_in_place(|| others().for_each(|(_, member)| member.freeze()));
    let lost = tokio::time::timeout(SESSION + SLACK, guard.lost()).await;
    block_in_place(|| others().for_each(|(_, member)| member.thaw()));
    assert_eq!(lost.expect("the hold ends without its leader"), LostReason::DeadlineReached);
    drop(guard);
    locks.lock("n").acquire().await.unwrap().release().await.unwrap();
    namespace.wait_until_empty().await;
}
