//! Commands that the server carries out late, when nobody waits for them any more; and replies that are lost.

use std::time::Duration;

use futures_util::FutureExt;
use polylock::{Locks, Mode};
use polylock_integration_tests::{
    clock::{self, now, pause},
    proxy::{Flow, Proxy, Way},
    servers::{Private, redis},
};
use polylock_testkit::history::{self, Recorder, Rules};
use tokio::task::block_in_place;

use crate::{SLACK, Spot, command, load::Load, waiters};

/// A client whose commands a proxy holds back.
struct Scene {
    _server: Private,
    spot: Spot,
    proxy: Proxy,
    direct: Locks,
    held_back: Locks,
}

impl Scene {
    async fn new() -> Self {
        let server = redis::start(&[]).unwrap();
        let spot = Spot::of(&server).await;
        let proxy = Proxy::to(server.port());
        let held_back = Locks::connect(&proxy.url(&spot.url)).await.unwrap();
        // All scripts are known from here on: what comes late is not sent again as text.
        let guard = held_back.lock("first").ttl(Duration::from_millis(300)).acquire().await.unwrap();
        assert!(guard.renewed().await.is_some());
        guard.release().await.unwrap();
        let direct = spot.locks().await;
        Self { _server: server, spot, proxy, direct, held_back }
    }

    /// Uses the lock until this task has a connection of its own, besides that of the I/O thread, and a free lock is taken through it.
    async fn warm(self) -> Self {
        let by = now() + Duration::from_secs(20);
        while self.proxy.counts().open < 2 {
            assert!(now() < by, "this runtime has no connection of its own");
            self.held_back.lock("first").acquire().await.unwrap().release().await.unwrap();
        }
        self.held_back.lock("first").acquire().await.unwrap().release().await.unwrap();
        self
    }

    /// Lets through what was held back, and waits until the server has run a script of it.
    async fn let_through(&self) {
        let before = self.spot.scripts_run().await;
        self.proxy.set(Way::ToServer, Flow::Pass);
        clock::until("it arrives", async || self.spot.scripts_run().await > before).await;
    }

    /// Forgets who has left, as if the release had said nothing of it: the planted bug.
    async fn forget_who_has_left(&self) {
        assert_eq!(self.spot.ask::<u64>(command("DEL").arg(self.spot.key("gone"))).await, 1);
    }
}

/// What a claim does that was sent on a connection given up, and comes after its own release.
async fn late_claim(scene: Scene, planted: bool) -> Vec<String> {
    scene.proxy.set_earlier(Way::ToServer, Flow::Hold);
    let began = now();
    let guard = scene.held_back.lock("late").acquire().await.unwrap();
    println!("had on another connection after {:.1?}", now().since(began));
    guard.release().await.unwrap();
    scene.spot.is_clean().await;
    if planted {
        scene.forget_who_has_left().await;
    }
    scene.let_through().await;
    scene.spot.leftovers().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_comes_after_its_release_takes_nothing() {
    assert_eq!(late_claim(Scene::new().await, false).await, [""; 0]);
    assert_eq!(late_claim(Scene::new().await.warm().await, false).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_list_of_those_who_have_left_it_would() {
    assert_eq!(late_claim(Scene::new().await, true).await.len(), 1);
}

/// What a claim does that this task has sent on its own connection before it dropped the acquisition, and that comes after the release
/// by the I/O thread.
async fn late_claim_of_a_dropped_acquisition() -> Vec<String> {
    let scene = Scene::new().await.warm().await;
    scene.proxy.set_earlier(Way::ToServer, Flow::Hold);
    assert!(scene.held_back.lock("late").acquire().now_or_never().is_none());
    assert!(scene.held_back.clone().close(Duration::from_secs(20)).await, "it is withdrawn");
    scene.let_through().await;
    scene.spot.leftovers().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_of_a_dropped_acquisition_takes_nothing() {
    assert_eq!(late_claim_of_a_dropped_acquisition().await, [""; 0]);
}

/// The same for a place in the queue, of one that no longer waits.
async fn late_place(planted: bool) -> usize {
    let scene = Scene::new().await;
    let guard = scene.direct.lock("late").acquire().await.unwrap();
    scene.proxy.set_earlier(Way::ToServer, Flow::Hold);
    let waiting = tokio::spawn(scene.held_back.lock("late").acquire());
    waiters(&scene.direct, "late", 1).await;
    waiting.abort();
    waiters(&scene.direct, "late", 0).await;
    if planted {
        scene.forget_who_has_left().await;
    }
    scene.let_through().await;
    let waiters = scene.direct.inspect("late").await.unwrap().waiters.len();
    guard.release().await.unwrap();
    waiters
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_comes_after_its_withdrawal_waits_for_nothing() {
    assert_eq!(late_place(false).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_list_of_those_who_have_left_it_would_wait() {
    assert_eq!(late_place(true).await, 1);
}

/// A claim for ten minutes is delivered four seconds after its connection was given up, and its client did not hear of it: its
/// release has left no note, or was never delivered.
async fn claim_delivered_after_seconds(retries: bool) -> Vec<String> {
    const TTL: Duration = Duration::from_secs(600);
    let scene = Scene::new().await;
    scene.proxy.set_earlier(Way::ToServer, Flow::Hold);
    let sent = now();
    if retries {
        let guard = scene.held_back.lock("late").ttl(TTL).acquire().await.unwrap();
        guard.release().await.unwrap();
        scene.forget_who_has_left().await;
    } else {
        scene.proxy.refuse(true);
        let error = scene.held_back.lock("late").ttl(TTL).try_acquire().await.unwrap_err();
        assert!(error.is_temporary(), "{error:?}");
    }
    pause((sent + Duration::from_secs(4)).since(now())).await;
    scene.let_through().await;
    scene.spot.leftovers().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_delivered_after_seconds_has_expired() {
    let (retried, tried) =
        tokio::join!(claim_delivered_after_seconds(true), claim_delivered_after_seconds(false));
    assert_eq!((retried, tried), (Vec::new(), Vec::new()));
}

/// The client takes the server's clock for an earlier one, because the reply with it was slow: the claim arrives when it seems to have
/// expired. It is sent again with the clock that it came back with.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_taken_for_an_expired_one_is_sent_again() {
    let server = redis::start(&[]).unwrap();
    let spot = Spot::of(&server).await;
    let proxy = Proxy::to(server.port());
    proxy.set(Way::ToClient, Flow::Delay(Duration::from_millis(1300)));
    let slow =
        Locks::connect(&format!("{}&polylock.connect_timeout=30s", proxy.url(&spot.url))).await.unwrap();
    proxy.set(Way::ToClient, Flow::Pass);
    proxy.set(Way::ToServer, Flow::Delay(Duration::from_millis(350)));
    let before = spot.scripts_run().await;
    let guard = slow.lock("slow").acquire().await.unwrap();
    // The first is the script's text.
    assert!(spot.scripts_run().await > before + 1, "it has not expired, and nothing is tested");
    assert_eq!(entries(&spot.locks().await, "slow").await, [guard.fencing_token().get()]);
    guard.release().await.unwrap();
    spot.is_clean().await;
}

/// Those who hold or wait for the lock, by the tokens of the holders; 0 is a waiter.
async fn entries(locks: &Locks, name: &str) -> Vec<u64> {
    let status = locks.inspect(name).await.unwrap();
    let tokens = status.holders.iter().chain(&status.waiters).map(|entry| entry.token);
    tokens.map(|token| token.map_or(0, |token| token.get())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_comes_when_another_holds_the_lock_takes_nothing_from_it() {
    const TTL: Duration = Duration::from_millis(600);
    let scene = Scene::new().await;
    let stale = scene.held_back.lock("stale").ttl(TTL).acquire().await.unwrap();
    scene.proxy.refuse(true);
    scene.proxy.set(Way::ToServer, Flow::Hold);
    let release = tokio::spawn(stale.release());
    let guard = scene.direct.lock("stale").ttl(TTL).acquire().await.unwrap();
    let token = guard.fencing_token();
    scene.let_through().await;
    assert_eq!(entries(&scene.direct, "stale").await, [token.get()]);
    assert!(guard.renewed().await.is_some());
    guard.release().await.unwrap();
    assert!(release.await.unwrap().is_err(), "nobody has confirmed it");
    scene.spot.is_clean().await;

    // What everybody writes first: the check finds it out.
    let guard = scene.direct.lock("stale").acquire().await.unwrap();
    let token = guard.fencing_token();
    assert_eq!(entries(&scene.direct, "stale").await, [token.get()]);
    scene.spot.ask::<()>(command("DEL").arg(scene.spot.key("h:stale"))).await;
    assert_ne!(entries(&scene.direct, "stale").await, [token.get()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_comes_after_the_lease_revives_nothing() {
    let scene = Scene::new().await;
    let guard = scene.held_back.lock("late").ttl(Duration::from_millis(600)).acquire().await.unwrap();
    scene.proxy.refuse(true);
    scene.proxy.set(Way::ToServer, Flow::Hold);
    guard.lost().await;
    clock::until("its lease is over", async || entries(&scene.direct, "late").await.is_empty()).await;
    scene.let_through().await;
    assert_eq!(entries(&scene.direct, "late").await, [0; 0]);
    scene.spot.is_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stands_still_for_longer_than_the_lease_gives_no_lock_twice() {
    let server = redis::start(&[]).unwrap();
    let spot = Spot::of(&server).await;
    let load = Load {
        lasts: Duration::from_secs(5),
        more_than: 100,
        wait: Duration::from_secs(3),
        ..Load::default()
    };
    let url = format!("{}&polylock.ttl=1s", spot.url);
    let outcome = load.run(&url, async {
        for _ in 0..2 {
            pause(Duration::from_millis(500)).await;
            block_in_place(|| server.freeze());
            pause(Duration::from_millis(1500)).await;
            block_in_place(|| server.thaw());
        }
    });
    let outcome = outcome.await;
    let sections = outcome.sections.len();
    println!("{sections} sections, {} failures, {} losses", outcome.failures, outcome.losses);
    assert_eq!(history::check(&outcome.sections, Rules::default()), []);
    assert!(sections > 100, "it went on");
    spot.is_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_is_told_in_time_that_the_server_stands_still() {
    const TTL: Duration = Duration::from_secs(1);
    let server = redis::start(&[]).unwrap();
    let spot = Spot::of(&server).await;
    let (holder, waiter) = (spot.locks().await, spot.locks().await);
    let guard = holder.lock("held").ttl(TTL).acquire().await.unwrap();
    let waiting = tokio::spawn(waiter.lock("held").ttl(TTL).acquire());
    waiters(&holder, "held", 1).await;
    block_in_place(|| server.freeze());
    let frozen = now();
    guard.lost().await;
    let told = now();
    println!("told after {:.1?}", told.since(frozen));
    assert!(told < guard.deadline() + SLACK / 4 && told < frozen + TTL, "{:?}", told.since(guard.deadline()));
    pause((frozen + 2 * TTL).since(told)).await;
    block_in_place(|| server.thaw());
    let next = waiting.await.unwrap().unwrap();
    assert!(next.fencing_token() > guard.fencing_token());
    // What the first one has sent meanwhile does it no harm, and comes to nothing.
    assert!(next.renewed().await.is_some());
    assert_eq!(entries(&waiter, "held").await, [next.fencing_token().get()]);
    assert!(guard.release().await.is_err());
    next.release().await.unwrap();
    spot.is_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_replies_are_harmless() {
    let scene = Scene::new().await;
    let recorder = Recorder::new();
    for cycle in 0..50 {
        let name = format!("cut-{}", cycle % 2);
        let attempt = recorder.invoke(&name, "cut", Mode::Exclusive);
        scene.proxy.cut_reply_to("EVALSHA");
        let began = now();
        let guard = scene.held_back.lock(&name).acquire().await.unwrap();
        let hold = attempt.acquired(&guard);
        assert_eq!(entries(&scene.direct, &name).await, [guard.fencing_token().get()]);
        scene.proxy.cut_reply_to("EVALSHA");
        hold.releasing(&guard);
        guard.release().await.unwrap();
        let took = now().since(began);
        assert!(took < SLACK, "{took:?}");
        assert_eq!(entries(&scene.direct, &name).await, [0; 0]);
    }
    assert_eq!(scene.proxy.counts().cut_replies, 100);
    assert_eq!(history::check(&recorder.sections(), Rules::default()), []);
    scene.spot.is_clean().await;
}
