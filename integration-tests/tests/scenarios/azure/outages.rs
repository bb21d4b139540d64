//! A service that is silent, busy or unreachable, or frozen for longer than a lease.

use std::time::Duration;

use futures_util::future::join_all;
use polylock::{Fault, Locks, LostReason};
use polylock_integration_tests::{
    clock::{TIMEOUT, now, pause},
    load::Load,
    proxy::{End, Flow, Proxy, RequestFault},
    servers::azurite,
};
use polylock_testkit::history::{self, Rules};
use tokio::task::block_in_place;

use super::{MIN_LEASE, Namespace, SLACK, acquire_and_release, loss, refusal, server};

/// A failure of the service.
#[derive(Debug, Clone, Copy)]
enum Outage {
    Silent(Flow),
    Busy,
    Unreachable,
}

const ALL: [Outage; 5] = [
    Outage::Silent(Flow::Hold),
    Outage::Silent(Flow::Stall),
    Outage::Silent(Flow::Drop),
    Outage::Busy,
    Outage::Unreachable,
];

/// The reply of a busy service.
fn busy(retry_after: Option<u32>) -> RequestFault {
    let retry_after = retry_after.map(|seconds| format!("Retry-After: {seconds}\r\n")).unwrap_or_default();
    let answer =
        format!("HTTP/1.1 503 Busy\r\nx-ms-error-code: ServerBusy\r\n{retry_after}Content-Length: 0\r\n\r\n");
    RequestFault::Reply(answer.into())
}

impl Outage {
    fn begin(self, proxy: &Proxy) {
        match self {
            Self::Silent(flow) => proxy.set_both(flow),
            Self::Busy => proxy.fault_every([""], busy(Some(1))),
            Self::Unreachable => {
                proxy.refuse(true);
                proxy.cut(End::Reset);
            }
        }
    }

    fn end(self, proxy: &Proxy) {
        match self {
            Self::Silent(_) => proxy.set_both(Flow::Pass),
            Self::Busy => proxy.clear_faults(),
            Self::Unreachable => proxy.refuse(false),
        }
    }

    /// A part of the error message.
    fn advice(self) -> &'static str {
        match self {
            Self::Silent(_) => "no reply within",
            Self::Busy => "the service is busy",
            Self::Unreachable => "can't be reached: check the account's name and the network",
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn opening_fails_in_time_with_the_cause() {
    join_all(ALL.map(|outage| async move {
        let namespace = Namespace::of(server());
        let proxy = Proxy::to_http(server().port());
        block_in_place(|| outage.begin(&proxy));
        for millis in [100, 700] {
            let url = format!("{}&polylock.connect_timeout={millis}ms", proxy.url(&namespace.url));
            let (fault, text, took) = refusal(&url).await;
            assert!(fault == Some(Fault::Temporary) && text.contains(outage.advice()), "{outage:?}: {text}");
            let limit = Duration::from_millis(millis);
            assert!(took < limit + SLACK, "{outage:?}: {took:.1?}");
        }
        // It opens when the outage is over.
        let opening = Locks::connect(&proxy.url(&namespace.url)).await;
        block_in_place(|| outage.end(&proxy));
        drop(opening);
        acquire_and_release(&Locks::connect(&proxy.url(&namespace.url)).await.unwrap(), "a").await;
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquisition_fails_in_time_with_the_cause() {
    join_all(ALL.map(|outage| async move {
        let (proxy, locks) = Namespace::of(server()).through(server()).await;
        acquire_and_release(&locks, "a").await;
        block_in_place(|| outage.begin(&proxy));
        let lock = || locks.lock("a").ttl(MIN_LEASE);
        // A try is one request, which may take a second here. A request may be in flight, or delayed for a second, when the
        // outage limit is reached.
        for (what, lock, limit) in [
            ("a try", lock().wait(Duration::ZERO), 1000),
            ("a wait", lock().wait(Duration::from_millis(1200)), 1200),
            ("an outage", lock().outage(Duration::from_millis(300)), 300 + 2000),
        ] {
            let began = now();
            let error = lock.acquire().await.unwrap_err();
            let took = now().since(began);
            println!("{outage:?}: {what} ended after {took:.1?}: {error}");
            assert!(error.is_temporary(), "{outage:?}: {error:?}");
            assert!(took < Duration::from_millis(limit) + SLACK, "{outage:?}: {what}: {took:.1?}");
        }
        block_in_place(|| outage.end(&proxy));
        let began = now();
        locks.lock("a").acquire().await.unwrap().release().await.unwrap();
        assert!(now().since(began) < Duration::from_secs(4), "{outage:?}: {:?}", now().since(began));
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_loses_the_lock_at_its_deadline_and_waiters_continue() {
    join_all(ALL.map(|outage| async move {
        let namespace = Namespace::of(server());
        let (proxy, here) = namespace.through(server()).await;
        let waiter = Locks::connect(&proxy.url(&namespace.url)).await.unwrap();
        let guard = here.lock("a").ttl(MIN_LEASE).acquire().await.unwrap();
        let waiting = tokio::spawn(waiter.lock("a").ttl(MIN_LEASE).acquire());
        pause(Duration::from_millis(300)).await;
        let before = proxy.counts();
        block_in_place(|| outage.begin(&proxy));
        let deadline = guard.deadline();
        assert_eq!(loss(&guard).await, LostReason::DeadlineReached, "{outage:?}");
        let lost = now();
        assert!(lost >= deadline && lost < deadline + SLACK, "{outage:?}: {:?}", lost.since(deadline));
        let after = proxy.counts();
        block_in_place(|| outage.end(&proxy));
        let next = tokio::time::timeout(TIMEOUT, waiting).await.expect("the waiter is granted the lock");
        let next = next.unwrap().unwrap();
        println!(
            "{outage:?}: {} requests, {} connections meanwhile; lost {:.1?} after the deadline, granted to the next {:.1?} \
             later",
            after.requests - before.requests,
            after.connections - before.connections,
            lost.since(deadline),
            now().since(lost),
        );
        // Requests of the former holder do not affect the next one.
        assert!(next.fencing_token() > guard.fencing_token(), "{outage:?}");
        assert!(guard.release().await.is_err(), "{outage:?}");
        assert!(next.renewed().await.is_some(), "{outage:?}");
        next.release().await.unwrap();
        acquire_and_release(&namespace.locks().await, "a").await;
    }))
    .await;
}

/// Returns the number of renewals before the lock was lost.
async fn renewals(retry_after: Option<u32>) -> u64 {
    let (proxy, here) = Namespace::of(server()).through(server()).await;
    let guard = here.lock("a").ttl(MIN_LEASE).acquire().await.unwrap();
    proxy.fault_every(["x-ms-lease-action: renew"], busy(retry_after));
    let deadline = guard.deadline();
    loss(&guard).await;
    assert!(now() >= deadline && now() < deadline + SLACK, "{retry_after:?}: {:?}", now().since(deadline));
    proxy.counts().faulted
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_is_respected_within_the_lease() {
    let (without, soon, never) = tokio::join!(renewals(None), renewals(Some(2)), renewals(Some(3600)));
    println!("renewals in ten seconds: {without} without Retry-After, {soon} with 2 s, {never} with an hour");
    assert!(without > soon + 2, "the control: more requests without Retry-After");
    assert!((3..=7).contains(&soon), "{soon}");
    assert!((2..=7).contains(&never), "{never}");
}

/// Opening waits, too. A pause of an hour ends when the service answers a later request.
#[tokio::test(flavor = "multi_thread")]
async fn retry_after_applies_to_opening_and_ends_with_a_success() {
    let namespace = Namespace::of(server());
    let proxy = Proxy::to_http(server().port());
    let opening = async |retry_after| {
        proxy.fault_every([""], busy(retry_after));
        let before = proxy.counts().faulted;
        refusal(&format!("{}&polylock.connect_timeout=2500ms", proxy.url(&namespace.url))).await;
        proxy.counts().faulted - before
    };
    let (without, with) = (opening(None).await, opening(Some(1)).await);
    println!("{without} requests in 2.5 s, {with} with a Retry-After of 1 s");
    assert!(without >= 6 && with <= 3, "{without}, {with}");
    proxy.clear_faults();

    let here = Locks::connect(&proxy.url(&namespace.url)).await.unwrap();
    proxy.fault_next([""], busy(Some(3600)));
    let began = now();
    use_lock(&here).await;
    let first = now().since(began);
    for _ in 0..5 {
        use_lock(&here).await;
    }
    let (rest, all) = (now().since(began) - first, proxy.counts().faulted);
    println!("{first:.1?}, and {rest:.1?} for five more");
    assert!(rest < SLACK * 2, "{rest:.1?}, {all}");
}

async fn use_lock(locks: &Locks) {
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_frozen_for_longer_than_the_lease_violates_no_exclusion() {
    let server = azurite::start(&[]).unwrap();
    let namespace = Namespace::of(&server);
    let (holder, waiter) = (namespace.locks().await, namespace.locks().await);
    let guard = holder.lock("held").ttl(MIN_LEASE).acquire().await.unwrap();
    let waiting = tokio::spawn(waiter.lock("held").ttl(MIN_LEASE).acquire());
    let load = Load {
        stores: 3,
        tasks: 3,
        duration: Duration::from_secs(24),
        readers: false,
        wait: Duration::from_secs(30),
        ..Load::default()
    };
    let url = format!("{}&polylock.ttl=15s", namespace.url);
    let outcome = load.run(&url, async {
        pause(Duration::from_secs(2)).await;
        block_in_place(|| server.freeze());
        let frozen = now();
        loss(&guard).await;
        let (lost, deadline) = (now(), guard.deadline());
        println!("lost after {:.1?}", lost.since(frozen));
        assert!(lost < deadline + SLACK && lost < frozen + MIN_LEASE, "{:?}", lost.since(deadline));
        pause((frozen + MIN_LEASE + Duration::from_secs(2)).since(lost)).await;
        block_in_place(|| server.thaw());
        let next = waiting.await.unwrap().unwrap();
        println!("granted to the next {:.1?} after the loss", now().since(lost));
        assert!(next.fencing_token() > guard.fencing_token());
        // Requests of the former holder do not affect it.
        assert!(next.renewed().await.is_some());
        next.release().await.unwrap();
    });
    let outcome = outcome.await;
    let sections = outcome.sections.len();
    println!("{sections} sections, {} failures, {} losses", outcome.failures, outcome.losses);
    assert_eq!(history::check(&outcome.sections, Rules::default()), []);
    assert!(sections > 50, "too few sections");
    assert!(guard.release().await.is_err());
    for name in ["held", "lock-0", "lock-1"] {
        acquire_and_release(&holder, name).await;
    }
}
