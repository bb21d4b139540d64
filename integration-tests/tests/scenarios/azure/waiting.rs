//! The cost of waiting, and the delay of a hand-over.

use std::{collections::HashSet, time::Duration};

use futures_util::future::join_all;
use polylock::{Guard, Locks};
use polylock_azure::{
    Config, WakeSignal,
    azure_core::time::{OffsetDateTime, parse_rfc7231},
};
use polylock_integration_tests::{
    clock::{TIMEOUT, now, pause},
    proxy::Proxy,
};
use tokio::task::JoinHandle;

use super::{Namespace, SETTLE_TIME, acquire_and_release, server};

/// The time of a hand-over with a notification: much less than the pause of up to a second between two polls.
const AT_ONCE: Duration = Duration::from_millis(300);

/// Returns true if most of these hand-overs had a notification. A busy machine delays some, and polls are as quick by chance.
fn most_are_at_once(took: &[Duration]) -> bool {
    took.iter().filter(|took| **took < AT_ONCE).count() * 2 > took.len()
}

/// Opens the store behind a separate proxy, with the default time limit of a request: after a request without a reply in time, its
/// lease is released again and again for a while, which would be counted.
async fn through(namespace: &Namespace) -> (Proxy, Locks) {
    let proxy = Proxy::to_http(server().port());
    let locks = Locks::connect(&proxy.url(&namespace.url)).await.unwrap();
    (proxy, locks)
}

/// Starts `count` waiters in one process.
fn herd(locks: &Locks, name: &'static str, count: usize) -> Vec<JoinHandle<Guard>> {
    let wait = |locks: Locks| async move { locks.lock(name).acquire().await.unwrap() };
    (0..count).map(|_| tokio::spawn(wait(locks.clone()))).collect()
}

/// Returns the number of requests in the next `time`.
async fn requests(proxy: &Proxy, time: Duration) -> u64 {
    let before = proxy.counts().requests;
    pause(time).await;
    proxy.counts().requests - before
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_waiters_poll_as_often_as_one_and_all_are_granted() {
    let namespace = Namespace::of(server());
    let there = namespace.locks().await;
    let (proxy, here) = through(&namespace).await;
    let guard = there.lock("a").acquire().await.unwrap();
    let take = |locks: Locks| async move {
        let guard = locks.lock("a").acquire().await.unwrap();
        let token = guard.fencing_token();
        guard.release().await.unwrap();
        token
    };
    let waiting: Vec<_> = (0..64).map(|_| tokio::spawn(take(here.clone()))).collect();
    let first = requests(&proxy, Duration::from_secs(1)).await;
    let later = requests(&proxy, Duration::from_secs(5)).await;
    println!("{first} requests in the first second, {later} in five more");
    assert!((1..=10).contains(&first), "{first} requests in the first second");
    assert!((2..=15).contains(&later), "{later} requests in five seconds");
    let last = guard.fencing_token();
    let (began, before) = (now(), proxy.counts().requests);
    guard.release().await.unwrap();
    let mut tokens = HashSet::new();
    for one in waiting {
        tokens.insert(
            tokio::time::timeout(TIMEOUT, one).await.expect("the waiter is granted the lock").unwrap(),
        );
    }
    assert!(tokens.len() == 64 && tokens.iter().all(|token| *token > last), "{tokens:?}");
    let (took, sent) = (now().since(began), proxy.counts().requests - before);
    println!("all had it after {took:.1?}, with {sent} requests");
    // An acquisition, a write of the grant, a release: no request is refused because of a holder in the same process.
    assert!(sent <= 64 * 3 + 16, "{sent} requests");
    acquire_and_release(&there, "a").await;
}

/// Returns how much longer a hand-over took than a release and an acquisition without a waiter, which a busy server delays, too.
async fn beyond_two_operations(took: Duration, locks: &Locks, name: &str) -> Duration {
    let guard = locks.lock(name).acquire().await.unwrap();
    let began = now();
    guard.release().await.unwrap();
    let guard = locks.lock(name).acquire().await.unwrap();
    let without = now().since(began);
    guard.release().await.unwrap();
    took.saturating_sub(without)
}

/// Returns the time from a release to the grant to a waiter of the same process, see [`beyond_two_operations`].
async fn handed_over_within(here: &Locks, name: &'static str) -> Duration {
    let guard = here.lock(name).acquire().await.unwrap();
    let waiting = herd(here, name, 1).remove(0);
    // By now the pauses between polls are the longest.
    pause(Duration::from_secs(3)).await;
    let began = now();
    guard.release().await.unwrap();
    let next = tokio::time::timeout(TIMEOUT, waiting).await.expect("the waiter is granted the lock").unwrap();
    let took = now().since(began);
    next.release().await.unwrap();
    beyond_two_operations(took, here, name).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_in_the_same_process_hands_over_at_once() {
    let here = Namespace::of(server()).locks().await;
    let mut took = Vec::new();
    for _ in 0..3 {
        let all = ["a", "b", "c", "d"].map(|name| handed_over_within(&here, name));
        took.extend(join_all(all).await);
    }
    println!("handed over after {took:.1?}");
    assert!(most_are_at_once(&took), "{took:?}");
}

/// Returns the time from a release in another store to the grant to `waiter`, see [`beyond_two_operations`]; `then` runs right after the
/// release.
async fn handed_over(
    namespace: &Namespace,
    waiter: &Locks,
    name: &'static str,
    then: impl FnOnce(),
) -> Duration {
    let guard = namespace.locks().await.lock(name).acquire().await.unwrap();
    let waiting = herd(waiter, name, 1).remove(0);
    pause(Duration::from_secs(2)).await;
    guard.release().await.unwrap();
    let began = now();
    then();
    let next = tokio::time::timeout(TIMEOUT, waiting).await.expect("the waiter is granted the lock").unwrap();
    let took = now().since(began);
    next.release().await.unwrap();
    beyond_two_operations(took, waiter, name).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wake_signal_wakes_waiters_early() {
    let namespace = Namespace::of(server());
    let signal = WakeSignal::default();
    let opened = async || {
        let store =
            polylock_azure::connect(Config::new(&namespace.url).unwrap().wake_signal(&signal)).await.unwrap();
        Locks::new(store)
    };
    let mut waiters = Vec::new();
    for name in ["b/0", "b/1", "b/2", "b/3", "b/4", "b/5"] {
        waiters.push((name, opened().await));
    }
    let with = join_all(waiters.iter().map(async |(name, waiter)| {
        let mut with = Vec::new();
        for _ in 0..3 {
            with.push(handed_over(&namespace, waiter, name, || signal.notify(name).unwrap()).await);
        }
        with
    }));
    let with = with.await.concat();
    println!("handed over after {with:.1?} with the signal");
    assert!(most_are_at_once(&with), "the signal does not wake the waiters");
    // A poll of each of them may come soon after a release by chance, but not again and again.
    for round in 1.. {
        let without = waiters.iter().map(|(name, waiter)| handed_over(&namespace, waiter, name, || ()));
        let without = join_all(without).await;
        println!("handed over after {without:.1?} without it");
        if without.iter().any(|took| *took >= AT_ONCE) {
            break;
        }
        assert!(round < 5, "the signal makes no difference");
    }
    let (waiter, mut all) = (opened().await, Vec::new());
    for _ in 0..3 {
        all.push(handed_over(&namespace, &waiter, "all", || signal.notify_all()).await);
    }
    assert!(most_are_at_once(&all), "{all:?}");
    assert!(signal.notify("").is_err(), "an invalid name");
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_waiters_stop_polling_and_leave_nothing() {
    let namespace = Namespace::of(server());
    let there = namespace.locks().await;
    let (proxy, here) = through(&namespace).await;
    let guard = there.lock("a").acquire().await.unwrap();
    let waiting = herd(&here, "a", 8);
    pause(Duration::from_millis(300)).await;
    waiting.iter().for_each(JoinHandle::abort);
    let error = here.lock("a").wait(Duration::from_secs(2)).acquire().await.unwrap_err();
    assert!(error.is_not_acquired(), "{error:?}");
    // Their releases are confirmed.
    assert!(here.clone().close(SETTLE_TIME).await);
    assert_eq!(requests(&proxy, Duration::from_secs(3)).await, 0);
    guard.release().await.unwrap();
    acquire_and_release(&there, "a").await;
    // No cancelled waiter is left in the local queue.
    acquire_and_release(&here, "a").await;
    let guard = here.lock("a").acquire().await.unwrap();
    guard.release().await.unwrap();
}

/// Each marker is a billed write, so it is renewed no more often than necessary.
#[tokio::test(flavor = "multi_thread")]
async fn a_marker_is_renewed_shortly_before_it_expires() {
    let namespace = Namespace::of(server());
    let (here, there) = (namespace.locks().await, namespace.locks().await);
    let guard = here.lock("a").acquire().await.unwrap();
    let waiting = herd(&there, "a", 3);
    let began = now();
    let mut written: Vec<OffsetDateTime> = Vec::new();
    while now().since(began) < Duration::from_secs(20) {
        let head = namespace.send(&format!("HEAD {}/a_waits", namespace.path)).await;
        if let Some(date) = head.lines().find_map(|line| line.strip_prefix("last-modified: ")) {
            let date = parse_rfc7231(date).unwrap();
            if written.last() != Some(&date) {
                written.push(date);
            }
        }
        pause(Duration::from_millis(50)).await;
    }
    let gaps: Vec<_> = written.windows(2).map(|two| (two[1] - two[0]).whole_seconds()).collect();
    println!("{} markers in twenty seconds, after {gaps:?} s", written.len());
    assert!(gaps.len() >= 2, "{gaps:?}");
    // A marker counts for seven seconds, and the dates are whole seconds. A busy machine may be late once, with either marker of a gap.
    assert!(gaps.iter().all(|gap| *gap >= 3), "{gaps:?}");
    assert!(gaps.iter().filter(|gap| **gap < 5).count() <= 1, "{gaps:?}");
    assert!(gaps.iter().filter(|gap| **gap > 7).count() <= 1, "{gaps:?}");
    waiting.iter().for_each(JoinHandle::abort);
    guard.release().await.unwrap();
}
