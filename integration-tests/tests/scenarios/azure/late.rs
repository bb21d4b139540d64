//! Requests that reach the server after the store has given them up.

use std::time::Duration;

use futures_util::future::join_all;
use polylock::Locks;
use polylock_integration_tests::{
    clock::{now, pause, until},
    proxy::{Direction, Flow, Proxy, RequestFault},
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
async fn prepare(locks: &Locks) {
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

/// 1. A process adopts a hold. Its first acquisition is delayed on its way, and its second one succeeds;
/// 2. an administrator ends the lease. The process finds that, and releases the hold;
/// 3. the first acquisition arrives.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_acquisition_of_an_adoption_is_released_after_a_break() {
    const DELAY: Duration = Duration::from_secs(4);
    let namespace = Namespace::of(server());
    let there = namespace.locks().await;
    let (proxy, adopter) = namespace.through(server()).await;
    prepare(&adopter).await;
    let handle = there.lock("a").acquire().await.unwrap().into_handle().await.unwrap();
    proxy.fault_next([ACQUIRE], RequestFault::Delay(DELAY));
    let began = now();
    // The first acquisition is given up after a second.
    let guard = adopter.adopt(&handle).await.unwrap();
    assert_eq!(proxy.counts().faulted, 1);
    namespace.break_lease("a").await;
    let gone = adopter.adopt(&handle).await.unwrap_err();
    assert!(gone.lost().is_some(), "{gone:?}");
    // Its outcome is that of a hold which an administrator has ended: the store may report either.
    drop(guard.release().await);
    proxy.watch_for_replies(GRANTED);
    assert!(now().since(began) < DELAY, "it has arrived before");
    until("the server carries it out", async || !proxy.watched_replies().is_empty()).await;
    let arrived = now();
    until("it is released", async || namespace.lease_state("a").await == "available").await;
    let took = now().since(arrived);
    println!("free after {took:.1?}");
    assert!(took < Duration::from_secs(1) + SLACK, "{took:?}");
}

/// 1. An acquisition for an adoption is late, and the adopter sends it again;
/// 2. a stranger breaks the lease, which keeps others out for its remaining time, and leaves no notice;
/// 3. the holder does not know of it. The adopter adopts again, and finds that there is no hold.
#[tokio::test(flavor = "multi_thread")]
async fn an_adoption_after_a_break_by_a_stranger_leaves_the_lease_to_the_holder() {
    let namespace = Namespace::of(server());
    let there = namespace.locks().await;
    let (proxy, adopter) = namespace.through(server()).await;
    prepare(&adopter).await;
    let handle = there.lock("a").acquire().await.unwrap().into_handle().await.unwrap();
    let holder = there.adopt(&handle).await.unwrap();
    proxy.fault_next([ACQUIRE], RequestFault::Delay(Duration::from_secs(4)));
    let adopted = adopter.adopt(&handle).await.unwrap();
    assert_eq!(proxy.counts().faulted, 1);
    namespace.start_break("a").await;
    // With a longer lease, so that it does not renew the one that it has.
    let gone = adopter.adopt_for(&handle, 2 * handle.ttl()).await.unwrap_err();
    assert!(gone.lost().is_some(), "{gone:?}");
    let began = now();
    // A release would be sent within a second.
    until("two seconds", async || {
        assert_eq!(namespace.lease_state("a").await, "breaking", "the holder knows of nothing");
        now().since(began) > Duration::from_secs(2)
    })
    .await;
    drop((adopted.release().await, holder.release().await));
}

/// 1. A process leaves a hold to others;
/// 2. another one tries to adopt it, and none of its acquisitions has a reply;
/// 3. that process releases the hold by its handle.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_by_the_handle_after_an_adoption_without_a_reply_ends_the_hold() {
    const LONGEST: Duration = Duration::from_secs(60);
    let namespace = Namespace::of(server());
    let there = namespace.locks().await;
    let proxy = Proxy::to_http(server().port());
    let few_tries = "polylock.operation_timeout=1s&polylock.outage=2s";
    let adopter = Locks::connect(&format!("{}&{few_tries}", proxy.url(&namespace.url))).await.unwrap();
    prepare(&adopter).await;
    let handle = there.lock("a").ttl(LONGEST).acquire().await.unwrap().into_handle().await.unwrap();
    proxy.fault_every([ACQUIRE], RequestFault::Drop);
    let error = adopter.adopt(&handle).await.unwrap_err();
    assert!(error.is_temporary(), "{error:?}");
    proxy.clear_faults();
    assert_eq!(namespace.lease_state("a").await, "leased");
    adopter.release(&handle).await.unwrap();
    assert_eq!(namespace.lease_state("a").await, "available");
}
