//! Requests that reach the server after the store has given them up.

use std::time::Duration;

use futures_util::future::join_all;
use polylock_integration_tests::{
    clock::{now, pause, until},
    proxy::{Direction, Flow, RequestFault},
};

use super::{Namespace, SETTLE_TIME, SLACK, acquire_soon, server};

/// The head of the reply to an executed acquisition. No other request of these tests has this reply.
const GRANTED: &str = " 201 Created";

/// A header of an acquisition.
const ACQUIRE: &str = "x-ms-lease-action: acquire";

/// 1. An acquisition is held back on its way, and sent again on another connection;
/// 2. the lock is acquired, and released;
/// 3. the request that was held back arrives, and the server carries it out.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquisition_that_arrives_after_its_release_blocks_nobody() {
    let late = async |number: u32| {
        let namespace = Namespace::of(server());
        let direct = namespace.locks().await;
        let (proxy, held_back) = namespace.through(server()).await;
        prepare(&held_back).await;
        proxy.set_existing(Direction::ToServer, Flow::Hold);
        let guard = held_back.lock("a").acquire().await.unwrap();
        let token = guard.fencing_token().get();
        guard.release().await.unwrap();
        assert_eq!(namespace.lease_state("a").await, "available");
        // At several times relative to the pauses of the clean-up.
        let began = now();
        until("its time", async || now().since(began) > Duration::from_millis(300) * number).await;
        proxy.watch_for_replies(GRANTED);
        proxy.set(Direction::ToServer, Flow::Pass);
        until("the server carries it out", async || !proxy.watched_replies().is_empty()).await;
        assert!(acquire_soon(&direct, "a").await > token);
    };
    join_all((0..4).map(late)).await;
}

/// Fills the connection pool of the store behind the proxy, and creates the blob.
async fn prepare(locks: &polylock::Locks) {
    super::acquire_and_release(locks, "first").await;
    super::acquire_and_release(locks, "a").await;
}

/// The same for an acquisition that is sent again because its connection ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_an_acquisition_that_arrives_after_its_release_blocks_nobody() {
    let namespace = Namespace::of(server());
    let direct = namespace.locks().await;
    let (proxy, held_back) = namespace.through(server()).await;
    prepare(&held_back).await;
    proxy.set_existing(Direction::ToServer, Flow::Hold);
    proxy.watch_for(ACQUIRE);
    proxy.fault_next([ACQUIRE], RequestFault::CloseClient);
    let acquiring = tokio::spawn(held_back.lock("a").acquire());
    until("its connection ends", async || proxy.counts().faulted == 1).await;
    proxy.set_one(proxy.watched()[0], Direction::ToServer, Flow::Hold);
    acquiring.await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(namespace.lease_state("a").await, "available");
    proxy.watch_for_replies(GRANTED);
    proxy.set(Direction::ToServer, Flow::Pass);
    until("the server carries it out", async || !proxy.watched_replies().is_empty()).await;
    acquire_soon(&direct, "a").await;
}

/// The same for an acquisition that was given up.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquisition_that_arrives_after_its_timeout_blocks_nobody() {
    let namespace = Namespace::of(server());
    let direct = namespace.locks().await;
    let (proxy, held_back) = namespace.through(server()).await;
    prepare(&held_back).await;
    proxy.set_existing(Direction::ToServer, Flow::Hold);
    let error = held_back.lock("a").try_acquire().await.unwrap_err();
    assert!(error.is_temporary(), "{error:?}");
    // Until its release was confirmed.
    assert!(held_back.close(SETTLE_TIME).await, "it is settled");
    proxy.set(Direction::ToServer, Flow::Pass);
    acquire_soon(&direct, "a").await;
}

/// If the process that sent it is still alive, regardless of the length of the lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_acquisition_is_released_within_a_second_of_its_arrival() {
    const LONGEST: Duration = Duration::from_secs(60);
    let late = async |millis: u64| {
        let namespace = Namespace::of(server());
        let (proxy, held_back) = namespace.through(server()).await;
        prepare(&held_back).await;
        proxy.set_existing(Direction::ToServer, Flow::Hold);
        let error = held_back.lock("a").ttl(LONGEST).try_acquire().await.unwrap_err();
        assert!(error.is_temporary(), "{error:?}");
        pause(Duration::from_millis(millis)).await;
        proxy.watch_for_replies(GRANTED);
        proxy.set(Direction::ToServer, Flow::Pass);
        until("the server carries it out", async || !proxy.watched_replies().is_empty()).await;
        let arrived = now();
        until("it is released", async || namespace.lease_state("a").await == "available").await;
        now().since(arrived)
    };
    // The request was given up a second after it was sent. The emulator closes a connection that has been idle for five, so the last
    // one has a second and a half to spare.
    let took = join_all([0, 800, 1600, 2400].map(late)).await;
    println!("free after {took:.1?}");
    assert!(took.iter().all(|took| *took < Duration::from_secs(1) + SLACK), "{took:?}");
}

/// Ten seconds after it was given up, its clean-up ends, but not before the server has replied to a release.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_acquisition_is_released_after_an_outage() {
    const RELEASE: &str = "x-ms-lease-action: release";
    const OUTAGE: Duration = Duration::from_secs(13);
    let namespace = Namespace::of(server());
    let (proxy, held_back) = namespace.through(server()).await;
    prepare(&held_back).await;
    proxy.set_existing(Direction::ToServer, Flow::Hold);
    held_back.lock("a").try_acquire().await.unwrap_err();
    assert!(held_back.close(SETTLE_TIME).await, "it is settled");
    let busy = "HTTP/1.1 500 Error\r\nx-ms-error-code: InternalError\r\nContent-Length: 0\r\n\r\n";
    proxy.fault_every([RELEASE], RequestFault::Reply(busy.into()));
    pause(OUTAGE).await;
    proxy.clear_faults();
    proxy.watch_for(RELEASE);
    until("it is released", async || !proxy.watched().is_empty()).await;
}
