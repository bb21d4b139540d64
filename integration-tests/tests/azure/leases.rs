//! What a lease is: how long it lasts, whose token it has, and which blob it is of.

use std::time::Duration;

use polylock::{Error, Guard, Locks, Moment};
use polylock_core::invariant::margin;
use polylock_integration_tests::{clock::now, servers::azurite};

use crate::{SHORTEST, Spot, is_free, server};

/// It was asked for at `asked`, and has this lease, less the margin of each deadline.
fn has(guard: &Guard, asked: Moment, lease: Duration) {
    let (deadline, least) = (guard.deadline(), asked + (lease - margin(lease)));
    assert!(deadline >= least, "less by {:?}", least.since(deadline));
    assert!(deadline <= now() + lease && guard.remaining() <= lease, "more: {:?}", guard.remaining());
}

#[tokio::test(flavor = "multi_thread")]
async fn lasts_whole_seconds_and_no_less_than_was_asked_for() {
    let locks = Spot::of(server()).locks().await;
    for (millis, lease) in [(15_000, 15), (15_500, 16), (29_001, 30), (60_000, 60)] {
        let (asked, name) = (now(), format!("a/{millis}"));
        let guard = locks.lock(&name).ttl(Duration::from_millis(millis)).acquire().await.unwrap();
        has(&guard, asked, Duration::from_secs(lease));
        guard.release().await.unwrap();
    }
    // The second one is renewed for as long.
    let guard = locks.lock("b").ttl(Duration::from_millis(15_500)).acquire().await.unwrap();
    let renewed = guard.renewed().await.unwrap();
    assert!(renewed <= now() + Duration::from_secs(16), "{:?}", renewed.since(now()));
    assert!(renewed > now() + Duration::from_secs(15), "{:?}", renewed.since(now()));
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn that_the_service_does_not_give_are_refused_and_nothing_is_asked_for() {
    let (proxy, locks) = Spot::of(server()).through(server()).await;
    let before = proxy.counts().requests;
    for millis in [1, 14_000, 14_999, 60_001, 61_000, 3_600_000] {
        let ttl = Duration::from_millis(millis);
        let error = locks.lock("a").ttl(ttl).acquire().await.unwrap_err();
        let Error::InvalidTtl { ttl: told, min, max, .. } = error else { panic!("{error:?}") };
        assert_eq!((told, min, max), (ttl, SHORTEST, Duration::from_secs(60)));
    }
    assert_eq!(proxy.counts().requests, before);
    // Nor when it is what the URL says.
    let url = format!("{}&polylock.ttl=5s", Spot::of(server()).url);
    let refused = match Locks::connect(&url).await {
        Ok(locks) => locks.lock("a").acquire().await.map(drop),
        Err(error) => Err(error),
    };
    assert!(matches!(refused, Err(Error::InvalidTtl { .. } | Error::Config(_))), "{refused:?}");
}

/// A blob that somebody has deleted is another one when it is made again, a second of the server's clock later.
#[tokio::test(flavor = "multi_thread")]
async fn has_a_greater_token_though_the_blob_or_its_container_was_deleted() {
    let spot = Spot::alone(server());
    let (here, there) = (spot.locks().await, spot.locks().await);
    let mut last = 0;
    for round in 0..3 {
        for locks in [&here, &there, &here] {
            let token = is_free(locks, "a").await;
            assert!(token > last, "{token} after {last}");
            last = token;
        }
        if round == 1 {
            spot.does(&format!("DELETE {}?restype=container", spot.container()), " 202 ").await;
        } else {
            spot.deletes("a").await;
        }
        spot.next_second().await;
    }
    assert!(is_free(&there, "a").await > last);
}

/// With the ETags of the service it need not wait for another second.
#[tokio::test(flavor = "multi_thread")]
async fn has_a_greater_token_though_the_blob_was_deleted_in_the_second_of_its_first_grant() {
    let server = azurite::start_like_the_service(&[]).unwrap();
    let spot = Spot::of(&server);
    let (here, there) = (spot.locks().await, spot.locks().await);
    let (mut last, mut second, mut within) = (0, String::new(), 0);
    for round in 0..60 {
        for locks in [&here, &there, &here] {
            let token = is_free(locks, "a").await;
            assert!(token > last, "round {round}: {token} after {last}");
            last = token;
        }
        spot.deletes("a").await;
        let now = spot.second().await;
        within += u32::from(now == second);
        second = now;
    }
    println!("{within} of 60 in the second of the one before");
    assert!(within > 0, "one of them, for it to be a test");
}

/// Who remembers what it has written notices that others have since.
#[tokio::test(flavor = "multi_thread")]
async fn has_a_greater_token_than_that_of_any_other_process() {
    let spot = Spot::of(server());
    let stores = [spot.locks().await, spot.locks().await, spot.locks().await];
    let mut last = 0;
    for turn in 0..30 {
        let token = is_free(&stores[[0, 0, 1, 2, 2, 0, 1, 1, 2, 1][turn % 10]], "a").await;
        assert!(token > last, "{token} after {last}");
        last = token;
    }
}

/// Each of them is another lock, and has one blob.
#[tokio::test(flavor = "multi_thread")]
async fn is_of_a_blob_of_its_own_whatever_the_name() {
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
    let spot = Spot::of(server());
    let (here, there) = (spot.locks().await, spot.locks().await);
    let mut guards = Vec::new();
    for name in names {
        let guard = here.lock(name).try_acquire().await.unwrap();
        guards.push(guard.unwrap_or_else(|| panic!("{name:?} is another's")));
    }
    let mut listed: Vec<String> =
        there.list("").await.unwrap().into_iter().map(|status| status.name.as_str().to_owned()).collect();
    let mut wanted = names.map(str::to_owned);
    listed.sort();
    wanted.sort();
    assert_eq!(listed, wanted);
    for name in names {
        assert!(there.lock(name).try_acquire().await.unwrap().is_none(), "{name:?} is another blob's there");
        assert_eq!(there.inspect(name).await.unwrap().holders.len(), 1, "{name:?}");
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
    for name in names {
        is_free(&there, name).await;
    }
}
