//! A lease lasts for half of the session timeout at most. A longer TTL is refused; the default is the longest lease.

use std::time::Duration;

use futures_util::future::{join, join3};
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
async fn check_granted(locks: &Locks, name: &str, ttl: Option<Duration>, lease: Duration) {
    let lock = || ttl.map_or_else(|| locks.lock(name), |ttl| locks.lock(name).ttl(ttl));
    let began = now();
    let guard = lock().acquire().await.unwrap();
    check_lease(&guard, began, lease);
    let until = began + lease * 4 / 3;
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
    const LONGEST: Duration = Duration::from_secs(3);
    const TTL: Duration = Duration::from_millis(2800);
    let server = zookeeper::start(&["maxSessionTimeout=6000"]).unwrap();
    let namespace = Namespace::of(&server);
    let check = |number: usize, url: String| async move {
        let locks = Locks::connect(&url).await.unwrap();
        let names = [format!("longest-{number}"), format!("shorter-{number}")];
        check_refused(&locks, Some(LONGEST + Duration::from_millis(1)), LONGEST).await;
        let longest = check_granted(&locks, &names[0], None, LONGEST);
        let shorter = check_granted(&locks, &names[1], Some(TTL), TTL);
        join(longest, shorter).await;
    };
    // The default is 30 s.
    join3(
        check(0, namespace.url.clone()),
        check(1, namespace.url_with_session(Duration::from_secs(60))),
        check(2, format!("{}?polylock.ttl=10m", namespace.url)),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn are_limited_by_the_session_timeout() {
    let server = zookeeper::start(&[]).unwrap();
    let url = Namespace::of(&server).url_with_session(Duration::from_millis(7200));
    let locks = Locks::connect(&url).await.unwrap();
    let (longest, ttl) = (Duration::from_millis(3600), Duration::from_millis(2800));
    check_refused(&locks, Some(Duration::from_secs(3600)), longest).await;
    // A shorter TTL is kept, though the session lasts longer.
    join(check_granted(&locks, "a", None, longest), check_granted(&locks, "b", Some(ttl), ttl)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grow_with_a_longer_session_up_to_the_ttl() {
    const TTL: Duration = Duration::from_millis(2400);
    let server = zookeeper::start(&["minSessionTimeout=9000"]).unwrap();
    let namespace = Namespace::of(&server);
    let locks = Locks::connect(&namespace.url_with_session(Duration::from_secs(2))).await.unwrap();
    let longest = Duration::from_millis(4500);
    join(check_granted(&locks, "a", None, longest), check_granted(&locks, "b", Some(TTL), TTL)).await;
    // A hold that is left to expire is free at the end of its lease, before the end of the session.
    let guard = locks.lock("a").ttl(TTL).acquire().await.unwrap();
    guard.leave_to_expire().unwrap();
    let (left, other) = (now(), Locks::connect(&namespace.url).await.unwrap());
    other.lock("a").acquire().await.unwrap().release().await.unwrap();
    let took = now().since(left);
    assert!(took < TTL + SLACK, "{took:?}");
    // The next request of the same session is granted the lock, too.
    pause(Duration::from_millis(1)).await;
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
}
