//! Leases: their length, their tokens, and their blobs.

use std::time::Duration;

use polylock::{Error, Guard, Locks, Moment};
use polylock_core::deadline::margin;
use polylock_integration_tests::{clock::now, servers::azurite};

use super::{MIN_LEASE, Namespace, acquire_and_release, server};

/// Checks that the guard, acquired at `began`, has this lease, less the margin of each deadline.
fn check_lease(guard: &Guard, began: Moment, lease: Duration) {
    let (deadline, least) = (guard.deadline(), began + (lease - margin(lease)));
    assert!(deadline >= least, "less by {:?}", least.since(deadline));
    assert!(deadline <= now() + lease && guard.remaining() <= lease, "more: {:?}", guard.remaining());
}

#[tokio::test(flavor = "multi_thread")]
async fn last_whole_seconds_and_at_least_the_ttl() {
    let locks = Namespace::of(server()).locks().await;
    for (millis, lease) in [(15_000, 15), (15_500, 16), (29_001, 30), (60_000, 60)] {
        let (began, name) = (now(), format!("a/{millis}"));
        let guard = locks.lock(&name).ttl(Duration::from_millis(millis)).acquire().await.unwrap();
        check_lease(&guard, began, Duration::from_secs(lease));
        guard.release().await.unwrap();
    }
    // A renewal extends by the rounded lease.
    let guard = locks.lock("b").ttl(Duration::from_millis(15_500)).acquire().await.unwrap();
    let first = guard.deadline();
    let renewed = guard.renewed().await.unwrap();
    assert!(renewed <= now() + Duration::from_secs(16), "{:?}", renewed.since(now()));
    // The renewal is sent after a third of the lease.
    assert!(renewed >= first + Duration::from_secs(16) / 3, "{:?}", renewed.since(first));
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn outside_of_the_range_are_refused_without_a_request() {
    let (proxy, locks) = Namespace::of(server()).through(server()).await;
    let before = proxy.counts().requests;
    for millis in [1, 14_000, 14_999, 60_001, 61_000, 3_600_000] {
        let ttl = Duration::from_millis(millis);
        let error = locks.lock("a").ttl(ttl).acquire().await.unwrap_err();
        let Error::InvalidTtl { ttl: refused, min, max, .. } = error else { panic!("{error:?}") };
        assert_eq!((refused, min, max), (ttl, MIN_LEASE, Duration::from_secs(60)));
    }
    assert_eq!(proxy.counts().requests, before);
    // The same for a TTL in the URL.
    let url = format!("{}&polylock.ttl=5s", Namespace::of(server()).url);
    let refused = match Locks::connect(&url).await {
        Ok(locks) => locks.lock("a").acquire().await.map(drop),
        Err(error) => Err(error),
    };
    assert!(matches!(refused, Err(Error::InvalidTtl { .. } | Error::Config(_))), "{refused:?}");
}

/// The blob is created again in a later second of the server's clock.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_grow_if_the_blob_or_its_container_is_deleted() {
    let namespace = Namespace::with_new_container(server());
    let (here, there) = (namespace.locks().await, namespace.locks().await);
    let mut last = 0;
    for round in 0..3 {
        for locks in [&here, &there, &here] {
            let token = acquire_and_release(locks, "a").await;
            assert!(token > last, "{token} after {last}");
            last = token;
        }
        if round == 1 {
            namespace
                .expect_reply(&format!("DELETE {}?restype=container", namespace.container()), " 202 ")
                .await;
        } else {
            namespace.delete("a").await;
        }
        namespace.next_second().await;
    }
    assert!(acquire_and_release(&there, "a").await > last);
}

/// With the ETags of the service, tokens grow within one second, too.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_grow_if_the_blob_is_deleted_in_the_second_of_its_first_grant() {
    let server = azurite::start_like_the_service(&[]).unwrap();
    let namespace = Namespace::of(&server);
    let (here, there) = (namespace.locks().await, namespace.locks().await);
    let (mut last, mut second, mut within) = (0, String::new(), 0);
    for round in 0..60 {
        for locks in [&here, &there, &here] {
            let token = acquire_and_release(locks, "a").await;
            assert!(token > last, "round {round}: {token} after {last}");
            last = token;
        }
        namespace.delete("a").await;
        let now = namespace.second().await;
        within += u32::from(now == second);
        second = now;
    }
    println!("{within} of 60 blobs in the second of the previous one");
    assert!(within > 0, "no blob was created twice in one second");
}

/// A process with a cached token detects later writes of other processes.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_grow_across_processes() {
    let namespace = Namespace::of(server());
    let stores = [namespace.locks().await, namespace.locks().await, namespace.locks().await];
    let mut last = 0;
    for round in 0..30 {
        let token = acquire_and_release(&stores[[0, 0, 1, 2, 2, 0, 1, 1, 2, 1][round % 10]], "a").await;
        assert!(token > last, "{token} after {last}");
        last = token;
    }
}

/// Each of these names is a separate lock.
#[tokio::test(flavor = "multi_thread")]
async fn each_name_has_a_separate_blob() {
    let (long, wide) = ("x".repeat(255), "\u{20ac}".repeat(85));
    let other = format!("{}y", &long[1..]);
    let names = [
        "a",
        "A",
        "a/",
        "a//",
        "a/b",
        "a\\b",
        "/a",
        "a.",
        "a..",
        ".",
        "..",
        "./a",
        "../a",
        "a/./b",
        "a/../a",
        "a ",
        " a",
        "a+b",
        "a%20",
        "a%2F",
        "a_2F",
        "a_2f",
        "_",
        "__",
        "%",
        "a?b",
        "a#b",
        "a&b=c",
        "a:b",
        "a*b",
        "\"",
        "'",
        "<a>",
        "|",
        "~",
        "\u{e9}",
        "e\u{301}",
        "\u{1f512}",
        "\u{3bb}/\u{39b}",
        "polylock",
        "$root",
        "$logs",
        "con",
        "a;b",
        "a,b",
        "a@b",
        &long,
        &other,
        &wide,
    ];
    let namespace = Namespace::of(server());
    let (here, there) = (namespace.locks().await, namespace.locks().await);
    let mut guards = Vec::new();
    for name in names {
        let guard = here.lock(name).try_acquire().await.unwrap();
        guards.push(guard.unwrap_or_else(|| panic!("{name:?} shares a blob with another name")));
    }
    let mut listed: Vec<String> =
        there.list("").await.unwrap().into_iter().map(|status| status.name.as_str().to_owned()).collect();
    let mut wanted = names.map(str::to_owned);
    listed.sort();
    wanted.sort();
    assert_eq!(listed, wanted);
    for name in names {
        assert!(
            there.lock(name).try_acquire().await.unwrap().is_none(),
            "{name:?} has another blob in the other store"
        );
        assert_eq!(there.inspect(name).await.unwrap().holders.len(), 1, "{name:?}");
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
    for name in names {
        acquire_and_release(&there, name).await;
    }
}
