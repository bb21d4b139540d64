//! Changes in a session that the store did not make: orphaned nodes, and the end of the session.

use std::{sync::Arc, time::Duration};

use polylock::{Locks, LostReason};
use polylock_core::{Backend, ClaimOutcome, KeepAlive, LockName, Mode, Release, Request, Result, io};
use polylock_integration_tests::{
    clock::{TIMEOUT, pause, until},
    proxy::{Direction, Flow, Proxy, RequestFault},
    servers::zookeeper,
    stores::wait_for_waiters,
};
use polylock_zookeeper::Config;
use tokio::task::block_in_place;

use super::{Namespace, sessions::Session};

/// A session that does not end during a test.
const LONG: Duration = Duration::from_secs(60);

/// The time limit for steps that do not wait for the end of a session.
const SOON: Duration = Duration::from_secs(15);

/// Otherwise it would block the lock until its session ends, though no request holds it.
#[tokio::test(flavor = "multi_thread")]
async fn an_orphaned_node_is_deleted_by_the_next_claim_of_its_session() {
    let server = zookeeper::start(&[]).unwrap();
    let (namespace, proxy) = (Namespace::of(&server), Proxy::to(server.port()));
    let raw = namespace.client().await;
    let there = Locks::connect(&namespace.url_with_session(LONG)).await.unwrap();
    let here = Locks::connect(&proxy.url(&namespace.url_with_session(LONG))).await.unwrap();
    for tries in [false, true] {
        let lock = format!("free/{tries}");
        let encoded = lock.replace('/', "%2F");
        let guard = here.lock(&lock).acquire().await.unwrap();
        let session = Session::of_holder(&raw, &namespace, &encoded).await;
        guard.release().await.unwrap();
        session.plant(&namespace, &proxy, &encoded).await;
        // Another process can't know that the node is orphaned.
        let first = tokio::spawn(there.lock(&lock).acquire());
        wait_for_waiters(&there, &lock, 1).await;
        if tries {
            assert!(here.lock(&lock).try_acquire().await.unwrap().is_none(), "there is another waiter");
        }
        let second = (!tries).then(|| tokio::spawn(here.lock(&lock).acquire()));
        for waiting in [Some(first), second].into_iter().flatten() {
            let guard = tokio::time::timeout(SOON, waiting)
                .await
                .expect("the waiter is granted the lock")
                .unwrap()
                .unwrap();
            guard.release().await.unwrap();
        }
    }
    namespace.wait_until_empty().await;
}

/// The nodes of requests stay, ahead of the orphan and behind it.
#[tokio::test(flavor = "multi_thread")]
async fn only_orphaned_nodes_are_deleted() {
    let server = zookeeper::start(&[]).unwrap();
    let (namespace, proxy) = (Namespace::of(&server), Proxy::to(server.port()));
    let raw = namespace.client().await;
    let here = Locks::connect(&proxy.url(&namespace.url_with_session(LONG))).await.unwrap();
    let guard = here.lock("n").acquire().await.unwrap();
    let session = Session::of_holder(&raw, &namespace, "n").await;
    let first = tokio::spawn(here.lock("n").acquire());
    wait_for_waiters(&here, "n", 1).await;
    session.plant(&namespace, &proxy, "n").await;
    let second = tokio::spawn(here.lock("n").acquire());
    // The nodes of the holder and of both waiters.
    until("the orphan is deleted", async || namespace.requests(&raw).await == 3).await;
    wait_for_waiters(&here, "n", 2).await;
    assert!(guard.is_held() && !first.is_finished() && !second.is_finished());
    guard.release().await.unwrap();
    for waiting in [first, second] {
        let guard = tokio::time::timeout(SOON, waiting)
            .await
            .expect("the waiter is granted the lock")
            .unwrap()
            .unwrap();
        guard.release().await.unwrap();
    }
    namespace.wait_until_empty().await;
}

/// Returns the backend without core, which would end the hold earlier.
async fn backend(url: &str) -> Arc<dyn Backend> {
    polylock_zookeeper::connect(Config::new(url).unwrap()).await.unwrap().backend
}

async fn on_io<T: Send + 'static>(operation: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    io::run("zookeeper", operation).await.unwrap()
}

fn request() -> Request {
    Request::new(LockName::new("n").unwrap(), Mode::Exclusive, LONG)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_of_an_ended_session_is_reported_as_lost() {
    let server = zookeeper::start(&[]).unwrap();
    let (namespace, proxy) = (Namespace::of(&server), Proxy::to(server.port()));
    let raw = namespace.client().await;
    let store = backend(&proxy.url(&namespace.url_with_session(LONG))).await;
    for renews in [false, true] {
        let request = request();
        let (claims, claimed) = (store.clone(), request.clone());
        let outcome = on_io(async move { claims.claim(&claimed).await }).await.unwrap();
        assert!(matches!(outcome, ClaimOutcome::Granted(_)), "{outcome:?}");
        Session::of_holder(&raw, &namespace, "n").await.close(&namespace, &proxy).await;
        assert_eq!(namespace.requests(&raw).await, 0);
        if renews {
            let (renews, renewed) = (store.clone(), request.clone());
            let renewal = on_io(async move { renews.keep_alive(&[renewed.into()]).await }).await.unwrap();
            assert_eq!(renewal, [KeepAlive::Lost(LostReason::SessionEnded)]);
        }
        let releases = store.clone();
        let release = on_io(async move { releases.release(&request).await }).await.unwrap();
        assert_eq!(release, Release::Lost(LostReason::SessionEnded));
    }
}

/// The reply to the create arrives after the request has expired, when its node is about to be deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_not_granted_with_a_node_that_is_being_deleted() {
    const TTL: Duration = Duration::from_secs(2);
    let server = zookeeper::start(&[]).unwrap();
    let (namespace, proxy) = (Namespace::of(&server), Proxy::to(server.port()));
    let store = backend(&proxy.url(&namespace.url_with_session(LONG))).await;
    let (before, claimed) = (request(), store.clone());
    on_io(async move {
        claimed.claim(&before).await?;
        claimed.release(&before).await
    })
    .await
    .unwrap();
    let request = Request::new(LockName::new("n").unwrap(), Mode::Exclusive, TTL);
    let (claims, claimed) = (store.clone(), request.clone());
    proxy.set(Direction::ToClient, Flow::Hold);
    let claim = tokio::spawn(on_io(async move { claims.claim(&claimed).await }));
    // Longer than the queue lease.
    pause(TTL + Duration::from_millis(500)).await;
    proxy.set(Direction::ToClient, Flow::Pass);
    let outcome = claim.await.unwrap().unwrap();
    assert!(matches!(outcome, ClaimOutcome::Granted(_)), "{outcome:?}");
    let (keeps, kept) = (store.clone(), request.clone());
    let kept = on_io(async move { keeps.keep_alive(&[kept.into()]).await }).await.unwrap();
    assert!(matches!(kept[..], [KeepAlive::Held { .. }]), "{kept:?}");
    assert_eq!(on_io(async move { store.release(&request).await }).await.unwrap(), Release::Released);
    namespace.wait_until_empty().await;
}

/// A leader that has lost its followers continues to reply until it notices. A create may have been committed by its successor.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_followers_does_not_settle_a_lost_create() {
    // The leader notices after twenty seconds.
    let ensemble = zookeeper::ensemble(3, &["syncLimit=100"]).unwrap();
    let namespace = Namespace::of(&ensemble);
    let leader = block_in_place(|| ensemble.leader());
    let proxy = Proxy::to(ensemble.members()[leader].port());
    let direct = format!("zookeeper://127.0.0.1:{}{}", ensemble.members()[leader].port(), namespace.root);
    let url = format!("{}?polylock.session_timeout=60s", proxy.url(&direct));
    let store = backend(&url).await;
    let (before, claimed) = (request(), store.clone());
    on_io(async move {
        claimed.claim(&before).await?;
        claimed.release(&before).await
    })
    .await
    .unwrap();
    let followers = || ensemble.members().iter().enumerate().filter(|(index, _)| *index != leader);
    block_in_place(|| followers().for_each(|(_, follower)| follower.freeze()));
    // A create that reaches no server.
    proxy.fault_next([vec![0, 0, 0, 15, 0, 0, 0]], RequestFault::Reset);
    let (request, claims) = (request(), store.clone());
    let claimed = request.clone();
    let mut claim = tokio::spawn(on_io(async move { claims.claim(&claimed).await }));
    let early = tokio::time::timeout(Duration::from_secs(3), &mut claim).await;
    assert_eq!(proxy.counts().faulted, 1, "the create was cut off");
    block_in_place(|| followers().for_each(|(_, follower)| follower.thaw()));
    assert!(early.is_err(), "settled without a majority: {early:?}");
    let failed = tokio::time::timeout(TIMEOUT, claim).await.expect("the claim ends").unwrap();
    assert!(failed.is_err_and(|error| error.is_temporary()), "the claim fails, because there is no node");
    let released = on_io(async move { store.release(&request).await }).await.unwrap();
    assert_eq!(released, Release::Lost(LostReason::Gone), "there never was a node");
    namespace.wait_until_empty().await;
}
