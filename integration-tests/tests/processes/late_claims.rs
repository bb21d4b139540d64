//! A claim that the server receives after its client has abandoned the connection grants nothing and leaves nothing, on every
//! store.
//!
//! A proxy holds the bytes of one claim and delivers them after the client closed that connection; other connections pass. By
//! default they are delivered as soon as the client has given the claim up and has undone it. The full form delivers them
//! four seconds after they were sent:
//!
//! ```text
//! POLYLOCK_TEST_LATE_SECONDS=4 cargo test -p polylock-integration-tests --test processes late_claims
//! ```

use std::time::Duration;

use polylock::{Error, Lock, Locks};
use polylock_core::Moment;
use polylock_integration_tests::{
    clock::{TIMEOUT, now, pause, until},
    on_stores,
    proxy::{Direction, Flow, Proxy, RequestFault},
    stores,
    targets::Namespace,
};
use polylock_testkit::Target;

on_stores! {
    [postgres mariadb postgres_pessimistic mariadb_pessimistic redis redlock3 zookeeper azure]
    [
        a_late_try_grants_nothing
        a_late_copy_of_a_try_that_was_refused_grants_nothing
        a_late_claim_of_a_lock_that_was_released_grants_nothing
        a_late_claim_leaves_no_waiter
    ]
}

/// Much longer than any test, if the store grants it.
const TTL: Duration = Duration::from_secs(600);
/// From the delivery until the lock must be free.
const FREE_AFTER: Duration = Duration::from_secs(1);
/// The time by which a busy machine may delay that. Neither a hold nor a queue entry ends so soon by itself.
const BUSY: Duration = Duration::from_secs(2);

/// Returns the key and value with which a client of this store abandons a request after this time.
fn short_timeout(store: &str, after: &'static str) -> (&'static str, &'static str) {
    match store {
        "zookeeper" => ("polylock.session_timeout", "4s"),
        _ => ("polylock.operation_timeout", after),
    }
}

/// A client whose first connections lead through a proxy that holds what it sends on them, and one that is not affected.
struct Setup {
    store: &'static str,
    namespace: Namespace,
    proxy: Proxy,
    direct: Locks,
    delayed: Locks,
    held_since: Moment,
}

impl Setup {
    /// Creates one in which the delayed client abandons a request after about a second.
    async fn new(store: &'static str) -> Self {
        Self::abandoning_after(store, "1s").await
    }

    async fn abandoning_after(store: &'static str, after: &'static str) -> Self {
        let namespace = stores::namespace(store).await;
        let (key, value) = short_timeout(store, after);
        let url = namespace.url_with(key, value);
        let (proxy, url_of_proxy) = Proxy::in_front_of(&url).expect("a server of this machine");
        let delayed = Locks::connect(&url_of_proxy).await.unwrap();
        let direct = Locks::connect(namespace.url()).await.unwrap();
        // What a client creates once (connections, sessions, scripts) exists from here on.
        delayed.lock("first").acquire().await.unwrap().release().await.unwrap();
        Self { store, namespace, proxy, direct, delayed, held_since: now() }
    }

    /// Holds what is sent on the connections that exist.
    fn hold(&mut self) {
        self.held_since = now();
        self.proxy.set_existing(Direction::ToServer, Flow::Hold);
    }

    fn lock(&self) -> Lock {
        let lock = self.delayed.lock("late");
        let longest = *self.delayed.capabilities().ttl.end();
        // The lease of a ZooKeeper lock is its session.
        if self.store == "zookeeper" { lock } else { lock.ttl(TTL.min(longest)) }
    }

    /// Delivers what was held, once the client has given it up, and waits for as long as the server may take to be done with it.
    async fn deliver(&self) {
        assert!(self.delayed.clone().close(TIMEOUT).await, "the client has not undone the abandoned request");
        let late = std::env::var("POLYLOCK_TEST_LATE_SECONDS").map_or(0, |seconds| seconds.parse().unwrap());
        pause((self.held_since + Duration::from_secs(late)).since(now())).await;
        self.proxy.set(Direction::ToServer, Flow::Pass);
        pause(FREE_AFTER).await;
    }

    /// Fails unless no entry is left, and the lock is free.
    async fn assert_free(&self) {
        // The next hold would delete some of them.
        until("nothing is left", async || {
            matches!(self.namespace.leftovers().await.unwrap(), None | Some(0))
        })
        .await;
        let next = self.direct.lock("late").wait(BUSY).acquire().await;
        next.expect("expected a free lock a second after the delivery").release().await.unwrap();
        assert!(matches!(self.namespace.leftovers().await.unwrap(), None | Some(0)), "an entry is left");
    }
}

async fn a_late_try_grants_nothing(store: &'static str) {
    let mut setup = Setup::new(store).await;
    setup.hold();
    match setup.lock().try_acquire().await {
        // A majority of the nodes has answered.
        Ok(Some(guard)) => guard.release().await.unwrap(),
        Ok(None) => panic!("expected a grant or an error: the lock is free"),
        Err(error) => assert!(error.is_temporary(), "{error:?}"),
    }
    setup.deliver().await;
    setup.assert_free().await;
}

/// 1. A try sends its claim, which the proxy holds back, and the connection ends.
/// 2. The store sends the claim again on another connection, and it is refused, because the lock is held.
/// 3. The holder releases the lock, and the first copy arrives.
async fn a_late_copy_of_a_try_that_was_refused_grants_nothing(store: &'static str) {
    // The connection ends at once, and on a busy machine the second copy needs more than a second.
    let mut setup = Setup::abandoning_after(store, "3s").await;
    let holder = setup.direct.lock("late").acquire().await.unwrap();
    setup.hold();
    // The SQL stores write names as hexadecimal digits.
    let name = if store.contains("postgres") || store.contains("mariadb") { "6c617465" } else { "late" };
    setup.proxy.watch_for(name);
    setup.proxy.fault_next([name], RequestFault::CloseClient);
    let trying = tokio::spawn(setup.lock().try_acquire());
    until("its connection ends", async || setup.proxy.counts().faulted == 1).await;
    setup.proxy.set_one(setup.proxy.watched()[0], Direction::ToServer, Flow::Hold);
    match trying.await.unwrap() {
        Ok(acquired) => assert!(acquired.is_none(), "the lock is held"),
        // A ZooKeeper session does not repeat the read with which a try begins.
        Err(error) => assert!(store == "zookeeper" && error.is_temporary(), "{error:?}"),
    }
    println!("{store}: busy after {:.0?}", now().since(setup.held_since));
    holder.release().await.unwrap();
    setup.deliver().await;
    setup.assert_free().await;
}

async fn a_late_claim_of_a_lock_that_was_released_grants_nothing(store: &'static str) {
    let mut setup = Setup::new(store).await;
    setup.hold();
    let guard = setup.lock().wait(TIMEOUT).acquire().await.unwrap();
    guard.release().await.unwrap();
    setup.deliver().await;
    setup.assert_free().await;
}

async fn a_late_claim_leaves_no_waiter(store: &'static str) {
    let mut setup = Setup::new(store).await;
    let guard = setup.direct.lock("late").acquire().await.unwrap();
    setup.hold();
    let refused = setup.lock().wait(Duration::from_millis(300)).acquire().await.unwrap_err();
    assert!(refused.is_not_acquired() || refused.is_temporary(), "{refused:?}");
    setup.deliver().await;
    match setup.direct.inspect("late").await {
        Ok(status) => assert_eq!((status.holders.len(), status.waiters.len()), (1, 0), "{status:?}"),
        Err(Error::Unsupported { .. }) => assert_eq!(setup.namespace.leftovers().await.unwrap(), Some(1)),
        Err(error) => panic!("{error:?}"),
    }
    guard.release().await.unwrap();
    setup.assert_free().await;
}
