//! A claim that the server receives after its client has abandoned the connection grants nothing and leaves nothing, on every
//! store.
//!
//! A proxy holds the bytes of one claim and delivers them after the client closed that connection; other connections pass. By
//! default they are delivered as soon as the client has given the claim up and has undone it. The full form delivers them
//! four seconds after they were sent:
//!
//! ```text
//! POLYLOCK_TEST_LATE_SECONDS=4 cargo test -p polylock-integration-tests --test late_claims
//! ```
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use polylock::{Error, Lock, Locks};
use polylock_core::Moment;
use polylock_integration_tests::{
    clock::{PATIENCE, now, pause},
    on_stores,
    proxy::{Flow, Proxy, Way},
    stores,
    targets::Spot,
};
use polylock_testkit::Target;

on_stores! {
    [postgres mariadb postgres_pessimistic mariadb_pessimistic redis redlock3 zookeeper azure]
    [
        a_late_try_grants_nothing
        a_late_claim_of_a_lock_that_was_released_grants_nothing
        a_late_claim_leaves_no_waiter
    ]
}

/// Much longer than any test, where the store gives it.
const TTL: Duration = Duration::from_secs(600);
/// From the delivery until the lock must be free.
const FREE_AFTER: Duration = Duration::from_secs(1);

/// The key that has a client of this store give a request up after about a second.
fn impatient(store: &str) -> (&'static str, &'static str) {
    match store {
        "redis" | "redlock3" => ("polylock.command_timeout", "1s"),
        "zookeeper" => ("polylock.session_timeout", "4s"),
        "azure" => ("polylock.request_timeout", "1s"),
        _ => ("polylock.timeout", "1s"),
    }
}

/// A client whose first connections lead through a proxy that holds what it sends on them, and one that is not affected.
struct Scene {
    store: &'static str,
    spot: Spot,
    proxy: Proxy,
    direct: Locks,
    delayed: Locks,
    held_since: Moment,
}

impl Scene {
    async fn new(store: &'static str) -> Self {
        let spot = stores::spot(store).await;
        let (key, value) = impatient(store);
        let url = spot.url_with(key, value);
        let at = url.find("127.0.0.1:").expect("a server of this machine");
        let server = &url[at..];
        let server = &server[..server.find(['/', '?', '&', ',']).unwrap_or(server.len())];
        let proxy = Proxy::start(server.parse().unwrap());
        let delayed = Locks::connect(&url.replacen(server, &proxy.address().to_string(), 1)).await.unwrap();
        let direct = Locks::connect(spot.url()).await.unwrap();
        // What a client creates once (connections, sessions, scripts) exists from here on.
        delayed.lock("first").acquire().await.unwrap().release().await.unwrap();
        Self { store, spot, proxy, direct, delayed, held_since: now() }
    }

    /// Holds what is sent on the connections that exist.
    fn hold(&mut self) {
        self.held_since = now();
        self.proxy.set_earlier(Way::ToServer, Flow::Hold);
    }

    fn lock(&self) -> Lock {
        let lock = self.delayed.lock("late");
        let longest = *self.delayed.capabilities().ttl.end();
        // The lease of a ZooKeeper lock is its session.
        if self.store == "zookeeper" { lock } else { lock.ttl(TTL.min(longest)) }
    }

    /// Delivers what was held, once the client has given it up, and waits for as long as the server may take to be done with it.
    async fn deliver(&self) {
        assert!(self.delayed.clone().close(PATIENCE).await, "the client has undone what it has given up");
        let late = std::env::var("POLYLOCK_TEST_LATE_SECONDS").map_or(0, |seconds| seconds.parse().unwrap());
        pause((self.held_since + Duration::from_secs(late)).since(now())).await;
        self.proxy.set(Way::ToServer, Flow::Pass);
        pause(FREE_AFTER).await;
    }

    /// Fails unless the lock is free and no entry is left.
    async fn is_free(&self) {
        let next = self.direct.lock("late").try_acquire().await.unwrap();
        next.expect("free within a second of the delivery").release().await.unwrap();
        assert!(matches!(self.spot.leftovers().await.unwrap(), None | Some(0)), "an entry is left");
    }
}

async fn a_late_try_grants_nothing(store: &'static str) {
    let mut scene = Scene::new(store).await;
    scene.hold();
    match scene.lock().try_acquire().await {
        // A majority of the nodes has answered.
        Ok(Some(guard)) => guard.release().await.unwrap(),
        Ok(None) => panic!("nobody holds it"),
        Err(error) => assert!(error.is_temporary(), "{error:?}"),
    }
    scene.deliver().await;
    scene.is_free().await;
}

async fn a_late_claim_of_a_lock_that_was_released_grants_nothing(store: &'static str) {
    let mut scene = Scene::new(store).await;
    scene.hold();
    let guard = scene.lock().wait(PATIENCE).acquire().await.unwrap();
    guard.release().await.unwrap();
    scene.deliver().await;
    scene.is_free().await;
}

async fn a_late_claim_leaves_no_waiter(store: &'static str) {
    let mut scene = Scene::new(store).await;
    let guard = scene.direct.lock("late").acquire().await.unwrap();
    scene.hold();
    let refused = scene.lock().wait(Duration::from_millis(300)).acquire().await.unwrap_err();
    assert!(refused.is_not_acquired() || refused.is_temporary(), "{refused:?}");
    scene.deliver().await;
    match scene.direct.inspect("late").await {
        Ok(status) => assert_eq!((status.holders.len(), status.waiters.len()), (1, 0), "{status:?}"),
        Err(Error::Unsupported { .. }) => assert_eq!(scene.spot.leftovers().await.unwrap(), Some(1)),
        Err(error) => panic!("{error:?}"),
    }
    guard.release().await.unwrap();
    scene.is_free().await;
}
