//! `kill -9`, which lets nobody say good-bye.

use std::time::Duration;

use polylock::Locks;
use polylock_core::Place;
use polylock_integration_tests::{
    clock::{PATIENCE, now},
    on_queues, on_stores,
    process::Process,
    stores::spot,
    targets::Spot,
};

use crate::{SLACK, waiters, worker};

const TTL: Duration = Duration::from_secs(1);
const REPETITIONS: usize = 5;

on_stores! {
    a_killed_holder_blocks_for_its_lease_at_most
    a_living_holder_keeps_its_lock_beyond_its_lease
}

on_queues! {
    a_killed_holder_with_a_queue_behind_it_blocks_for_its_lease_at_most
    a_killed_waiter_is_passed_over_within_its_own_lease
    a_killed_waiter_that_wanted_a_long_lease_is_passed_over_within_five_seconds
}

/// The URL with a short lease, and that lease.
fn briefly(spot: &Spot) -> (String, Duration) {
    let ttl = spot.lease(TTL);
    (spot.url_with("polylock.ttl", &format!("{}ms", ttl.as_millis())), ttl)
}

async fn opened(url: &str) -> Locks {
    Locks::connect(url).await.unwrap()
}

/// A worker that holds the lock.
fn holder(url: &str, name: &str) -> Process {
    let mut holder = worker("hold", url, name, &["1"]);
    holder.hears("held");
    holder
}

/// How long until the lock can be had, if it can in time.
async fn free_after(locks: &Locks, name: &str, limit: Duration) -> Option<Duration> {
    let began = now();
    let guard = locks.lock(name).wait(limit).acquire().await.ok()?;
    let took = now().since(began);
    guard.release().await.unwrap();
    Some(took)
}

async fn a_killed_holder_blocks_for_its_lease_at_most(store: &str) {
    let spot = spot(store).await;
    let (url, ttl) = briefly(&spot);
    let locks = opened(&url).await;
    for repetition in 0..spot.times(REPETITIONS) {
        let name = format!("killed/{repetition}");
        let mut holder = holder(&url, &name);
        // Once its lease has been renewed, or before.
        assert!(
            holder.line_within(Duration::from_millis(150) * u32::try_from(repetition).unwrap()).is_none()
        );
        holder.kill();
        // The blob service does not say what is left of a lease, so a waiter looks once a second.
        let late = if store == "azure" { SLACK + Place::MAX_RECHECK } else { SLACK };
        let took = free_after(&locks, &name, ttl + late).await;
        println!("{store}: killed holder: free after {:.2?}", took.expect("free again after the lease"));
    }
}

/// The planted twin: a holder that lives keeps its lock, so it is the kill that frees it.
async fn a_living_holder_keeps_its_lock_beyond_its_lease(store: &str) {
    let spot = spot(store).await;
    let (url, ttl) = briefly(&spot);
    let _holder = holder(&url, "alive");
    assert_eq!(free_after(&opened(&url).await, "alive", ttl + SLACK).await, None);
}

async fn a_killed_holder_with_a_queue_behind_it_blocks_for_its_lease_at_most(store: &str) {
    let spot = spot(store).await;
    let (url, ttl) = briefly(&spot);
    let locks = opened(&url).await;
    for repetition in 0..REPETITIONS {
        let name = format!("queue/{repetition}");
        let mut holder = holder(&url, &name);
        let mut behind = Vec::new();
        for place in 1..=3 {
            behind.push(worker("queue", &url, &name, &[]));
            waiters(&locks, &name, place).await;
        }
        let began = now();
        holder.kill();
        let mut last = 0;
        for waiter in &mut behind {
            waiter.hears("ready");
            let token: u64 = waiter.hears("served")[0].parse().unwrap();
            assert!(token > last, "served in order of arrival");
            last = token;
        }
        let took = now().since(began);
        println!("{store}: killed holder, three behind it: all served after {took:.2?}");
        assert!(took < ttl + SLACK, "{took:?}");
    }
}

async fn a_killed_waiter_is_passed_over_within_its_own_lease(store: &str) {
    let spot = spot(store).await;
    let (url, ttl) = briefly(&spot);
    let locks = opened(&url).await;
    for repetition in 0..REPETITIONS {
        let name = format!("waiter/{repetition}");
        let guard = locks.lock(&name).acquire().await.unwrap();
        let mut dead = worker("queue", &url, &name, &[]);
        waiters(&locks, &name, 1).await;
        let mut behind = worker("queue", &url, &name, &[]);
        waiters(&locks, &name, 2).await;
        let began = now();
        dead.kill();
        guard.release().await.unwrap();
        behind.hears("ready");
        behind.hears("served");
        let took = now().since(began);
        println!("{store}: killed waiter: who was behind it is served after {took:.2?}");
        assert!(took < ttl + SLACK, "{took:?}");
    }
}

/// A long lease does not make a dead waiter block for long: its place in the queue has a short lease of its own.
async fn a_killed_waiter_that_wanted_a_long_lease_is_passed_over_within_five_seconds(store: &str) {
    let spot = spot(store).await;
    let mut url = spot.url_with("polylock.ttl", "10m");
    if store == "zookeeper" {
        // Its place is its session's, which lasts as long as a lease if nothing is said.
        url += "&polylock.session_timeout=5s";
    }
    let locks = opened(&url).await;
    let guard = locks.lock("long").acquire().await.unwrap();
    let mut dead = worker("queue", &url, "long", &[]);
    waiters(&locks, "long", 1).await;
    dead.kill();
    let killed = now();
    guard.release().await.unwrap();
    let guard = locks.lock("long").wait(PATIENCE).acquire().await.unwrap();
    let took = now().since(killed);
    guard.release().await.unwrap();
    println!("{store}: killed waiter with a long lease: passed over after {took:.2?}");
    assert!(took < Duration::from_secs(5) + SLACK, "{took:?}");
}
