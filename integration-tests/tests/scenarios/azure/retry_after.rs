//! A service that asks its clients to wait.

use polylock::Locks;
use polylock_integration_tests::{
    clock::now,
    proxy::{Proxy, RequestFault},
};

use super::{MIN_LEASE, Namespace, SLACK, loss, refusal, server};

/// The reply of a busy service.
pub(crate) fn busy(retry_after: Option<u32>) -> RequestFault {
    let retry_after = retry_after.map(|seconds| format!("Retry-After: {seconds}\r\n")).unwrap_or_default();
    let answer =
        format!("HTTP/1.1 503 Busy\r\nx-ms-error-code: ServerBusy\r\n{retry_after}Content-Length: 0\r\n\r\n");
    RequestFault::Reply(answer.into())
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
        refusal(&format!("{}&polylock.connect_timeout=5s", proxy.url(&namespace.url))).await;
        proxy.counts().faulted - before
    };
    let (without, with) = (opening(None).await, opening(Some(1)).await);
    println!("{without} requests in 5 s, {with} with a Retry-After of 1 s");
    assert!(without >= 9 && with <= 6, "{without}, {with}");
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
