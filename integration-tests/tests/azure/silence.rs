//! A service that is silent, busy or gone, and one that stands still for longer than a lease.

use std::time::Duration;

use futures_util::future::join_all;
use polylock::{Fault, Locks, LostReason};
use polylock_integration_tests::{
    clock::{PATIENCE, now, pause},
    proxy::{End, Fate, Flow, Proxy},
    servers::azurite,
};
use polylock_testkit::history::{self, Rules};
use tokio::task::block_in_place;

use crate::{SHORTEST, SLACK, Spot, is_free, load::Load, loss, refusal, server};

/// What befalls the service.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    Silent(Flow),
    Busy,
    Gone,
}

const ALL: [Trouble; 5] = [
    Trouble::Silent(Flow::Hold),
    Trouble::Silent(Flow::Stall),
    Trouble::Silent(Flow::Swallow),
    Trouble::Busy,
    Trouble::Gone,
];

/// The answer of a service that is busy.
fn busy(retry_after: Option<u32>) -> Fate {
    let retry_after = retry_after.map(|seconds| format!("Retry-After: {seconds}\r\n")).unwrap_or_default();
    let answer =
        format!("HTTP/1.1 503 Busy\r\nx-ms-error-code: ServerBusy\r\n{retry_after}Content-Length: 0\r\n\r\n");
    Fate::Answer(answer.into())
}

impl Trouble {
    fn begin(self, proxy: &Proxy) {
        match self {
            Self::Silent(flow) => proxy.set_both(flow),
            Self::Busy => proxy.every([""], busy(Some(1))),
            Self::Gone => {
                proxy.refuse(true);
                proxy.cut(End::Reset);
            }
        }
    }

    fn end(self, proxy: &Proxy) {
        match self {
            Self::Silent(_) => proxy.set_both(Flow::Pass),
            Self::Busy => proxy.spare(),
            Self::Gone => proxy.refuse(false),
        }
    }

    /// What an error says of it.
    fn advice(self) -> &'static str {
        match self {
            Self::Silent(_) => "no answer within",
            Self::Busy => "the service is busy",
            Self::Gone => "can't be reached: check the account's name and the network",
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn opening_ends_in_time_and_says_why() {
    join_all(ALL.map(|trouble| async move {
        let spot = Spot::of(server());
        let proxy = Proxy::to_http(server().port());
        block_in_place(|| trouble.begin(&proxy));
        for millis in [100, 700] {
            let url = format!("{}&polylock.connect_timeout={millis}ms", proxy.url(&spot.url));
            let (fault, text, took) = refusal(&url).await;
            assert!(
                fault == Some(Fault::Temporary) && text.contains(trouble.advice()),
                "{trouble:?}: {text}"
            );
            let limit = Duration::from_millis(millis);
            assert!(took < limit + SLACK, "{trouble:?}: {took:.1?}");
        }
        // It opens as soon as it can.
        let opening = Locks::connect(&proxy.url(&spot.url)).await;
        block_in_place(|| trouble.end(&proxy));
        drop(opening);
        is_free(&Locks::connect(&proxy.url(&spot.url)).await.unwrap(), "a").await;
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquisition_ends_in_time_and_says_why() {
    join_all(ALL.map(|trouble| async move {
        let (proxy, locks) = Spot::of(server()).through(server()).await;
        is_free(&locks, "a").await;
        block_in_place(|| trouble.begin(&proxy));
        let lock = || locks.lock("a").ttl(SHORTEST);
        // A try is one request, which may take a second here; one may be under way when an outage has lasted for too long, or
        // be put off for a second.
        for (what, lock, limit) in [
            ("a try", lock().wait(Duration::ZERO), 1000),
            ("a wait", lock().wait(Duration::from_millis(1200)), 1200),
            ("an outage", lock().outage(Duration::from_millis(300)), 300 + 2000),
        ] {
            let began = now();
            let error = lock.acquire().await.unwrap_err();
            let took = now().since(began);
            println!("{trouble:?}: {what} ended after {took:.1?}: {error}");
            assert!(error.is_temporary(), "{trouble:?}: {error:?}");
            assert!(took < Duration::from_millis(limit) + SLACK, "{trouble:?}: {what}: {took:.1?}");
        }
        block_in_place(|| trouble.end(&proxy));
        let began = now();
        locks.lock("a").acquire().await.unwrap().release().await.unwrap();
        assert!(now().since(began) < Duration::from_secs(4), "{trouble:?}: {:?}", now().since(began));
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_is_told_at_its_deadline_and_waiters_go_on() {
    join_all(ALL.map(|trouble| async move {
        let spot = Spot::of(server());
        let (proxy, here) = spot.through(server()).await;
        let waiter = Locks::connect(&proxy.url(&spot.url)).await.unwrap();
        let guard = here.lock("a").ttl(SHORTEST).acquire().await.unwrap();
        let waiting = tokio::spawn(waiter.lock("a").ttl(SHORTEST).acquire());
        pause(Duration::from_millis(300)).await;
        let before = proxy.counts();
        block_in_place(|| trouble.begin(&proxy));
        let deadline = guard.deadline();
        assert_eq!(loss(&guard).await, LostReason::DeadlineReached, "{trouble:?}");
        let told = now();
        assert!(told >= deadline && told < deadline + SLACK, "{trouble:?}: {:?}", told.since(deadline));
        let after = proxy.counts();
        block_in_place(|| trouble.end(&proxy));
        let next = tokio::time::timeout(PATIENCE, waiting).await.expect("it goes on").unwrap().unwrap();
        println!(
            "{trouble:?}: {} requests, {} connections meanwhile; told {:.1?} after the deadline, the next one has it {:.1?} \
             later",
            after.requests - before.requests,
            after.connections - before.connections,
            told.since(deadline),
            now().since(told),
        );
        // What was sent meanwhile does the next one no harm: it keeps the lock.
        assert!(next.fencing_token() > guard.fencing_token(), "{trouble:?}");
        assert!(guard.release().await.is_err(), "{trouble:?}");
        assert!(next.renewed().await.is_some(), "{trouble:?}");
        next.release().await.unwrap();
        is_free(&spot.locks().await, "a").await;
    }))
    .await;
}

/// How often a renewal was tried before the lock was lost.
async fn renewals(retry_after: Option<u32>) -> u64 {
    let (proxy, here) = Spot::of(server()).through(server()).await;
    let guard = here.lock("a").ttl(SHORTEST).acquire().await.unwrap();
    proxy.every(["x-ms-lease-action: renew"], busy(retry_after));
    let deadline = guard.deadline();
    loss(&guard).await;
    assert!(now() >= deadline && now() < deadline + SLACK, "{retry_after:?}: {:?}", now().since(deadline));
    proxy.counts().fated
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_wants_to_be_left_alone_is_but_not_beyond_the_lease() {
    let (at_will, soon, never) = tokio::join!(renewals(None), renewals(Some(2)), renewals(Some(3600)));
    println!(
        "renewals that were tried in ten seconds: {at_will}, {soon} with two seconds between, {never} if never"
    );
    assert!(at_will > soon + 2, "the planted twin");
    assert!((3..=7).contains(&soon), "{soon}");
    assert!((2..=7).contains(&never), "{never}");
}

/// Opening, too: and who was told to come back in an hour does not go by that when he is served before.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_told_to_come_later_does_not_come_earlier_nor_that_late() {
    let spot = Spot::of(server());
    let proxy = Proxy::to_http(server().port());
    let opening = async |retry_after| {
        proxy.every([""], busy(retry_after));
        let before = proxy.counts().fated;
        refusal(&format!("{}&polylock.connect_timeout=2500ms", proxy.url(&spot.url))).await;
        proxy.counts().fated - before
    };
    let (at_will, told) = (opening(None).await, opening(Some(1)).await);
    println!("{at_will} requests in 2.5 s, {told} with a second between");
    assert!(at_will >= 6 && told <= 3, "{at_will}, {told}");
    proxy.spare();

    let here = Locks::connect(&proxy.url(&spot.url)).await.unwrap();
    proxy.next([""], busy(Some(3600)));
    let began = now();
    is_taken_and_given_back(&here).await;
    let first = now().since(began);
    for _ in 0..5 {
        is_taken_and_given_back(&here).await;
    }
    let (rest, all) = (now().since(began) - first, proxy.counts().fated);
    println!("{first:.1?}, and {rest:.1?} for five more");
    assert!(rest < SLACK * 2, "{rest:.1?}, {all}");
}

async fn is_taken_and_given_back(locks: &Locks) {
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stands_still_for_longer_than_the_lease_gives_no_lock_twice() {
    let server = azurite::start(&[]).unwrap();
    let spot = Spot::of(&server);
    let (holder, waiter) = (spot.locks().await, spot.locks().await);
    let guard = holder.lock("held").ttl(SHORTEST).acquire().await.unwrap();
    let waiting = tokio::spawn(waiter.lock("held").ttl(SHORTEST).acquire());
    let load = Load {
        stores: 3,
        tasks: 3,
        lasts: Duration::from_secs(24),
        readers: false,
        wait: Duration::from_secs(30),
        ..Load::default()
    };
    let url = format!("{}&polylock.ttl=15s", spot.url);
    let outcome = load.run(&url, async {
        pause(Duration::from_secs(2)).await;
        block_in_place(|| server.freeze());
        let frozen = now();
        loss(&guard).await;
        let (told, deadline) = (now(), guard.deadline());
        println!("told after {:.1?}", told.since(frozen));
        assert!(told < deadline + SLACK && told < frozen + SHORTEST, "{:?}", told.since(deadline));
        pause((frozen + SHORTEST + Duration::from_secs(2)).since(told)).await;
        block_in_place(|| server.thaw());
        let next = waiting.await.unwrap().unwrap();
        println!("the next one has it {:.1?} after the loss", now().since(told));
        assert!(next.fencing_token() > guard.fencing_token());
        // What the first one has sent meanwhile does it no harm.
        assert!(next.renewed().await.is_some());
        next.release().await.unwrap();
    });
    let outcome = outcome.await;
    let sections = outcome.sections.len();
    println!("{sections} sections, {} failures, {} losses", outcome.failures, outcome.losses);
    assert_eq!(history::check(&outcome.sections, Rules::default()), []);
    assert!(sections > 50, "it went on");
    assert!(guard.release().await.is_err());
    for name in ["held", "lock-0", "lock-1"] {
        is_free(&holder, name).await;
    }
}
