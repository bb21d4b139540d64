//! Who waits gets the lock when it is its turn, whatever happens meanwhile to the connection, the server or the news.

use std::{net::SocketAddr, time::Duration};

use polylock::{Guard, Locks};
use polylock_integration_tests::{
    clock::{PATIENCE, now, pause},
    proxy::{BOTH, End, Flow, Proxy, Way},
    servers::{Private, redis},
};
use tokio::task::{JoinHandle, block_in_place};

use crate::{SLACK, Spot, command, waiters};

/// The longest that a waiter waits past its turn, if its lease is not shorter.
const BOUND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(600);

/// A server, a holder that talks to it, and a waiter that does so through a proxy.
struct Scene {
    server: Private,
    spot: Spot,
    proxy: Proxy,
    holder: Locks,
    waiter: Locks,
}

impl Scene {
    async fn new() -> Self {
        let server = redis::start(redis::DURABLE).unwrap();
        let spot = Spot::of(&server).await;
        let proxy = Proxy::to(server.port());
        let holder = spot.locks().await;
        let waiter = Locks::connect(&proxy.url(&spot.url)).await.unwrap();
        Self { server, spot, proxy, holder, waiter }
    }

    /// The lock in the holder's hands, and the waiter behind it.
    async fn queued(&self, ttl: Duration) -> (Guard, JoinHandle<Guard>) {
        let guard = self.holder.lock("a").ttl(ttl).acquire().await.unwrap();
        let waiting = self.waiter.lock("a").ttl(ttl).acquire();
        let waiting = tokio::spawn(async { waiting.await.unwrap() });
        waiters(&self.holder, "a", 1).await;
        (guard, waiting)
    }

    /// Ends all connections of clients past the proxy; how many there were.
    async fn kill_all(&self) -> u64 {
        let mut killed = 0;
        // Who has subscribed is not of type "normal".
        for kind in ["normal", "pubsub"] {
            killed += self.spot.ask::<u64>(command("CLIENT KILL TYPE").arg(kind)).await;
        }
        killed
    }
}

/// After `fault` the holder releases, and the waiter has the lock in time.
async fn turn_comes(what: &str, ttl: Duration, fault: impl AsyncFn(&Scene)) {
    turn_comes_within(BOUND.min(ttl), what, ttl, fault).await;
}

async fn turn_comes_within(bound: Duration, what: &str, ttl: Duration, fault: impl AsyncFn(&Scene)) {
    let scene = Scene::new().await;
    let (guard, waiting) = scene.queued(ttl).await;
    fault(&scene).await;
    let (began, token) = (now(), guard.fencing_token());
    guard.release().await.unwrap();
    let next = tokio::time::timeout(PATIENCE, waiting).await.expect("its turn comes").unwrap();
    let took = now().since(began);
    println!("{what}, {ttl:?}: {took:.1?} past its turn");
    assert!(took < bound + SLACK, "{what}: {took:?}");
    assert!(next.fencing_token() > token, "{what}");
    next.release().await.unwrap();
    scene.spot.is_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn though_its_connection_is_killed() {
    for ttl in [LONG, SHORT] {
        turn_comes("all clients killed", ttl, async |scene| {
            let killed = scene.kill_all().await;
            assert!(killed >= 2, "only {killed} clients were killed");
        })
        .await;
    }
    turn_comes("killed one by one", LONG, async |scene| {
        let own: u64 = scene.spot.ask(&command("CLIENT ID")).await;
        let list: String = scene.spot.ask(&command("CLIENT LIST")).await;
        let ids: Vec<u64> = list
            .lines()
            .filter_map(|line| line.strip_prefix("id=")?.split(' ').next()?.parse().ok())
            .filter(|id| *id != own)
            .collect();
        assert_eq!(ids.len(), 2, "{list}");
        for id in ids {
            assert_eq!(scene.spot.ask::<u64>(command("CLIENT KILL ID").arg(id)).await, 1);
        }
    })
    .await;
    for how in [End::Reset, End::Close] {
        turn_comes("cut on the way", LONG, async |scene| assert_eq!(scene.proxy.cut(how), 1)).await;
    }
}

/// The server still counts it among those who hear.
#[tokio::test(flavor = "multi_thread")]
async fn though_its_connection_is_half_open() {
    let half_open = async |what: &str, ways: &[Way]| {
        let swallow = async |scene: &Scene| {
            ways.iter().for_each(|way| scene.proxy.set_earlier(*way, Flow::Swallow));
        };
        tokio::join!(turn_comes(what, LONG, swallow), turn_comes(what, SHORT, swallow));
    };
    tokio::join!(
        half_open("half open", &BOTH),
        half_open("the server's answers and news are lost", &[Way::ToClient]),
        half_open("what it sends is lost", &[Way::ToServer]),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn though_the_server_restarts_or_forgets_its_scripts() {
    turn_comes("server restarted", LONG, async |scene| {
        block_in_place(|| scene.server.restart());
    })
    .await;
    turn_comes("scripts flushed", LONG, async |scene| {
        Spot::of(&scene.server).await.ask::<()>(&command("SCRIPT FLUSH")).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn though_the_network_was_away_for_a_while() {
    // Less than that passes between two attempts; and one may be under way that comes to nothing.
    let (pause_at_most, attempt) = (BOUND, Duration::from_secs(1));
    let away = async |lasts: Duration| {
        let nothing =
            turn_comes_within(pause_at_most + attempt, "nothing went through", LONG, async |scene| {
                scene.proxy.set_both(Flow::Swallow);
                pause(lasts).await;
                scene.proxy.set_both(Flow::Pass);
            });
        let refused = turn_comes_within(pause_at_most, "connections were refused", LONG, async |scene| {
            scene.proxy.refuse(true);
            scene.proxy.cut(End::Reset);
            pause(lasts).await;
            scene.proxy.refuse(false);
        });
        tokio::join!(nothing, refused);
    };
    tokio::join!(away(Duration::from_millis(700)), away(Duration::from_secs(3)));
}

/// It can't release: its lease ends, and it is told before.
#[tokio::test(flavor = "multi_thread")]
async fn though_the_holder_is_cut_off() {
    let cut_off = async |ttl: Duration| {
        let scene = Scene::new().await;
        let guard = scene.waiter.lock("a").ttl(ttl).acquire().await.unwrap();
        let waiting = tokio::spawn(scene.holder.lock("a").ttl(ttl).acquire());
        waiters(&scene.holder, "a", 1).await;
        let began = now();
        scene.proxy.set_both(Flow::Swallow);
        let lost = tokio::spawn({
            let lost = guard.lost();
            async move {
                lost.await;
                now()
            }
        });
        let next = tokio::time::timeout(PATIENCE, waiting).await.expect("its turn comes").unwrap().unwrap();
        let had = now();
        assert!(!guard.is_held() && lost.await.unwrap() < had, "lost before another has it");
        let took = had.since(began);
        println!("holder cut off, {ttl:?}: {took:.1?}");
        assert!(took < ttl + BOUND.min(ttl) + SLACK, "{took:?}");
        scene.proxy.set_both(Flow::Pass);
        drop(guard);
        next.release().await.unwrap();
        scene.spot.is_clean().await;
    };
    tokio::join!(cut_off(Duration::from_secs(2)), cut_off(SHORT));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_was_idle_through_an_outage_works_at_once() {
    let scene = Scene::new().await;
    let cycle = async |what: &str, locks: &Locks, bound: Duration| {
        let began = now();
        locks.lock("idle").try_acquire().await.unwrap().expect("it is free").release().await.unwrap();
        let took = now().since(began);
        println!("{what}: {took:.1?}");
        assert!(took < bound, "{what}: {took:?}");
    };
    cycle("before", &scene.waiter, SLACK).await;
    block_in_place(|| scene.server.kill());
    // Nobody asks for anything meanwhile.
    pause(Duration::from_secs(12)).await;
    block_in_place(|| scene.server.restart());
    cycle("after twelve seconds", &scene.waiter, SLACK).await;
    cycle("past the proxy", &scene.holder, SLACK).await;
    // Nothing ever told it that this connection leads nowhere.
    BOTH.into_iter().for_each(|way| scene.proxy.set_earlier(way, Flow::Swallow));
    cycle("half open", &scene.waiter, Duration::from_millis(500) + SLACK).await;
    Spot::of(&scene.server).await.is_clean().await;
}

/// The checks above see a waiter that is late: this one's network is away for too long.
#[tokio::test(flavor = "multi_thread")]
#[should_panic(expected = "too slow on purpose")]
async fn a_turn_that_comes_late_is_found_out() {
    let scene = Scene::new().await;
    let (guard, waiting) = scene.queued(LONG).await;
    scene.proxy.set_both(Flow::Swallow);
    guard.release().await.unwrap();
    let address: SocketAddr = scene.proxy.address();
    assert!(address.ip().is_loopback());
    let came = tokio::time::timeout(BOUND + SLACK, waiting).await;
    assert!(came.is_ok(), "too slow on purpose");
}
