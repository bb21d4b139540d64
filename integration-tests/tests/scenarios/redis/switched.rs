//! An address that leads to another server from some moment on, while connections to the former server still work: a failover, or
//! a name that is moved. A client has a connection of its I/O thread, which keeps its holds alive, and one of the caller's runtime,
//! and each of them switches at its own time. A lock that is granted at one server and kept alive at another has two holders.

use std::{sync::Arc, time::Duration};

use polylock::Locks;
use polylock_integration_tests::{
    clock,
    proxy::{End, Proxy, RequestFault},
    servers::{PrivateServer, redis},
};
use polylock_testkit::ManualClock;

use super::{CALLER, IO_THREAD, Namespace, warm_up};

const TTL: Duration = Duration::from_secs(600);
/// The number of the caller's connection after both have switched, the I/O thread first.
const NEW_CALLER: u64 = 4;

/// A client of the first server, with an address that leads to the second one from now on.
struct Setup {
    servers: [(PrivateServer, Namespace); 2],
    proxy: Proxy,
    locks: Locks,
}

impl Setup {
    async fn new() -> Self {
        let [former, present] = [redis::start(&[]).unwrap(), redis::start(&[]).unwrap()];
        let prefix = former.name();
        let namespaces = [
            Namespace::with_prefix(&former, prefix.clone()).await,
            Namespace::with_prefix(&present, prefix).await,
        ];
        let proxy = Proxy::to(former.port());
        // The manual clock prevents take-overs by the I/O thread.
        // A connection that is only slow is not replaced by one to the second server.
        let url = format!("{}&polylock.operation_timeout=10s", proxy.url(&namespaces[0].url));
        let locks = Locks::builder(&url).clock(Arc::new(ManualClock::new()));
        let locks = locks.connect().await.unwrap();
        warm_up(&locks, &proxy).await;
        proxy.redirect_to(([127, 0, 0, 1], present.port()).into());
        let [former_namespace, present_namespace] = namespaces;
        Self { servers: [(former, former_namespace), (present, present_namespace)], proxy, locks }
    }

    /// Acquires the lock with another client at this server.
    async fn held_at(&self, server: usize, name: &str) -> polylock::Guard {
        let other = self.servers[server].1.locks().await;
        other.lock(name).ttl(TTL).acquire().await.unwrap()
    }

    async fn script_count_at(&self, server: usize) -> u64 {
        self.servers[server].1.script_count().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_connected_to_the_former_server_claims_nothing_there() {
    let setup = Setup::new().await;
    let held = setup.held_at(1, "moved").await;
    setup.proxy.cut_one(IO_THREAD, End::Reset);
    assert_eq!(setup.locks.inspect("moved").await.unwrap().holders.len(), 1, "the I/O thread has followed");
    let before = setup.script_count_at(0).await;
    setup.proxy.watch_for("}:h:moved");
    clock::until("the caller has followed", async || {
        assert!(setup.locks.lock("moved").try_acquire().await.unwrap().is_none(), "it has two holders");
        setup.proxy.watched().contains(&NEW_CALLER)
    })
    .await;
    assert!(!setup.proxy.watched().contains(&CALLER), "{:?}", setup.proxy.watched());
    assert_eq!(setup.script_count_at(0).await, before);
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_connected_to_the_new_server_too_early_claims_nothing() {
    let setup = Setup::new().await;
    let held = setup.held_at(0, "moved").await;
    setup.proxy.cut_one(CALLER, End::Reset);
    setup.proxy.watch_for("}:h:moved");
    clock::until("the caller was connected to the new server, and is no more", async || {
        assert!(setup.locks.lock("moved").try_acquire().await.unwrap().is_none(), "it has two holders");
        let counts = setup.proxy.counts();
        counts.connections > CALLER && counts.open == 1
    })
    .await;
    assert!(setup.proxy.watched().iter().all(|connection| *connection == IO_THREAD));
    assert_eq!(setup.script_count_at(1).await, 0);
    held.release().await.unwrap();
}

/// The connection of the caller ends while its claim and its release are under way.
#[tokio::test(flavor = "multi_thread")]
async fn an_operation_sent_to_the_former_server_is_not_repeated_at_the_new() {
    // The lock is busy at the repeated claim. A release follows, because the first claim might be executed later.
    let claimed: &[u64] = &[CALLER, IO_THREAD, IO_THREAD];
    for (name, connections) in [("claimed", claimed), ("released", &[CALLER, IO_THREAD])] {
        let setup = Setup::new().await;
        let key = format!("}}:h:{name}");
        setup.proxy.watch_for(key.as_str());
        if name == "claimed" {
            let held = setup.held_at(0, name).await;
            setup.proxy.fault_next([key], RequestFault::Reset);
            assert!(setup.locks.lock(name).try_acquire().await.unwrap().is_none(), "it has two holders");
            held.release().await.unwrap();
        } else {
            let guard = setup.locks.lock(name).ttl(TTL).acquire().await.unwrap();
            setup.proxy.watch_for(key.as_str());
            setup.proxy.fault_next([key], RequestFault::Reset);
            guard.release().await.unwrap();
            assert_eq!(setup.servers[0].1.remaining_keys().await, [""; 0]);
        }
        assert_eq!(setup.proxy.watched(), connections, "{name}");
        assert_eq!(setup.script_count_at(1).await, 0);
    }
}
