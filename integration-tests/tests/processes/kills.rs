//! Processes that are killed with SIGKILL, without any clean-up.

use std::time::Duration;

use polylock::Locks;
use polylock_core::QueuePosition;
use polylock_integration_tests::{
    clock::{TIMEOUT, now},
    on_queues, on_stores,
    process::Process,
    stores::{namespace, wait_for_waiters},
    targets::Namespace,
};

use crate::{SLACK, worker};

const TTL: Duration = Duration::from_secs(2);
const REPETITIONS: usize = 5;

/// The time by which a busy machine may delay some of the repetitions.
pub(crate) const BUSY: Duration = Duration::from_millis(1500);

on_stores! {
    a_killed_holder_blocks_for_its_lease_at_most
    a_living_holder_keeps_its_lock_beyond_its_lease
}

on_queues! {
    a_killed_holder_with_a_queue_behind_it_blocks_for_its_lease_at_most
    a_killed_waiter_is_skipped_within_its_own_lease
    a_killed_waiter_with_a_long_ttl_is_skipped_within_five_seconds
}

/// Returns the URL with a short lease, and that lease.
pub(crate) fn with_short_lease(namespace: &Namespace) -> (String, Duration) {
    let ttl = namespace.lease(TTL);
    (namespace.url_with("polylock.ttl", &format!("{}ms", ttl.as_millis())), ttl)
}

async fn open(url: &str) -> Locks {
    Locks::connect(url).await.unwrap()
}

/// A worker that holds the lock.
fn holder(url: &str, name: &str) -> Process {
    let mut holder = worker("hold", url, name, &["1"]);
    holder.expect_line("held");
    holder
}

/// Fails unless these times are within `limit`. A busy machine may delay some of them, but not most.
pub(crate) fn assert_within(limit: Duration, mut times: Vec<Duration>) {
    times.sort_unstable();
    assert!(times[times.len() / 2] < limit, "{times:?}, the limit is {limit:?}");
    assert!(times.iter().all(|took| *took < limit + BUSY), "{times:?}, the limit is {limit:?}");
}

/// Returns the time until the lock is granted; `None` if it is not granted within `limit`.
async fn time_until_free(locks: &Locks, name: &str, limit: Duration) -> Option<Duration> {
    let began = now();
    let guard = locks.lock(name).wait(limit).acquire().await.ok()?;
    let took = now().since(began);
    guard.release().await.unwrap();
    Some(took)
}

async fn a_killed_holder_blocks_for_its_lease_at_most(store: &str) {
    let namespace = namespace(store).await;
    let (url, ttl) = with_short_lease(&namespace);
    let locks = open(&url).await;
    // The blob service does not report the remaining lease, so a waiter polls once a second.
    let late = if store == "azure" { SLACK + QueuePosition::MAX_RECHECK } else { SLACK };
    let mut times = Vec::new();
    for repetition in 0..namespace.times(REPETITIONS) {
        let name = format!("killed/{repetition}");
        let mut holder = holder(&url, &name);
        // Before or after the first renewal of its lease.
        assert!(holder.next_line(ttl / 8 * u32::try_from(repetition).unwrap()).is_none());
        holder.kill();
        let took = time_until_free(&locks, &name, ttl + late + BUSY).await;
        let took = took.expect("expected a free lock after the lease");
        println!("{store}: killed holder: free after {took:.2?}");
        times.push(took);
    }
    assert_within(ttl + late, times);
}

/// The counterexample: a living holder keeps its lock beyond its lease, so the kill is the cause of the release.
async fn a_living_holder_keeps_its_lock_beyond_its_lease(store: &str) {
    let namespace = namespace(store).await;
    let (url, ttl) = with_short_lease(&namespace);
    let _holder = holder(&url, "alive");
    assert_eq!(time_until_free(&open(&url).await, "alive", ttl + SLACK).await, None);
}

async fn a_killed_holder_with_a_queue_behind_it_blocks_for_its_lease_at_most(store: &str) {
    let namespace = namespace(store).await;
    let (url, ttl) = with_short_lease(&namespace);
    let locks = open(&url).await;
    let mut times = Vec::new();
    for repetition in 0..REPETITIONS {
        let name = format!("queue/{repetition}");
        let mut holder = holder(&url, &name);
        let mut behind = Vec::new();
        for position in 1..=3 {
            behind.push(worker("queue", &url, &name, &[]));
            wait_for_waiters(&locks, &name, position).await;
        }
        let began = now();
        holder.kill();
        let mut last = 0;
        for waiter in &mut behind {
            waiter.expect_line("ready");
            let token: u64 = waiter.expect_line("served")[0].parse().unwrap();
            assert!(token > last, "not served in order of arrival");
            last = token;
        }
        let took = now().since(began);
        println!("{store}: killed holder, three behind it: all served after {took:.2?}");
        times.push(took);
    }
    assert_within(ttl + SLACK, times);
}

async fn a_killed_waiter_is_skipped_within_its_own_lease(store: &str) {
    let namespace = namespace(store).await;
    let (url, ttl) = with_short_lease(&namespace);
    let locks = open(&url).await;
    let mut times = Vec::new();
    for repetition in 0..REPETITIONS {
        let name = format!("waiter/{repetition}");
        let guard = locks.lock(&name).acquire().await.unwrap();
        let mut dead = worker("queue", &url, &name, &[]);
        wait_for_waiters(&locks, &name, 1).await;
        let mut behind = worker("queue", &url, &name, &[]);
        wait_for_waiters(&locks, &name, 2).await;
        let began = now();
        dead.kill();
        guard.release().await.unwrap();
        behind.expect_line("ready");
        behind.expect_line("served");
        let took = now().since(began);
        println!("{store}: killed waiter: the next waiter is served after {took:.2?}");
        times.push(took);
    }
    assert_within(ttl + SLACK, times);
}

/// A dead waiter with a long TTL does not block for long: its queue entry has a short lease of its own.
async fn a_killed_waiter_with_a_long_ttl_is_skipped_within_five_seconds(store: &str) {
    let namespace = namespace(store).await;
    let mut url = namespace.url_with("polylock.ttl", "10m");
    if store == "zookeeper" {
        // The queue entry belongs to the session, with a timeout of the TTL by default.
        url += "&polylock.session_timeout=5s";
    }
    let locks = open(&url).await;
    let guard = locks.lock("long").acquire().await.unwrap();
    let mut dead = worker("queue", &url, "long", &[]);
    wait_for_waiters(&locks, "long", 1).await;
    dead.kill();
    let killed = now();
    guard.release().await.unwrap();
    let guard = locks.lock("long").wait(TIMEOUT).acquire().await.unwrap();
    let took = now().since(killed);
    guard.release().await.unwrap();
    println!("{store}: killed waiter with a long lease: skipped after {took:.2?}");
    assert!(took < Duration::from_secs(5) + SLACK + BUSY, "{took:?}");
}
