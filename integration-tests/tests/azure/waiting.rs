//! What waiting costs, and how soon it ends.

use std::{collections::HashSet, time::Duration};

use polylock::{Guard, Locks};
use polylock_azure::{
    Bell, Config,
    azure_core::time::{OffsetDateTime, parse_rfc7231},
};
use polylock_integration_tests::{
    clock::{PATIENCE, now, pause},
    proxy::Proxy,
};
use tokio::task::JoinHandle;

use crate::{SETTLED, SLACK, Spot, is_free, server};

/// So many who wait for the lock, in one process.
fn herd(locks: &Locks, name: &'static str, count: usize) -> Vec<JoinHandle<Guard>> {
    let wait = |locks: Locks| async move { locks.lock(name).acquire().await.unwrap() };
    (0..count).map(|_| tokio::spawn(wait(locks.clone()))).collect()
}

/// The requests of `time` from now on.
async fn requests(proxy: &Proxy, time: Duration) -> u64 {
    let before = proxy.counts().requests;
    pause(time).await;
    proxy.counts().requests - before
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_ask_no_more_often_than_one_and_all_get_it() {
    let spot = Spot::of(server());
    let there = spot.locks().await;
    let (proxy, here) = spot.through(server()).await;
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
    assert!((4..=15).contains(&later), "{later} requests in five seconds");
    let last = guard.fencing_token();
    let (began, before) = (now(), proxy.counts().requests);
    guard.release().await.unwrap();
    let mut tokens = HashSet::new();
    for one in waiting {
        tokens.insert(tokio::time::timeout(PATIENCE, one).await.expect("its turn comes").unwrap());
    }
    assert!(tokens.len() == 64 && tokens.iter().all(|token| *token > last), "{tokens:?}");
    let (took, asked) = (now().since(began), proxy.counts().requests - before);
    println!("all had it after {took:.1?}, with {asked} requests");
    // An acquisition, a fence, a release: nobody asks in vain for what its own process has.
    assert!(asked <= 64 * 3 + 16, "{asked} requests");
    is_free(&there, "a").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_in_the_same_process_hands_over_at_once() {
    let here = Spot::of(server()).locks().await;
    // Their pauses would be the longest by now.
    for _ in 0..3 {
        let guard = here.lock("a").acquire().await.unwrap();
        let waiting = herd(&here, "a", 1).remove(0);
        pause(Duration::from_secs(3)).await;
        let began = now();
        guard.release().await.unwrap();
        let next = tokio::time::timeout(PATIENCE, waiting).await.expect("its turn comes").unwrap();
        let took = now().since(began);
        println!("handed over after {took:.1?}");
        assert!(took < SLACK, "{took:?}");
        next.release().await.unwrap();
    }
}

/// How long after the release in another store it has the lock, with something else that happens then.
async fn handed_over(spot: &Spot, waiter: &Locks, name: &'static str, then: impl FnOnce()) -> Duration {
    let guard = spot.locks().await.lock(name).acquire().await.unwrap();
    let waiting = herd(waiter, name, 1).remove(0);
    pause(Duration::from_secs(2)).await;
    guard.release().await.unwrap();
    let began = now();
    then();
    let next = tokio::time::timeout(PATIENCE, waiting).await.expect("its turn comes").unwrap();
    let took = now().since(began);
    next.release().await.unwrap();
    took
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bell_wakes_a_waiter_early() {
    let spot = Spot::of(server());
    let bell = Bell::default();
    let opened = async || {
        let store = polylock_azure::connect(Config::new(&spot.url).unwrap().bell(&bell)).await.unwrap();
        Locks::new(store)
    };
    let names = ["b/0", "b/1", "b/2", "b/3", "b/4", "b/5"];
    let mut all = Vec::new();
    for name in names {
        let waiter = opened().await;
        // Rung, and not: the planted twin.
        let (bell, spot) = (bell.clone(), &spot);
        all.push(async move {
            let by_name = handed_over(spot, &waiter, name, || bell.ring(name).unwrap()).await;
            let unrung = handed_over(spot, &waiter, name, || ()).await;
            (by_name, unrung)
        });
    }
    let all = futures_util::future::join_all(all).await;
    let longest = |times: &mut dyn Iterator<Item = Duration>| times.max().unwrap();
    let rung = longest(&mut all.iter().map(|(rung, _)| *rung));
    let unrung = longest(&mut all.iter().map(|(_, unrung)| *unrung));
    println!("handed over after {rung:.1?} at most, and {unrung:.1?} without the bell");
    assert!(rung < SLACK && unrung > rung, "it makes no difference");
    let took = handed_over(&spot, &opened().await, "all", || bell.ring_all()).await;
    assert!(took < SLACK, "{took:?}");
    assert!(bell.ring("").is_err(), "no name");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_no_longer_waits_asks_no_more_and_leaves_nothing() {
    let spot = Spot::of(server());
    let there = spot.locks().await;
    let (proxy, here) = spot.through(server()).await;
    let guard = there.lock("a").acquire().await.unwrap();
    let waiting = herd(&here, "a", 8);
    pause(Duration::from_millis(300)).await;
    waiting.iter().for_each(JoinHandle::abort);
    let error = here.lock("a").wait(Duration::from_millis(300)).acquire().await.unwrap_err();
    assert!(error.is_not_acquired(), "{error:?}");
    // Their releases are through.
    assert!(here.clone().close(SETTLED).await);
    assert_eq!(requests(&proxy, Duration::from_secs(3)).await, 0);
    guard.release().await.unwrap();
    is_free(&there, "a").await;
    // Nobody stands in the line before who comes now.
    is_free(&here, "a").await;
    let guard = here.lock("a").acquire().await.unwrap();
    guard.release().await.unwrap();
}

/// Each is a write, so it is written no more often than it must be to count all the time.
#[tokio::test(flavor = "multi_thread")]
async fn a_mark_is_renewed_before_it_counts_no_more_and_not_much_before() {
    let spot = Spot::of(server());
    let (here, there) = (spot.locks().await, spot.locks().await);
    let guard = here.lock("a").acquire().await.unwrap();
    let waiting = herd(&there, "a", 3);
    let began = now();
    let mut written: Vec<OffsetDateTime> = Vec::new();
    while now().since(began) < Duration::from_secs(20) {
        let head = spot.ask(&format!("HEAD {}/a_waits", spot.path)).await;
        if let Some(date) = head.lines().find_map(|line| line.strip_prefix("last-modified: ")) {
            let date = parse_rfc7231(date).unwrap();
            if written.last() != Some(&date) {
                written.push(date);
            }
        }
        pause(Duration::from_millis(50)).await;
    }
    let gaps: Vec<_> = written.windows(2).map(|two| (two[1] - two[0]).whole_seconds()).collect();
    println!("{} marks in twenty seconds, after {gaps:?} s", written.len());
    assert!(gaps.len() >= 2, "{gaps:?}");
    // It counts for seven, and the dates are whole seconds. A busy machine is late once.
    assert!(gaps.iter().all(|gap| *gap >= 5), "{gaps:?}");
    assert!(gaps.iter().filter(|gap| **gap > 7).count() <= 1, "{gaps:?}");
    waiting.iter().for_each(JoinHandle::abort);
    guard.release().await.unwrap();
}
