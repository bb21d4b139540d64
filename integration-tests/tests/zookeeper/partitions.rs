//! A network that loses what is sent, in both directions or in one, and servers that stand still.

use std::time::Duration;

use polylock::{Locks, LostReason};
use polylock_integration_tests::{
    clock::{PATIENCE, now, pause},
    proxy::{BOTH, End, Flow, Proxy, Way},
    servers::zookeeper,
};
use tokio::task::block_in_place;

use crate::{SLACK, Spot, waiters};

const SESSION: Duration = Duration::from_secs(2);
/// Two ticks of the servers.
const TICKS: Duration = Duration::from_millis(400);

/// A holder whose bytes are lost these ways is told before another has the lock, and the other has it in this time.
async fn a_black_hole(ways: &[Way], within: Duration) {
    let server = zookeeper::start(&[]).unwrap();
    let (spot, proxy) = (Spot::of(&server), Proxy::to(server.port()));
    let there = Locks::connect(&spot.with(SESSION)).await.unwrap();
    let here = Locks::connect(&proxy.url(&spot.with(SESSION))).await.unwrap();
    for round in 0..3 {
        let guard = here.lock("n").acquire().await.unwrap();
        let next = tokio::spawn(there.lock("n").acquire());
        waiters(&there, "n", 1).await;
        // At any point of the renewals.
        pause(SESSION / 7 * round).await;
        let lost = guard.lost();
        let lost = tokio::spawn(async { (lost.await, now()) });
        for way in ways {
            proxy.set(*way, Flow::Swallow);
        }
        let began = now();
        let next = tokio::time::timeout(PATIENCE, next).await.expect("it is served").unwrap().unwrap();
        let granted = now();
        assert!(lost.is_finished(), "another has it and nobody was told");
        let (reason, told) = lost.await.unwrap();
        println!(
            "{ways:?}: told after {:.2?}, {:.2?} before the next had it",
            told.since(began),
            granted.since(told)
        );
        assert_eq!(reason, LostReason::DeadlineReached);
        assert!(!guard.is_held());
        assert!(granted.since(began) < within + TICKS + SLACK, "{:?}", granted.since(began));
        assert!(next.fencing_token() > guard.fencing_token());
        proxy.set_both(Flow::Pass);
        drop(guard);
        next.release().await.unwrap();
        // A new session, or the old one if it lives still.
        here.lock("n").acquire().await.unwrap().release().await.unwrap();
    }
    spot.is_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_in_a_black_hole_is_told_in_time() {
    a_black_hole(&BOTH, SESSION).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_is_not_heard_is_told_in_time() {
    a_black_hole(&[Way::ToServer], SESSION).await;
}

/// The servers hear it try to come back, so its session lives until it gives up, after 1.4 times its time.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_hears_nothing_is_told_in_time() {
    a_black_hole(&[Way::ToClient], SESSION * 24 / 10).await;
}

/// A connection that is cut while a hold lasts costs nothing, and neither does one while somebody waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_cut_costs_neither_hold_nor_place() {
    let server = zookeeper::start(&[]).unwrap();
    let (spot, proxy) = (Spot::of(&server), Proxy::to(server.port()));
    let there = Locks::connect(&spot.with(SESSION)).await.unwrap();
    let here = Locks::connect(&proxy.url(&spot.with(SESSION))).await.unwrap();
    for end in [End::Reset, End::Close] {
        let guard = here.lock("held").acquire().await.unwrap();
        let other = there.lock("waited").acquire().await.unwrap();
        let waiting = tokio::spawn(here.lock("waited").acquire());
        waiters(&there, "waited", 1).await;
        let before = there.inspect("waited").await.unwrap();
        for _ in 0..3 {
            assert!(proxy.cut(end) > 0);
            pause(SESSION / 4).await;
        }
        pause(SESSION).await;
        assert!(guard.is_held());
        assert_eq!(there.inspect("waited").await.unwrap().waiters.len(), before.waiters.len());
        let (token, began) = (other.fencing_token(), now());
        other.release().await.unwrap();
        let next = tokio::time::timeout(PATIENCE, waiting).await.expect("its turn comes").unwrap().unwrap();
        assert!(next.fencing_token() > token && now().since(began) < Duration::from_secs(1) + SLACK);
        next.release().await.unwrap();
        guard.release().await.unwrap();
    }
    spot.is_clean().await;
}

/// Servers that stand still for twice as long as a session lasts: their own clocks go on, so all sessions may be over then.
#[tokio::test(flavor = "multi_thread")]
async fn servers_that_stand_still_cost_the_lock_at_its_deadline() {
    let server = zookeeper::start(&[]).unwrap();
    let spot = Spot::of(&server);
    let (here, there) = (
        Locks::connect(&spot.with(SESSION)).await.unwrap(),
        Locks::connect(&spot.with(SESSION)).await.unwrap(),
    );
    let guard = here.lock("n").acquire().await.unwrap();
    let next = tokio::spawn(there.lock("n").acquire());
    waiters(&there, "n", 1).await;
    let lost = guard.lost();
    block_in_place(|| server.freeze());
    let frozen = now();
    assert_eq!(lost.await, LostReason::DeadlineReached);
    assert!(now().since(frozen) < SESSION && !guard.is_held());
    pause(2 * SESSION).await;
    assert!(!next.is_finished());
    block_in_place(|| server.thaw());
    let thawed = now();
    let next = tokio::time::timeout(PATIENCE, next).await.expect("it is served").unwrap().unwrap();
    println!("served {:.2?} after the servers went on", now().since(thawed));
    assert!(next.fencing_token() > guard.fencing_token() && next.is_held());
    drop(guard);
    next.release().await.unwrap();
    spot.is_clean().await;
}
