//! Requests and answers that are lost, of every kind.

use std::time::Duration;

use futures_util::future::join_all;
use polylock::{Locks, LostReason};
use polylock_integration_tests::{
    clock::{now, pause},
    proxy::{Fate, Proxy},
};
use polylock_testkit::history::{self, Rules};

use crate::{SETTLED, SHORTEST, SLACK, Spot, becomes_free, is_free, load::Load, loss, server};

const ACQUIRE: &str = "x-ms-lease-action: acquire";
const RENEW: &str = "x-ms-lease-action: renew";
const RELEASE: &str = "x-ms-lease-action: release";
const LOOK: &str = "HEAD /";
const FENCE: &str = "comp=metadata";
const MAKE: &str = "x-ms-blob-type: ";
const CONTAINER: &str = "restype=container";

const LOSSES: [Fate; 4] = [Fate::CutReply, Fate::SwallowReply, Fate::Cut, Fate::Swallow];

/// One request met its fate.
fn was_lost(proxy: &Proxy, what: &str) {
    assert_eq!(proxy.counts().fated, 1, "{what}: nothing was lost");
}

/// One of each of `requests` and [`LOSSES`], side by side.
async fn each(requests: &[&'static str], lost: impl AsyncFn(&'static str, Fate)) {
    let pairs = requests.iter().flat_map(|request| LOSSES.map(|fate| (*request, fate)));
    join_all(pairs.map(|(request, fate)| lost(request, fate))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_an_acquisition_cost_a_moment_and_no_lease() {
    each(&[ACQUIRE, MAKE, LOOK, FENCE], async |request, fate| {
        let what = format!("{request} {fate:?}");
        let spot = Spot::of(server());
        let there = spot.locks().await;
        let (proxy, here) = spot.through(server()).await;
        let mut last = 0;
        // The second time the blob is there, and was written to by another.
        for name in ["fresh", "known"] {
            if name == "known" && request != MAKE {
                last = is_free(&there, name).await;
            } else if name == "known" {
                continue;
            }
            let before = proxy.counts().fated;
            proxy.next([request], fate.clone());
            let began = now();
            let guard = here.lock(name).acquire().await.unwrap();
            let took = now().since(began);
            assert_eq!(proxy.counts().fated, before + 1, "{what}: nothing was lost");
            assert!(took < SETTLED, "{what}: {took:.1?}");
            assert!(guard.fencing_token().get() > last, "{what}");
            last = guard.fencing_token().get();
            assert!(there.lock(name).try_acquire().await.unwrap().is_none(), "{what}: two holders");
            assert!(guard.is_held());
            guard.release().await.unwrap();
            assert!(is_free(&there, name).await > last, "{what}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_try_are_told_and_leave_no_lease() {
    each(&[ACQUIRE, MAKE, LOOK, FENCE], async |request, fate| {
        let what = format!("{request} {fate:?}");
        let spot = Spot::of(server());
        let there = spot.locks().await;
        let (proxy, here) = spot.through(server()).await;
        proxy.next([request], fate);
        let began = now();
        let token = match here.lock("a").try_acquire().await {
            Ok(guard) => {
                // What was cut off is sent again at once.
                let guard = guard.unwrap_or_else(|| panic!("{what}: nobody has it"));
                let token = guard.fencing_token().get();
                guard.release().await.unwrap();
                token
            }
            Err(error) => {
                assert!(error.is_temporary(), "{what}: {error:?}");
                let took = now().since(began);
                assert!(took < SETTLED, "{what}: {took:.1?}");
                0
            }
        };
        was_lost(&proxy, &what);
        assert!(becomes_free(&there, "a").await > token, "{what}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_release_leave_no_lease() {
    each(&[RELEASE], async |request, fate| {
        let what = format!("{request} {fate:?}");
        let spot = Spot::of(server());
        let there = spot.locks().await;
        let (proxy, here) = spot.through(server()).await;
        let guard = here.lock("a").acquire().await.unwrap();
        let token = guard.fencing_token().get();
        proxy.next([request], fate);
        let began = now();
        guard.release().await.unwrap();
        let took = now().since(began);
        was_lost(&proxy, &what);
        assert!(took < SETTLED, "{what}: {took:.1?}");
        assert!(is_free(&there, "a").await > token, "{what}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_renewal_lose_no_lock() {
    each(&[RENEW], async |request, fate| {
        let what = format!("{request} {fate:?}");
        let spot = Spot::of(server());
        let there = spot.locks().await;
        let (proxy, here) = spot.through(server()).await;
        let guard = here.lock("a").ttl(SHORTEST).acquire().await.unwrap();
        let before = guard.deadline();
        proxy.next([request], fate);
        let renewed = guard.renewed().await;
        was_lost(&proxy, &what);
        assert!(renewed.is_some_and(|deadline| deadline > before), "{what}: {renewed:?}");
        assert!(there.lock("a").try_acquire().await.unwrap().is_none(), "{what}: two holders");
        guard.release().await.unwrap();
        is_free(&there, "a").await;
    })
    .await;
}

/// When the store is opened, and when somebody has deleted it since.
#[tokio::test(flavor = "multi_thread")]
async fn of_the_making_of_a_container_make_it_all_the_same() {
    each(&[CONTAINER], async |request, fate| {
        let what = format!("{request} {fate:?}");
        let spot = Spot::alone(server());
        let proxy = Proxy::to_http(server().port());
        proxy.next([request], fate.clone());
        let url = format!("{}&polylock.request_timeout=1s", proxy.url(&spot.url));
        let here = Locks::connect(&url).await.unwrap();
        was_lost(&proxy, &what);
        let token = is_free(&here, "a").await;
        spot.does(&format!("DELETE {}?restype=container", spot.container()), " 202 ").await;
        spot.next_second().await;
        proxy.next([request], fate);
        let guard = here.lock("a").acquire().await.unwrap();
        assert_eq!(proxy.counts().fated, 2, "{what}: nothing was lost");
        assert!(guard.fencing_token().get() > token, "{what}");
        assert!(spot.locks().await.lock("a").try_acquire().await.unwrap().is_none(), "{what}: two holders");
        guard.release().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn under_load_give_no_lock_twice() {
    const LASTS: Duration = Duration::from_secs(8);
    let spot = Spot::of(server());
    let proxy = Proxy::to_http(server().port());
    let url = format!("{}&polylock.request_timeout=1s&polylock.ttl=15s", proxy.url(&spot.url));
    let load = Load { stores: 3, tasks: 3, lasts: LASTS, readers: false, ..Load::default() };
    let outcome = load.run(&url, async {
        let until = now() + LASTS;
        for turn in 0.. {
            if now() >= until {
                break;
            }
            // Each request meets each fate in turn.
            let requests = [ACQUIRE, FENCE, RELEASE];
            proxy.next([requests[turn % 3]], LOSSES[turn / 3 % 4].clone());
            pause(Duration::from_millis(50)).await;
        }
        proxy.spare();
    });
    let (outcome, lost) = (outcome.await, proxy.counts().fated);
    println!("{} sections, {} failures, {lost} lost", outcome.sections.len(), outcome.failures);
    assert_eq!(history::check(&outcome.sections, Rules::default()), []);
    assert!(outcome.sections.len() > 20 && lost > 20, "it went on, and was hurt");
    for name in ["lock-0", "lock-1"] {
        becomes_free(&spot.locks().await, name).await;
    }
}

/// The emulator does so when the lease has run out and another had it since: the lock is lost, whatever the status says.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_is_answered_with_anothers_id_is_a_loss() {
    let spot = Spot::of(server());
    let (proxy, here) = spot.through(server()).await;
    let guard = here.lock("a").ttl(SHORTEST).acquire().await.unwrap();
    let another =
        "HTTP/1.1 200 OK\r\nx-ms-lease-id: 11111111-1111-4111-8111-111111111111\r\nContent-Length: 0\r\n\r\n";
    proxy.next([RENEW], Fate::Answer(another.into()));
    let began = now();
    assert_eq!(loss(&guard).await, LostReason::Gone);
    assert!(now().since(began) < SHORTEST / 3 + SLACK, "at the next renewal");
    was_lost(&proxy, "the answer");
    assert!(guard.release().await.is_err());
    becomes_free(&spot.locks().await, "a").await;
}
