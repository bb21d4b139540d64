//! A waiter is granted the lock in its turn, despite faults of the connection, the server or the notifications.

use std::{net::SocketAddr, time::Duration};

use polylock::{Guard, Locks};
use polylock_integration_tests::{
    clock::{TIMEOUT, now, pause},
    proxy::{BOTH, Direction, End, Flow, Proxy},
    servers::{PrivateServer, redis},
    stores::wait_for_waiters,
};
use tokio::task::{JoinHandle, block_in_place};

use super::{Namespace, SLACK, command};

/// The longest time from the turn of a waiter to its grant, unless its lease is shorter.
const MAX_DELAY: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_secs(2);

/// A server, a holder with a direct connection, and a waiter behind a proxy.
struct Setup {
    server: PrivateServer,
    namespace: Namespace,
    proxy: Proxy,
    holder: Locks,
    waiter: Locks,
}

impl Setup {
    async fn new() -> Self {
        let server = redis::start(redis::DURABLE).unwrap();
        let namespace = Namespace::on(&server).await;
        let proxy = Proxy::to(server.port());
        let holder = namespace.locks().await;
        let waiter = Locks::connect(&proxy.url(&namespace.url)).await.unwrap();
        Self { server, namespace, proxy, holder, waiter }
    }

    /// Returns the guard of the holder, and the task of the waiter behind it.
    async fn queued(&self, ttl: Duration) -> (Guard, JoinHandle<Guard>) {
        let guard = self.holder.lock("a").ttl(ttl).acquire().await.unwrap();
        let waiting = self.waiter.lock("a").ttl(ttl).acquire();
        let waiting = tokio::spawn(async { waiting.await.unwrap() });
        wait_for_waiters(&self.holder, "a", 1).await;
        (guard, waiting)
    }

    /// Closes all client connections at the server. Returns their number.
    async fn kill_all(&self) -> u64 {
        let mut killed = 0;
        // Subscribed clients are not of type "normal".
        for kind in ["normal", "pubsub"] {
            killed += self.namespace.query::<u64>(command("CLIENT KILL TYPE").arg(kind)).await;
        }
        killed
    }
}

/// Checks that the waiter is granted the lock in time if the holder releases after `fault`.
async fn assert_granted(what: &str, ttl: Duration, fault: impl AsyncFn(&Setup)) {
    assert_granted_within(MAX_DELAY.min(ttl), what, ttl, fault).await;
}

async fn assert_granted_within(bound: Duration, what: &str, ttl: Duration, fault: impl AsyncFn(&Setup)) {
    let setup = Setup::new().await;
    let (guard, waiting) = setup.queued(ttl).await;
    fault(&setup).await;
    let (began, token) = (now(), guard.fencing_token());
    guard.release().await.unwrap();
    let next = tokio::time::timeout(TIMEOUT, waiting).await.expect("it is granted").unwrap();
    let took = now().since(began);
    println!("{what}, {ttl:?}: {took:.1?} past its turn");
    assert!(took < bound + SLACK, "{what}: {took:?}");
    assert!(next.fencing_token() > token, "{what}");
    next.release().await.unwrap();
    setup.namespace.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_is_granted_after_its_connection_is_killed() {
    for ttl in [LONG, SHORT] {
        assert_granted("all clients killed", ttl, async |setup| {
            let killed = setup.kill_all().await;
            assert!(killed >= 2, "only {killed} clients were killed");
        })
        .await;
    }
    assert_granted("killed one by one", LONG, async |setup| {
        let own: u64 = setup.namespace.query(&command("CLIENT ID")).await;
        let list: String = setup.namespace.query(&command("CLIENT LIST")).await;
        let ids: Vec<u64> = list
            .lines()
            .filter_map(|line| line.strip_prefix("id=")?.split(' ').next()?.parse().ok())
            .filter(|id| *id != own)
            .collect();
        assert_eq!(ids.len(), 2, "{list}");
        for id in ids {
            assert_eq!(setup.namespace.query::<u64>(command("CLIENT KILL ID").arg(id)).await, 1);
        }
    })
    .await;
    for how in [End::Reset, End::Close] {
        assert_granted("cut on the way", LONG, async |setup| assert_eq!(setup.proxy.cut(how), 1)).await;
    }
}

/// The server still counts the waiter as subscribed.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_is_granted_though_its_connection_is_half_open() {
    let half_open = async |what: &str, ways: &[Direction]| {
        let swallow = async |setup: &Setup| {
            ways.iter().for_each(|way| setup.proxy.set_existing(*way, Flow::Drop));
        };
        tokio::join!(assert_granted(what, LONG, swallow), assert_granted(what, SHORT, swallow));
    };
    tokio::join!(
        half_open("half open", &BOTH),
        half_open("the server's replies and notifications are lost", &[Direction::ToClient]),
        half_open("the commands of the waiter are lost", &[Direction::ToServer]),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_is_granted_after_a_restart_or_a_script_flush() {
    assert_granted("server restarted", LONG, async |setup| {
        block_in_place(|| setup.server.restart());
    })
    .await;
    assert_granted("scripts flushed", LONG, async |setup| {
        Namespace::on(&setup.server).await.query::<()>(&command("SCRIPT FLUSH")).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_is_granted_after_a_network_outage() {
    // The longest pause between two attempts, and the duration of an attempt that fails.
    let (max_pause, attempt) = (MAX_DELAY, Duration::from_secs(1));
    let outage = async |lasts: Duration| {
        let swallowed =
            assert_granted_within(max_pause + attempt, "no message was delivered", LONG, async |setup| {
                setup.proxy.set_both(Flow::Drop);
                pause(lasts).await;
                setup.proxy.set_both(Flow::Pass);
            });
        let refused = assert_granted_within(max_pause, "connections were refused", LONG, async |setup| {
            setup.proxy.refuse(true);
            setup.proxy.cut(End::Reset);
            pause(lasts).await;
            setup.proxy.refuse(false);
        });
        tokio::join!(swallowed, refused);
    };
    tokio::join!(outage(Duration::from_millis(700)), outage(Duration::from_secs(3)));
}

/// It can't release: its lease ends, and its guard reports the loss before.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_is_granted_after_the_holder_is_disconnected() {
    let cut_off = async |ttl: Duration| {
        let setup = Setup::new().await;
        let guard = setup.waiter.lock("a").ttl(ttl).acquire().await.unwrap();
        let waiting = tokio::spawn(setup.holder.lock("a").ttl(ttl).acquire());
        wait_for_waiters(&setup.holder, "a", 1).await;
        let began = now();
        setup.proxy.set_both(Flow::Drop);
        // The last deadline. One renewal may have been in transit.
        let deadline = async {
            loop {
                let renewed = guard.renewed();
                let deadline = guard.deadline();
                if renewed.await.is_none() {
                    return deadline;
                }
            }
        };
        let granted = async {
            let next = tokio::time::timeout(TIMEOUT, waiting).await.expect("it is granted");
            (next.unwrap().unwrap(), now())
        };
        let (deadline, (next, granted_at)) = tokio::join!(deadline, granted);
        assert!(!guard.is_held() && deadline < granted_at, "lost before another request is granted");
        let took = granted_at.since(began);
        println!("holder cut off, {ttl:?}: {took:.1?}");
        assert!(took < ttl + MAX_DELAY.min(ttl) + SLACK, "{took:?}");
        setup.proxy.set_both(Flow::Pass);
        drop(guard);
        next.release().await.unwrap();
        setup.namespace.assert_clean().await;
    };
    tokio::join!(cut_off(Duration::from_secs(4)), cut_off(SHORT));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_was_idle_during_an_outage_works_at_once() {
    let setup = Setup::new().await;
    let cycle = async |what: &str, locks: &Locks, bound: Duration| {
        let began = now();
        locks.lock("idle").try_acquire().await.unwrap().expect("it is free").release().await.unwrap();
        let took = now().since(began);
        println!("{what}: {took:.1?}");
        assert!(took < bound, "{what}: {took:?}");
    };
    cycle("before", &setup.waiter, SLACK).await;
    block_in_place(|| setup.server.kill());
    // No operation runs in the meantime.
    pause(Duration::from_secs(12)).await;
    block_in_place(|| setup.server.restart());
    cycle("after twelve seconds", &setup.waiter, SLACK).await;
    cycle("past the proxy", &setup.holder, SLACK).await;
    // No event has shown that this connection is half open.
    BOTH.into_iter().for_each(|way| setup.proxy.set_existing(way, Flow::Drop));
    cycle("half open", &setup.waiter, Duration::from_millis(500) + SLACK).await;
    Namespace::on(&setup.server).await.assert_clean().await;
}

/// The checks above detect a late grant: the network of this waiter is interrupted for too long.
#[tokio::test(flavor = "multi_thread")]
#[should_panic(expected = "too slow on purpose")]
async fn planted_a_late_grant_is_detected() {
    let setup = Setup::new().await;
    let (guard, waiting) = setup.queued(LONG).await;
    setup.proxy.set_both(Flow::Drop);
    guard.release().await.unwrap();
    let address: SocketAddr = setup.proxy.address();
    assert!(address.ip().is_loopback());
    let granted = tokio::time::timeout(MAX_DELAY + SLACK, waiting).await;
    assert!(granted.is_ok(), "too slow on purpose");
}
