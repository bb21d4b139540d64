//! A lease lasts for two thirds of the session's time-out at the most. A longer one that was asked for is refused; the default is
//! what there is.

use std::time::Duration;

use polylock::{Error, Guard, Locks, Moment};
use polylock_integration_tests::{
    clock::{now, pause},
    servers::zookeeper,
};

use polylock_core::invariant::margin;

use crate::{SLACK, Spot};

/// It was asked for at `asked`, and has this lease: not more, and not less but for the margin of each deadline, the larger
/// of 10 ms and 1 %.
fn has(guard: &Guard, asked: Moment, lease: Duration) {
    let (deadline, least) = (guard.deadline(), asked + (lease - margin(lease)));
    assert!(deadline >= least, "less by {:?}", least.since(deadline));
    assert!(deadline <= now() + lease && guard.remaining() <= lease, "more: {:?}", guard.remaining());
}

/// Its lease is that at the beginning, and after each renewal, for longer than one lease.
async fn keeps(locks: &Locks, ttl: Option<Duration>, lease: Duration) {
    let lock = || ttl.map_or_else(|| locks.lock("a"), |ttl| locks.lock("a").ttl(ttl));
    let asked = now();
    let guard = lock().acquire().await.unwrap();
    has(&guard, asked, lease);
    let until = asked + 2 * lease;
    let mut renewals = 0;
    while now() < until {
        let (before, renewed) = (guard.deadline(), guard.renewed());
        let deadline = renewed.await.expect("it is kept");
        assert!(deadline > before && deadline <= now() + lease, "{:?}", deadline.since(now()));
        renewals += 1;
    }
    assert!(renewals >= 2, "it is renewed in time");
    println!("{lease:?}: {renewals} renewals in {:.1?}", now().since(asked));
    guard.release().await.unwrap();
}

/// Nothing is sent, and the error tells what there is.
async fn refuses(locks: &Locks, ttl: Option<Duration>, longest: Duration) {
    let lock = ttl.map_or_else(|| locks.lock("a"), |ttl| locks.lock("a").ttl(ttl));
    let refused = lock.acquire().await.unwrap_err();
    assert!(matches!(refused, Error::InvalidTtl { max, .. } if max == longest), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn is_no_longer_than_what_the_servers_give() {
    let server = zookeeper::start(&["maxSessionTimeout=1500"]).unwrap();
    let spot = Spot::of(&server);
    // 30 s are asked for if nothing is said.
    // 30 s are asked for if nothing is said.
    for url in
        [spot.url.clone(), spot.with(Duration::from_secs(60)), format!("{}?polylock.ttl=10m", spot.url)]
    {
        let locks = Locks::connect(&url).await.unwrap();
        keeps(&locks, None, Duration::from_millis(1000)).await;
        refuses(&locks, Some(Duration::from_millis(1001)), Duration::from_millis(1000)).await;
        keeps(&locks, Some(Duration::from_millis(700)), Duration::from_millis(700)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn is_no_longer_than_what_the_session_allows() {
    let server = zookeeper::start(&[]).unwrap();
    let locks = Locks::connect(&Spot::of(&server).with(Duration::from_millis(1800))).await.unwrap();
    keeps(&locks, None, Duration::from_millis(1200)).await;
    refuses(&locks, Some(Duration::from_secs(3600)), Duration::from_millis(1200)).await;
    // As asked for, though the session lasts longer.
    keeps(&locks, Some(Duration::from_millis(900)), Duration::from_millis(900)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grows_with_what_the_servers_give_up_to_what_was_asked_for() {
    let server = zookeeper::start(&["minSessionTimeout=3000"]).unwrap();
    let spot = Spot::of(&server);
    let locks = Locks::connect(&spot.with(Duration::from_millis(600))).await.unwrap();
    keeps(&locks, None, Duration::from_millis(2000)).await;
    keeps(&locks, Some(Duration::from_millis(800)), Duration::from_millis(800)).await;
    // A lease that ends before its session does: nobody renews what was left, and it is free then.
    let guard = locks.lock("a").ttl(Duration::from_millis(800)).acquire().await.unwrap();
    guard.leave_to_expire().unwrap();
    let (left, other) = (now(), Locks::connect(&spot.url).await.unwrap());
    other.lock("a").acquire().await.unwrap().release().await.unwrap();
    let took = now().since(left);
    assert!(took < Duration::from_millis(800) + SLACK, "{took:?}");
    // The next one of the same session waits for nobody either.
    pause(Duration::from_millis(1)).await;
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
}
