//! Commands that the server executes after the client has stopped waiting for the reply, and lost replies.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;
use polylock::{Locks, Mode};
use polylock_integration_tests::{
    clock::{self, TIMEOUT, now, pause},
    proxy::{Direction, Flow, Proxy, RequestFault},
    servers::{PrivateServer, redis},
    stores::wait_for_waiters,
};
use polylock_testkit::{
    ManualClock,
    history::{self, Recorder, Rules},
};

use super::{CALLER, IO_THREAD, Namespace, command, warm_up};

/// A client with commands that a proxy holds back.
struct Setup {
    _server: PrivateServer,
    namespace: Namespace,
    proxy: Proxy,
    direct: Locks,
    held_back: Locks,
}

impl Setup {
    async fn new() -> Self {
        Self::with("").await
    }

    /// Creates one with these options of the client.
    async fn with(options: &str) -> Self {
        let server = redis::start(&[]).unwrap();
        let namespace = Namespace::on(&server).await;
        let proxy = Proxy::to(server.port());
        let url = format!("{}{options}", proxy.url(&namespace.url));
        let held_back = Locks::connect(&url).await.unwrap();
        // All scripts are loaded from here on, so a late command is not repeated with the script's text.
        let guard = held_back.lock("first").ttl(Duration::from_secs(2)).acquire().await.unwrap();
        assert!(guard.renewed().await.is_some());
        guard.release().await.unwrap();
        let direct = namespace.locks().await;
        Self { _server: server, namespace, proxy, direct, held_back }
    }

    /// Adds a connection of this runtime, on which its tasks claim, besides that of the I/O thread.
    async fn warm_up(self) -> Self {
        warm_up(&self.held_back, &self.proxy).await;
        self
    }

    /// Delivers the commands that were held back, and waits until the server has run one of their scripts.
    async fn deliver_held_back(&self) {
        let before = self.namespace.script_count().await;
        self.proxy.set(Direction::ToServer, Flow::Pass);
        clock::until("it arrives", async || self.namespace.script_count().await > before).await;
    }

    /// Deletes the record of released requests, as if the release had not written it: the planted bug.
    async fn clear_released(&self) {
        assert_eq!(self.namespace.query::<u64>(command("DEL").arg(self.namespace.key("gone"))).await, 1);
    }
}

/// With this option a claim that is held back expires long after its delivery. The client does not wait that long for the reply if its
/// connection is closed.
const LONG_VALIDITY: &str = "&polylock.operation_timeout=20s";

/// Returns the keys that remain if a claim on a discarded connection is executed after its release.
async fn late_claim(setup: Setup, planted: bool) -> Vec<String> {
    setup.proxy.set_existing(Direction::ToServer, Flow::Hold);
    if planted {
        setup.proxy.fault_next(["}:h:late"], RequestFault::CloseClient);
    }
    let began = now();
    let guard = setup.held_back.lock("late").acquire().await.unwrap();
    println!("had on another connection after {:.1?}", now().since(began));
    guard.release().await.unwrap();
    setup.namespace.assert_clean().await;
    if planted {
        setup.clear_released().await;
    }
    setup.deliver_held_back().await;
    setup.namespace.remaining_keys().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_executed_after_its_release_grants_nothing() {
    assert_eq!(late_claim(Setup::new().await, false).await, [""; 0]);
    assert_eq!(late_claim(Setup::new().await.warm_up().await, false).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn planted_without_the_released_list_a_late_claim_is_granted() {
    assert_eq!(late_claim(Setup::with(LONG_VALIDITY).await, true).await.len(), 1);
}

/// Returns the keys that remain if a claim is delivered after the release of its acquisition:
/// 1. The caller sends the claim on the connection of its own runtime, where the proxy holds it back.
/// 2. The caller drops the acquisition.
/// 3. The I/O thread releases on its own connection, and the server executes the release.
/// 4. The proxy delivers the claim.
///
/// The clock of the deadlines stands still, so the I/O thread does not take the claim over. The claim is valid for a minute, so it has
/// not expired when it is delivered.
async fn late_claim_of_a_dropped_acquisition(planted: bool) -> Vec<String> {
    const TTL: Duration = Duration::from_secs(600);
    let server = redis::start(&[]).unwrap();
    let (namespace, proxy) = (Namespace::on(&server).await, Proxy::to(server.port()));
    let url = format!("{}&polylock.operation_timeout=1m", proxy.url(&namespace.url));
    let (held_back, direct) =
        (Locks::builder(&url).clock(Arc::new(ManualClock::new())), namespace.locks().await);
    let setup =
        Setup { held_back: held_back.connect().await.unwrap(), _server: server, namespace, proxy, direct };
    let setup = setup.warm_up().await;

    setup.proxy.set_one(CALLER, Direction::ToServer, Flow::Hold);
    setup.proxy.watch_for("}:h:late");
    let mut acquisition = Box::pin(setup.held_back.lock("late").ttl(TTL).acquire());
    assert!(acquisition.as_mut().now_or_never().is_none());
    clock::until("the claim is sent", async || !setup.proxy.watched().is_empty()).await;
    assert_eq!(setup.proxy.watched(), [CALLER]);
    let before = setup.namespace.script_count().await;
    drop(acquisition);
    clock::until("it is released", async || setup.proxy.watched() == [CALLER, IO_THREAD]).await;
    let closed = tokio::time::timeout(TIMEOUT, setup.held_back.clone().close(TIMEOUT)).await;
    assert!(closed.unwrap());
    assert_eq!(setup.namespace.script_count().await, before + 1, "the release was carried out");
    if planted {
        setup.clear_released().await;
    }
    setup.deliver_held_back().await;
    assert_eq!(setup.proxy.watched(), [CALLER, IO_THREAD]);
    let left = setup.namespace.remaining_keys().await;
    let is_free = setup.direct.lock("late").try_acquire().await.unwrap().is_some();
    assert_eq!(is_free, left.is_empty());
    left
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_claim_of_a_dropped_acquisition_grants_nothing() {
    assert_eq!(late_claim_of_a_dropped_acquisition(false).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn planted_without_the_released_list_a_dropped_claim_is_granted() {
    assert_eq!(late_claim_of_a_dropped_acquisition(true).await.len(), 1);
}

/// Returns the number of waiters if a claim is executed after the withdrawal of its request.
async fn late_queue_entry(planted: bool) -> usize {
    let setup = Setup::with(LONG_VALIDITY).await;
    let guard = setup.direct.lock("late").acquire().await.unwrap();
    setup.proxy.set_existing(Direction::ToServer, Flow::Hold);
    setup.proxy.fault_next(["}:h:late"], RequestFault::CloseClient);
    let waiting = tokio::spawn(setup.held_back.lock("late").acquire());
    wait_for_waiters(&setup.direct, "late", 1).await;
    waiting.abort();
    wait_for_waiters(&setup.direct, "late", 0).await;
    if planted {
        setup.clear_released().await;
    }
    setup.deliver_held_back().await;
    let waiters = setup.direct.inspect("late").await.unwrap().waiters.len();
    guard.release().await.unwrap();
    waiters
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_executed_after_its_withdrawal_is_not_queued() {
    assert_eq!(late_queue_entry(false).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn planted_without_the_released_list_a_late_claim_is_queued() {
    assert_eq!(late_queue_entry(true).await, 1);
}

/// A claim for ten minutes is delivered four seconds after its connection was discarded. The record of its
/// release is missing, or the release was never delivered.
async fn claim_delivered_after_seconds(retries: bool) -> Vec<String> {
    const TTL: Duration = Duration::from_secs(600);
    let setup = Setup::new().await;
    setup.proxy.set_existing(Direction::ToServer, Flow::Hold);
    let sent = now();
    if retries {
        let guard = setup.held_back.lock("late").ttl(TTL).acquire().await.unwrap();
        guard.release().await.unwrap();
        setup.clear_released().await;
    } else {
        setup.proxy.refuse(true);
        let error = setup.held_back.lock("late").ttl(TTL).try_acquire().await.unwrap_err();
        assert!(error.is_temporary(), "{error:?}");
    }
    pause((sent + Duration::from_secs(4)).since(now())).await;
    setup.deliver_held_back().await;
    setup.namespace.remaining_keys().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_delivered_after_seconds_has_expired() {
    let (retried, tried) =
        tokio::join!(claim_delivered_after_seconds(true), claim_delivered_after_seconds(false));
    assert_eq!((retried, tried), (Vec::new(), Vec::new()));
}

/// The client's estimate of the server's clock is late, because the reply with it was slow, so the claim seems to have
/// expired on arrival. It is sent again with the clock of the reply.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_rejected_as_expired_by_mistake_is_sent_again() {
    let server = redis::start(&[]).unwrap();
    let namespace = Namespace::on(&server).await;
    let proxy = Proxy::to(server.port());
    proxy.set(Direction::ToClient, Flow::Delay(Duration::from_millis(1300)));
    let slow =
        Locks::connect(&format!("{}&polylock.connect_timeout=30s", proxy.url(&namespace.url))).await.unwrap();
    proxy.set(Direction::ToClient, Flow::Pass);
    proxy.set(Direction::ToServer, Flow::Delay(Duration::from_millis(350)));
    let before = namespace.script_count().await;
    let guard = slow.lock("slow").acquire().await.unwrap();
    // The first call loads the script.
    assert!(namespace.script_count().await > before + 1, "it has not expired, and nothing is tested");
    assert_eq!(entries(&namespace.locks().await, "slow").await, [guard.fencing_token().get()]);
    guard.release().await.unwrap();
    namespace.assert_clean().await;
}

/// Returns the tokens of the holders, and 0 for each waiter.
async fn entries(locks: &Locks, name: &str) -> Vec<u64> {
    let status = locks.inspect(name).await.unwrap();
    let tokens = status.holders.iter().chain(&status.waiters).map(|entry| entry.token);
    tokens.map(|token| token.map_or(0, |token| token.get())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_release_does_not_affect_the_next_holder() {
    const TTL: Duration = Duration::from_secs(2);
    let setup = Setup::new().await;
    let stale = setup.held_back.lock("stale").ttl(TTL).acquire().await.unwrap();
    setup.proxy.refuse(true);
    setup.proxy.set(Direction::ToServer, Flow::Hold);
    let release = tokio::spawn(stale.release());
    let guard = setup.direct.lock("stale").ttl(3 * TTL).acquire().await.unwrap();
    let token = guard.fencing_token();
    setup.deliver_held_back().await;
    assert_eq!(entries(&setup.direct, "stale").await, [token.get()]);
    assert!(guard.renewed().await.is_some());
    guard.release().await.unwrap();
    assert!(release.await.unwrap().is_err(), "it was not confirmed");
    setup.namespace.assert_clean().await;

    // A release without a comparison is detected by the check.
    let guard = setup.direct.lock("stale").acquire().await.unwrap();
    let token = guard.fencing_token();
    assert_eq!(entries(&setup.direct, "stale").await, [token.get()]);
    setup.namespace.query::<()>(command("DEL").arg(setup.namespace.key("h:stale"))).await;
    assert_ne!(entries(&setup.direct, "stale").await, [token.get()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_executed_after_the_lease_has_no_effect() {
    let setup = Setup::new().await;
    let guard = setup.held_back.lock("late").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    setup.proxy.refuse(true);
    setup.proxy.set(Direction::ToServer, Flow::Hold);
    guard.lost().await;
    clock::until("its lease is over", async || entries(&setup.direct, "late").await.is_empty()).await;
    setup.deliver_held_back().await;
    assert_eq!(entries(&setup.direct, "late").await, [0; 0]);
    setup.namespace.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_replies_are_harmless() {
    let setup = Setup::new().await;
    let (recorder, mut took) = (Recorder::new(), Vec::new());
    for cycle in 0..50 {
        let name = format!("cut-{}", cycle % 2);
        let attempt = recorder.invoke(&name, "cut", Mode::Exclusive);
        setup.proxy.reset_before_reply_to("EVALSHA");
        let began = now();
        let guard = setup.held_back.lock(&name).acquire().await.unwrap();
        let hold = attempt.acquired(&guard);
        assert_eq!(entries(&setup.direct, &name).await, [guard.fencing_token().get()]);
        setup.proxy.reset_before_reply_to("EVALSHA");
        hold.releasing(&guard);
        guard.release().await.unwrap();
        took.push(now().since(began));
        assert_eq!(entries(&setup.direct, &name).await, [0; 0]);
    }
    // A lost reply is noticed at once, and not after the timeout of 500 ms.
    took.sort_unstable();
    assert!(took[25] < Duration::from_millis(400), "{took:?}");
    assert_eq!(setup.proxy.counts().resets_before_reply, 100);
    assert_eq!(history::check(&recorder.sections(), Rules::default()), []);
    setup.namespace.assert_clean().await;
}
