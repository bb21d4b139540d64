//! Waiters that are no more, or stand still.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{
    clock::now,
    process::Process,
    proxy::{End, Proxy},
    servers::{Server, redis},
};

use crate::{SLACK, Spot, waiters};

/// A lock that is held, and a worker first in its queue.
async fn queued(server: &Server, name: &str, more: &str) -> (Spot, Locks, polylock::Guard, Process) {
    let spot = Spot::of(server).await;
    let url = format!("{}{more}", spot.url);
    let locks = Locks::connect(&url).await.unwrap();
    let guard = locks.lock(name).acquire().await.unwrap();
    let worker = Process::start(env!("CARGO_BIN_EXE_worker"), ["queue", &url, name]);
    waiters(&locks, name, 1).await;
    (spot, locks, guard, worker)
}

/// How long who stands behind the worker waits after the release.
async fn behind(locks: &Locks, guard: polylock::Guard, name: &str, hurt: impl FnOnce()) -> Duration {
    let waiting = tokio::spawn(locks.lock(name).acquire());
    waiters(locks, name, 2).await;
    hurt();
    let began = now();
    guard.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    let took = now().since(began);
    next.release().await.unwrap();
    took
}

/// Nobody listens to its channel any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_waiter_is_passed_over_at_once() {
    let server = redis::start(&[]).unwrap();
    let killed = async |name: &str| {
        let (spot, locks, guard, mut worker) = queued(&server, name, "&polylock.ttl=1s").await;
        let took = behind(&locks, guard, name, || assert!(!worker.kill().success())).await;
        println!("{name} killed: {took:.1?}");
        assert!(took < SLACK, "{took:?}");
        // Its own place stays for its lease, and keeps nobody.
        spot.is_clean().await;
    };
    tokio::join!(killed("one"), killed("another"), killed("a third"));
}

/// Its connection is well, so it is handed the lock, for what is left of its place in the queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_waiter_is_passed_over_within_the_lease_of_its_place() {
    let server = redis::start(&[]).unwrap();
    let frozen = async |name: &str, more: &str, bound: Duration| {
        let (spot, locks, guard, mut worker) = queued(&server, name, more).await;
        let took = behind(&locks, guard, name, || worker.stop()).await;
        println!("frozen{more}: {took:.1?}");
        assert!(took < bound + SLACK && took > bound / 4, "{took:?}");
        // It finds out by itself that the lock is not its own any more, and asks again.
        worker.go_on();
        worker.hears("ready");
        worker.hears("served");
        assert!(worker.ends().success());
        spot.is_clean().await;
    };
    tokio::join!(
        frozen("short", "&polylock.ttl=1s", Duration::from_secs(1)),
        frozen("long", "", Duration::from_secs(5)),
    );
}

/// Though nobody ever asks for the lock again.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_dead_leave_goes_by_itself() {
    let server = redis::start(&[]).unwrap();
    let (spot, locks, guard, mut waiter) = queued(&server, "left", "&polylock.ttl=1s").await;
    let url = format!("{}&polylock.ttl=1s", spot.url);
    let mut holder = Process::start(env!("CARGO_BIN_EXE_worker"), ["hold", &url, "other", "1"]);
    holder.hears("held");
    assert!(!holder.kill().success() && !waiter.kill().success());
    let killed = now();
    guard.release().await.unwrap();
    assert!(locks.inspect("left").await.unwrap().holders.is_empty());
    assert!(!spot.leftovers().await.is_empty(), "the place and the lock are still there");
    spot.is_clean().await;
    let took = now().since(killed);
    println!("gone after {took:.1?}");
    // A key lasts a second longer than what is in it.
    assert!(took < Duration::from_secs(2) + SLACK, "{took:?}");
}

/// Of many requests of one client, the first one finds out that nobody receives what is published to it.
#[tokio::test(flavor = "multi_thread")]
async fn many_waiters_of_a_client_that_is_cut_off_are_passed_over_with_one_message() {
    const GONE: usize = 100;
    let server = redis::start(&[]).unwrap();
    let spot = Spot::of(&server).await;
    let (here, proxy) = (spot.locks().await, Proxy::to(server.port()));
    let there = Locks::connect(&proxy.url(&spot.url)).await.unwrap();
    let guard = here.lock("n").acquire().await.unwrap();
    let waiting: Vec<_> = (0..GONE)
        .map(|_| {
            let lock = there.lock("n");
            tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() })
        })
        .collect();
    waiters(&here, "n", GONE).await;
    let next = tokio::spawn(here.lock("n").acquire());
    waiters(&here, "n", GONE + 1).await;
    tokio::task::block_in_place(|| {
        proxy.refuse(true);
        proxy.cut(End::Reset);
    });
    let published = async || spot.calls().await.get("publish").copied().unwrap_or(0);
    let before = published().await;
    guard.release().await.unwrap();
    let next = next.await.unwrap().unwrap();
    let messages = published().await - before;
    // The claims of the one that waits may publish, too.
    assert!(messages < 8, "{messages} messages for {GONE} waiters");
    tokio::task::block_in_place(|| proxy.refuse(false));
    next.release().await.unwrap();
    for waiter in waiting {
        waiter.await.unwrap();
    }
    spot.is_clean().await;
}
