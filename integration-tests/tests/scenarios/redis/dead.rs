//! Waiters that are killed or frozen.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{
    clock::{self, now},
    process::Process,
    proxy::{End, Proxy},
    servers::{Server, redis},
    stores::wait_for_waiters,
};

use super::{Namespace, SLACK, command};

/// Returns a held lock, and a worker that is first in its queue.
async fn queued(server: &Server, name: &str, more: &str) -> (Namespace, Locks, polylock::Guard, Process) {
    let namespace = Namespace::on(server).await;
    let url = format!("{}{more}", namespace.url);
    let locks = Locks::connect(&url).await.unwrap();
    let guard = locks.lock(name).acquire().await.unwrap();
    let worker = Process::start(env!("CARGO_BIN_EXE_worker"), ["queue", &url, name]);
    wait_for_waiters(&locks, name, 1).await;
    (namespace, locks, guard, worker)
}

/// Returns the number of channels with a subscriber.
async fn channels(namespace: &Namespace) -> usize {
    let channels = command(&format!("PUBSUB CHANNELS *{}*", namespace.prefix));
    namespace.query::<Vec<String>>(&channels).await.len()
}

/// Returns the time from the release until the waiter behind the worker is granted the lock.
async fn delay_behind_worker(
    locks: &Locks,
    guard: polylock::Guard,
    name: &str,
    fault: impl AsyncFnOnce(),
) -> Duration {
    let waiting = tokio::spawn(locks.lock(name).acquire());
    wait_for_waiters(locks, name, 2).await;
    fault().await;
    let began = now();
    guard.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    let took = now().since(began);
    next.release().await.unwrap();
    took
}

/// Its channel has no subscriber any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_waiter_is_skipped_at_once() {
    let server = redis::start(&[]).unwrap();
    let killed = async |name: &str| {
        let (namespace, locks, guard, mut worker) = queued(&server, name, "&polylock.ttl=5s").await;
        let took = delay_behind_worker(&locks, guard, name, async || {
            let before = channels(&namespace).await;
            assert!(!worker.kill().success());
            // A busy server reads the end of the connection later than the release.
            clock::until("the channel has no subscriber", async || channels(&namespace).await < before).await;
        })
        .await;
        println!("{name} killed: {took:.1?}");
        assert!(took < SLACK, "{took:?}");
        // Its queue entry remains for its lease, and blocks no request.
        namespace.assert_clean().await;
    };
    tokio::join!(killed("one"), killed("another"), killed("a third"));
}

/// Its connection works, so it is handed the lock, for the rest of its queue lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_waiter_is_skipped_within_its_queue_lease() {
    let server = redis::start(&[]).unwrap();
    let frozen = async |name: &str, more: &str, bound: Duration| {
        let (namespace, locks, guard, mut worker) = queued(&server, name, more).await;
        let took = delay_behind_worker(&locks, guard, name, async || worker.stop()).await;
        println!("frozen{more}: {took:.1?}");
        assert!(took < bound + SLACK && took > bound / 4, "{took:?}");
        // It detects that it does not hold the lock any more, and claims again.
        worker.resume();
        worker.expect_line("ready");
        worker.expect_line("served");
        assert!(worker.wait_for_exit().success());
        namespace.assert_clean().await;
    };
    tokio::join!(
        frozen("short", "&polylock.ttl=3s", Duration::from_secs(3)),
        frozen("long", "", Duration::from_secs(5)),
    );
}

/// The entries expire without a later claim.
#[tokio::test(flavor = "multi_thread")]
async fn entries_of_killed_clients_expire() {
    let server = redis::start(&[]).unwrap();
    let (namespace, locks, guard, mut waiter) = queued(&server, "left", "&polylock.ttl=3s").await;
    let url = format!("{}&polylock.ttl=3s", namespace.url);
    let mut holder = Process::start(env!("CARGO_BIN_EXE_worker"), ["hold", &url, "other", "1"]);
    holder.expect_line("held");
    let before = channels(&namespace).await;
    assert!(!holder.kill().success() && !waiter.kill().success());
    let killed = now();
    // Otherwise the release hands the lock to the waiter.
    clock::until("their channels have no subscriber", async || channels(&namespace).await + 2 <= before)
        .await;
    guard.release().await.unwrap();
    assert!(locks.inspect("left").await.unwrap().holders.is_empty());
    assert!(!namespace.remaining_keys().await.is_empty(), "the queue entry and the lock are still there");
    namespace.assert_clean().await;
    let took = now().since(killed);
    println!("gone after {took:.1?}");
    // A key expires one second after its last entry.
    assert!(took < Duration::from_secs(4) + SLACK, "{took:?}");
}

/// The message to the first of many requests of one client shows that the client is not subscribed.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_a_disconnected_client_are_skipped_with_one_message() {
    const WAITERS: usize = 100;
    let server = redis::start(&[]).unwrap();
    let namespace = Namespace::on(&server).await;
    let (here, proxy) = (namespace.locks().await, Proxy::to(server.port()));
    let disconnected = Locks::connect(&proxy.url(&namespace.url)).await.unwrap();
    let guard = here.lock("n").acquire().await.unwrap();
    let waiting: Vec<_> = (0..WAITERS)
        .map(|_| {
            let lock = disconnected.lock("n");
            tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() })
        })
        .collect();
    wait_for_waiters(&here, "n", WAITERS).await;
    let next = tokio::spawn(here.lock("n").acquire());
    wait_for_waiters(&here, "n", WAITERS + 1).await;
    tokio::task::block_in_place(|| {
        proxy.refuse(true);
        proxy.cut(End::Reset);
    });
    let published = async || namespace.command_calls().await.get("publish").copied().unwrap_or(0);
    let before = published().await;
    guard.release().await.unwrap();
    let next = next.await.unwrap().unwrap();
    let messages = published().await - before;
    // The claims of the next waiter may publish, too.
    assert!(messages < 8, "{messages} messages for {WAITERS} waiters");
    tokio::task::block_in_place(|| proxy.refuse(false));
    next.release().await.unwrap();
    for waiter in waiting {
        waiter.await.unwrap();
    }
    namespace.assert_clean().await;
}
