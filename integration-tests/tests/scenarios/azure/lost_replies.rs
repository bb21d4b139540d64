//! Lost requests and replies, of every kind.

use std::time::Duration;

use futures_util::future::join_all;
use polylock::{Locks, LostReason};
use polylock_integration_tests::{
    clock::{now, pause},
    load::Load,
    proxy::{Proxy, RequestFault},
};
use polylock_testkit::history::{self, Rules};

use super::{MIN_LEASE, Namespace, SETTLE_TIME, acquire_and_release, acquire_soon, loss, server};

const ACQUIRE: &str = "x-ms-lease-action: acquire";
const RENEW: &str = "x-ms-lease-action: renew";
const RELEASE: &str = "x-ms-lease-action: release";
const GET_STATE: &str = "HEAD /";
const WRITE_GRANT: &str = "comp=metadata";
const CREATE_BLOB: &str = "x-ms-blob-type: ";
const CREATE_CONTAINER: &str = "restype=container";

const LOSSES: [RequestFault; 4] =
    [RequestFault::ResetBeforeReply, RequestFault::DropReply, RequestFault::Reset, RequestFault::Drop];

/// Checks that the fault hit one request.
fn check_lost(proxy: &Proxy, what: &str) {
    assert_eq!(proxy.counts().faulted, 1, "{what}: nothing was lost");
}

/// Runs all combinations of `requests` and [`LOSSES`] concurrently.
async fn for_each(requests: &[&'static str], lost: impl AsyncFn(&'static str, RequestFault)) {
    let pairs = requests.iter().flat_map(|request| LOSSES.map(|fate| (*request, fate)));
    join_all(pairs.map(|(request, fate)| lost(request, fate))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_an_acquisition_delay_it_and_leave_no_lease() {
    for_each(&[ACQUIRE, CREATE_BLOB, GET_STATE, WRITE_GRANT], async |request, fate| {
        let what = format!("{request} {fate:?}");
        let namespace = Namespace::of(server());
        let there = namespace.locks().await;
        let (proxy, here) = namespace.through(server()).await;
        let mut last = 0;
        // The second name has a blob, which another client has written last.
        for name in ["fresh", "known"] {
            if name == "known" && request != CREATE_BLOB {
                last = acquire_and_release(&there, name).await;
            } else if name == "known" {
                continue;
            }
            let before = proxy.counts().faulted;
            proxy.fault_next([request], fate.clone());
            let began = now();
            let guard = here.lock(name).acquire().await.unwrap();
            let took = now().since(began);
            assert_eq!(proxy.counts().faulted, before + 1, "{what}: nothing was lost");
            assert!(took < SETTLE_TIME, "{what}: {took:.1?}");
            assert!(guard.fencing_token().get() > last, "{what}");
            last = guard.fencing_token().get();
            assert!(there.lock(name).try_acquire().await.unwrap().is_none(), "{what}: two holders");
            assert!(guard.is_held());
            guard.release().await.unwrap();
            assert!(acquire_and_release(&there, name).await > last, "{what}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_try_are_reported_and_leave_no_lease() {
    for_each(&[ACQUIRE, CREATE_BLOB, GET_STATE, WRITE_GRANT], async |request, fate| {
        let what = format!("{request} {fate:?}");
        let namespace = Namespace::of(server());
        let there = namespace.locks().await;
        let (proxy, here) = namespace.through(server()).await;
        proxy.fault_next([request], fate);
        let began = now();
        let token = match here.lock("a").try_acquire().await {
            Ok(guard) => {
                // A request on a connection that was cut is sent again at once.
                let guard = guard.unwrap_or_else(|| panic!("{what}: the lock is free"));
                let token = guard.fencing_token().get();
                guard.release().await.unwrap();
                token
            }
            Err(error) => {
                assert!(error.is_temporary(), "{what}: {error:?}");
                let took = now().since(began);
                assert!(took < SETTLE_TIME, "{what}: {took:.1?}");
                0
            }
        };
        check_lost(&proxy, &what);
        assert!(acquire_soon(&there, "a").await > token, "{what}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_release_leave_no_lease() {
    for_each(&[RELEASE], async |request, fate| {
        let what = format!("{request} {fate:?}");
        let namespace = Namespace::of(server());
        let there = namespace.locks().await;
        let (proxy, here) = namespace.through(server()).await;
        let guard = here.lock("a").acquire().await.unwrap();
        let token = guard.fencing_token().get();
        proxy.fault_next([request], fate);
        let began = now();
        guard.release().await.unwrap();
        let took = now().since(began);
        check_lost(&proxy, &what);
        assert!(took < SETTLE_TIME, "{what}: {took:.1?}");
        assert!(acquire_and_release(&there, "a").await > token, "{what}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_renewal_lose_no_lock() {
    for_each(&[RENEW], async |request, fate| {
        let what = format!("{request} {fate:?}");
        let namespace = Namespace::of(server());
        let there = namespace.locks().await;
        let (proxy, here) = namespace.through(server()).await;
        let guard = here.lock("a").ttl(MIN_LEASE).acquire().await.unwrap();
        let before = guard.deadline();
        proxy.fault_next([request], fate);
        let renewed = guard.renewed().await;
        check_lost(&proxy, &what);
        assert!(renewed.is_some_and(|deadline| deadline > before), "{what}: {renewed:?}");
        assert!(there.lock("a").try_acquire().await.unwrap().is_none(), "{what}: two holders");
        guard.release().await.unwrap();
        acquire_and_release(&there, "a").await;
    })
    .await;
}

/// When the store is opened, and after the container was deleted.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_container_creation_still_create_it() {
    for_each(&[CREATE_CONTAINER], async |request, fate| {
        let what = format!("{request} {fate:?}");
        let namespace = Namespace::with_new_container(server());
        let proxy = Proxy::to_http(server().port());
        proxy.fault_next([request], fate.clone());
        let url = format!("{}&polylock.operation_timeout=1s", proxy.url(&namespace.url));
        let here = Locks::connect(&url).await.unwrap();
        check_lost(&proxy, &what);
        let token = acquire_and_release(&here, "a").await;
        namespace.expect_reply(&format!("DELETE {}?restype=container", namespace.container()), " 202 ").await;
        namespace.next_second().await;
        proxy.fault_next([request], fate);
        let guard = here.lock("a").acquire().await.unwrap();
        assert_eq!(proxy.counts().faulted, 2, "{what}: nothing was lost");
        assert!(guard.fencing_token().get() > token, "{what}");
        assert!(
            namespace.locks().await.lock("a").try_acquire().await.unwrap().is_none(),
            "{what}: two holders"
        );
        guard.release().await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn under_load_violate_no_exclusion() {
    const LASTS: Duration = Duration::from_secs(8);
    let namespace = Namespace::of(server());
    let proxy = Proxy::to_http(server().port());
    let url = format!("{}&polylock.operation_timeout=1s&polylock.ttl=15s", proxy.url(&namespace.url));
    let load =
        Load { stores: 3, tasks: 3, duration: LASTS, min_holds: 20, readers: false, ..Load::default() };
    let outcome = load.run(&url, async {
        let until = now() + LASTS;
        for round in 0.. {
            if now() >= until {
                break;
            }
            // Each request is combined with each fault in turn.
            let requests = [ACQUIRE, WRITE_GRANT, RELEASE];
            proxy.fault_next([requests[round % 3]], LOSSES[round / 3 % 4].clone());
            pause(Duration::from_millis(50)).await;
        }
        proxy.clear_faults();
    });
    let (outcome, lost) = (outcome.await, proxy.counts().faulted);
    println!("{} sections, {} failures, {lost} lost", outcome.sections.len(), outcome.failures);
    assert_eq!(history::check(&outcome.sections, Rules::default()), []);
    assert!(outcome.sections.len() > 20 && lost > 20, "too few sections or faults");
    for name in ["lock-0", "lock-1"] {
        acquire_soon(&namespace.locks().await, name).await;
    }
}

/// The emulator sends such a reply, with status 200, if the lease has expired and another client had it since: the lock is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_reply_with_another_lease_id_is_a_loss() {
    let namespace = Namespace::of(server());
    let (proxy, here) = namespace.through(server()).await;
    let guard = here.lock("a").ttl(MIN_LEASE).acquire().await.unwrap();
    let reply =
        "HTTP/1.1 200 OK\r\nx-ms-lease-id: 11111111-1111-4111-8111-111111111111\r\nContent-Length: 0\r\n\r\n";
    proxy.fault_next([RENEW], RequestFault::Reply(reply.into()));
    let began = now();
    assert_eq!(loss(&guard).await, LostReason::Gone);
    assert!(now().since(began) < MIN_LEASE * 2 / 3, "at the next renewal");
    check_lost(&proxy, "the answer");
    assert!(guard.release().await.is_err());
    acquire_soon(&namespace.locks().await, "a").await;
}
