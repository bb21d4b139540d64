//! A lease lasts for half of the session timeout at most. A longer TTL is refused; the default is the longest lease.

use std::time::Duration;

use polylock::{Error, Guard, Locks, Moment};
use polylock_integration_tests::{
    clock::{now, pause},
    servers::zookeeper,
};

use polylock_core::deadline::margin;

use super::{Namespace, SLACK};

/// Checks that the guard, acquired at `began`, has this lease, less the margin of each deadline: the larger of 10 ms and 1 %.
fn check_lease(guard: &Guard, began: Moment, lease: Duration) {
    let (deadline, least) = (guard.deadline(), began + (lease - margin(lease)));
    assert!(deadline >= least, "less by {:?}", least.since(deadline));
    assert!(deadline <= now() + lease && guard.remaining() <= lease, "more: {:?}", guard.remaining());
}

/// Checks the lease after the acquisition and after each renewal, for longer than one lease.
async fn check_granted(locks: &Locks, ttl: Option<Duration>, lease: Duration) {
    let lock = || ttl.map_or_else(|| locks.lock("a"), |ttl| locks.lock("a").ttl(ttl));
    let began = now();
    let guard = lock().acquire().await.unwrap();
    check_lease(&guard, began, lease);
    let until = began + 2 * lease;
    let mut renewals = 0;
    while now() < until {
        let (before, renewed) = (guard.deadline(), guard.renewed());
        let deadline = renewed.await.expect("it is renewed");
        assert!(deadline > before && deadline <= now() + lease, "{:?}", deadline.since(now()));
        renewals += 1;
    }
    assert!(renewals >= 2, "too few renewals");
    println!("{lease:?}: {renewals} renewals in {:.1?}", now().since(began));
    guard.release().await.unwrap();
}

/// Checks that the TTL is refused, and that the error states the longest lease.
async fn check_refused(locks: &Locks, ttl: Option<Duration>, longest: Duration) {
    let lock = ttl.map_or_else(|| locks.lock("a"), |ttl| locks.lock("a").ttl(ttl));
    let refused = lock.acquire().await.unwrap_err();
    assert!(matches!(refused, Error::InvalidTtl { max, .. } if max == longest), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn are_limited_by_the_servers() {
    let server = zookeeper::start(&["maxSessionTimeout=1500"]).unwrap();
    let namespace = Namespace::of(&server);
    // The default is 30 s.
    for url in [
        namespace.url.clone(),
        namespace.url_with_session(Duration::from_secs(60)),
        format!("{}?polylock.ttl=10m", namespace.url),
    ] {
        let locks = Locks::connect(&url).await.unwrap();
        check_granted(&locks, None, Duration::from_millis(750)).await;
        check_refused(&locks, Some(Duration::from_millis(751)), Duration::from_millis(750)).await;
        check_granted(&locks, Some(Duration::from_millis(700)), Duration::from_millis(700)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn are_limited_by_the_session_timeout() {
    let server = zookeeper::start(&[]).unwrap();
    let locks =
        Locks::connect(&Namespace::of(&server).url_with_session(Duration::from_millis(1800))).await.unwrap();
    check_granted(&locks, None, Duration::from_millis(900)).await;
    check_refused(&locks, Some(Duration::from_secs(3600)), Duration::from_millis(900)).await;
    // A shorter TTL is kept, though the session lasts longer.
    check_granted(&locks, Some(Duration::from_millis(700)), Duration::from_millis(700)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grow_with_a_longer_session_up_to_the_ttl() {
    let server = zookeeper::start(&["minSessionTimeout=3000"]).unwrap();
    let namespace = Namespace::of(&server);
    let locks = Locks::connect(&namespace.url_with_session(Duration::from_millis(600))).await.unwrap();
    check_granted(&locks, None, Duration::from_millis(1500)).await;
    check_granted(&locks, Some(Duration::from_millis(800)), Duration::from_millis(800)).await;
    // A hold that is left to expire is free at the end of its lease, before the end of the session.
    let guard = locks.lock("a").ttl(Duration::from_millis(800)).acquire().await.unwrap();
    guard.leave_to_expire().unwrap();
    let (left, other) = (now(), Locks::connect(&namespace.url).await.unwrap());
    other.lock("a").acquire().await.unwrap().release().await.unwrap();
    let took = now().since(left);
    assert!(took < Duration::from_millis(800) + SLACK, "{took:?}");
    // The next request of the same session is granted the lock, too.
    pause(Duration::from_millis(1)).await;
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
}
