//! What happens in a session, or to it, that the store has not done: nodes that no request uses, and its end.

use std::{sync::Arc, time::Duration};

use polylock::{Locks, LostReason};
use polylock_core::{Backend, KeepAlive, LockName, Mode, Release, Request, Result, Standing, io};
use polylock_integration_tests::{
    clock::{PATIENCE, pause, until},
    proxy::{Fate, Flow, Proxy, Way},
    servers::zookeeper,
};
use polylock_zookeeper::Config;
use tokio::task::block_in_place;

use crate::{SLACK, Spot, sessions::Session, waiters};

/// Whatever waits for the end of such a session waits for too long.
const LONG: Duration = Duration::from_secs(60);

/// What needs no session's end.
const SOON: Duration = Duration::from_secs(5);

/// It would keep others out for as long as its session lasts, though nobody holds the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_no_request_uses_is_deleted_by_whoever_of_its_session_wants_the_lock() {
    let server = zookeeper::start(&[]).unwrap();
    let (spot, proxy) = (Spot::of(&server), Proxy::to(server.port()));
    let raw = spot.raw().await;
    let there = Locks::connect(&spot.with(LONG)).await.unwrap();
    let here = Locks::connect(&proxy.url(&spot.with(LONG))).await.unwrap();
    for tries in [false, true] {
        let lock = format!("free/{tries}");
        let encoded = lock.replace('/', "%2F");
        let guard = here.lock(&lock).acquire().await.unwrap();
        let session = Session::of_holder(&raw, &spot, &encoded).await;
        guard.release().await.unwrap();
        session.plant(&spot, &proxy, &encoded).await;
        // Another process can't tell whose it is.
        let first = tokio::spawn(there.lock(&lock).acquire());
        waiters(&there, &lock, 1).await;
        if tries {
            assert!(here.lock(&lock).try_acquire().await.unwrap().is_none(), "there is another waiter");
        }
        let second = (!tries).then(|| tokio::spawn(here.lock(&lock).acquire()));
        for waiting in [Some(first), second].into_iter().flatten() {
            let guard = tokio::time::timeout(SOON, waiting).await.expect("its turn comes").unwrap().unwrap();
            guard.release().await.unwrap();
        }
    }
    spot.is_clean().await;
}

/// Nodes of the session that requests use stay, before it and behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_no_request_uses_is_deleted_alone() {
    let server = zookeeper::start(&[]).unwrap();
    let (spot, proxy) = (Spot::of(&server), Proxy::to(server.port()));
    let raw = spot.raw().await;
    let here = Locks::connect(&proxy.url(&spot.with(LONG))).await.unwrap();
    let guard = here.lock("n").acquire().await.unwrap();
    let session = Session::of_holder(&raw, &spot, "n").await;
    let first = tokio::spawn(here.lock("n").acquire());
    waiters(&here, "n", 1).await;
    session.plant(&spot, &proxy, "n").await;
    let second = tokio::spawn(here.lock("n").acquire());
    // The holder's, and those of both who wait.
    until("it is gone", async || spot.requests(&raw).await == 3).await;
    waiters(&here, "n", 2).await;
    assert!(guard.is_held() && !first.is_finished() && !second.is_finished());
    guard.release().await.unwrap();
    for waiting in [first, second] {
        let guard = tokio::time::timeout(SOON, waiting).await.expect("its turn comes").unwrap().unwrap();
        guard.release().await.unwrap();
    }
    spot.is_clean().await;
}

/// The store below core, which would end a hold before.
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
async fn a_hold_whose_session_has_ended_is_reported_as_lost() {
    let server = zookeeper::start(&[]).unwrap();
    let (spot, proxy) = (Spot::of(&server), Proxy::to(server.port()));
    let raw = spot.raw().await;
    let store = backend(&proxy.url(&spot.with(LONG))).await;
    for renews in [false, true] {
        let request = request();
        let (claims, claimed) = (store.clone(), request.clone());
        let standing = on_io(async move { claims.claim(&claimed).await }).await.unwrap();
        assert!(matches!(standing, Standing::Held(_)), "{standing:?}");
        Session::of_holder(&raw, &spot, "n").await.close(&spot, &proxy).await;
        assert_eq!(spot.requests(&raw).await, 0);
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

/// The reply to its create comes when the process has given the request up and is about to delete its node.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_not_granted_with_a_node_that_is_being_deleted() {
    const TTL: Duration = Duration::from_secs(2);
    let server = zookeeper::start(&[]).unwrap();
    let (spot, proxy) = (Spot::of(&server), Proxy::to(server.port()));
    let store = backend(&proxy.url(&spot.with(LONG))).await;
    let (before, claimed) = (request(), store.clone());
    on_io(async move {
        claimed.claim(&before).await?;
        claimed.release(&before).await
    })
    .await
    .unwrap();
    let request = Request::new(LockName::new("n").unwrap(), Mode::Exclusive, TTL);
    let (claims, claimed) = (store.clone(), request.clone());
    proxy.set(Way::ToClient, Flow::Hold);
    let claim = tokio::spawn(on_io(async move { claims.claim(&claimed).await }));
    // Longer than a place in the queue lasts.
    pause(TTL + SLACK).await;
    proxy.set(Way::ToClient, Flow::Pass);
    let standing = claim.await.unwrap().unwrap();
    assert!(matches!(standing, Standing::Held(_)), "{standing:?}");
    let (keeps, kept) = (store.clone(), request.clone());
    let kept = on_io(async move { keeps.keep_alive(&[kept.into()]).await }).await.unwrap();
    assert!(matches!(kept[..], [KeepAlive::Held { .. }]), "{kept:?}");
    assert_eq!(on_io(async move { store.release(&request).await }).await.unwrap(), Release::Released);
    spot.is_clean().await;
}

/// A leader without followers answers as if it had some, until it notices: what it does not know may have happened under
/// another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_create_is_not_given_up_for_lost_on_the_word_of_a_leader_without_followers() {
    // It notices after twenty seconds.
    let ensemble = zookeeper::ensemble(3, &["syncLimit=100"]).unwrap();
    let spot = Spot::of(&ensemble);
    let leader = block_in_place(|| ensemble.leader());
    let proxy = Proxy::to(ensemble.members()[leader].port());
    let direct = format!("zookeeper://127.0.0.1:{}{}", ensemble.members()[leader].port(), spot.root);
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
    // A create that no server has, and no reply to it.
    proxy.next([vec![0, 0, 0, 15, 0, 0, 0]], Fate::Cut);
    let (request, claims) = (request(), store.clone());
    let claimed = request.clone();
    let mut claim = tokio::spawn(on_io(async move { claims.claim(&claimed).await }));
    let early = tokio::time::timeout(Duration::from_secs(3), &mut claim).await;
    assert_eq!(proxy.counts().fated, 1, "the create was cut off");
    block_in_place(|| followers().for_each(|(_, follower)| follower.thaw()));
    assert!(early.is_err(), "settled without a majority: {early:?}");
    let failed = tokio::time::timeout(PATIENCE, claim).await.expect("it ends").unwrap();
    assert!(failed.is_err_and(|error| error.is_temporary()), "there is no node");
    let released = on_io(async move { store.release(&request).await }).await.unwrap();
    assert_eq!(released, Release::Lost(LostReason::Gone), "and never was one");
    spot.is_clean().await;
}
