//! Requests that reach the server when nobody waits for them any more.

use std::time::Duration;

use futures_util::future::join_all;
use polylock_integration_tests::{
    clock::{now, pause, until},
    proxy::{Flow, Way},
};

use crate::{SETTLED, SLACK, Spot, becomes_free, server};

/// 1. An acquisition is held back on its way, and asked for again on another connection;
/// 2. the lock is had, and released;
/// 3. what was held back arrives, and is carried out.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquisition_that_comes_after_its_release_keeps_nobody_out() {
    let late = async |number: u32| {
        let spot = Spot::of(server());
        let direct = spot.locks().await;
        let (proxy, held_back) = spot.through(server()).await;
        is_free_here(&held_back).await;
        proxy.set_earlier(Way::ToServer, Flow::Hold);
        let guard = held_back.lock("a").acquire().await.unwrap();
        let token = guard.fencing_token().get();
        guard.release().await.unwrap();
        assert_eq!(spot.lease("a").await, "available");
        // At several moments, as what clears up comes at some.
        let began = now();
        until("its moment", async || now().since(began) > Duration::from_millis(300) * number).await;
        proxy.set(Way::ToServer, Flow::Pass);
        let mut seen = false;
        while now().since(began) < SETTLED && !seen {
            seen = spot.lease("a").await == "leased";
        }
        assert!(becomes_free(&direct, "a").await > token);
        seen
    };
    let seen = join_all((0..4).map(late)).await;
    println!("came late: {seen:?}");
    assert!(seen.contains(&true), "none came late");
}

/// The connection of the pool that is held back is there.
async fn is_free_here(locks: &polylock::Locks) {
    crate::is_free(locks, "first").await;
    crate::is_free(locks, "a").await;
}

/// The same of one who no longer waits.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquisition_that_comes_after_it_was_given_up_keeps_nobody_out() {
    let spot = Spot::of(server());
    let direct = spot.locks().await;
    let (proxy, held_back) = spot.through(server()).await;
    is_free_here(&held_back).await;
    proxy.set_earlier(Way::ToServer, Flow::Hold);
    let error = held_back.lock("a").try_acquire().await.unwrap_err();
    assert!(error.is_temporary(), "{error:?}");
    // Until its release has been confirmed.
    assert!(held_back.close(SETTLED).await, "it is settled");
    proxy.set(Way::ToServer, Flow::Pass);
    becomes_free(&direct, "a").await;
}

/// Where the process that has sent it still lives, whatever lease it was for.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquisition_that_comes_late_is_released_within_a_second_of_its_arrival() {
    const LONGEST: Duration = Duration::from_secs(60);
    let late = async |millis: u64| {
        let spot = Spot::of(server());
        let (proxy, held_back) = spot.through(server()).await;
        is_free_here(&held_back).await;
        proxy.set_earlier(Way::ToServer, Flow::Hold);
        let error = held_back.lock("a").ttl(LONGEST).try_acquire().await.unwrap_err();
        assert!(error.is_temporary(), "{error:?}");
        pause(Duration::from_millis(millis)).await;
        proxy.set(Way::ToServer, Flow::Pass);
        let passed = now();
        // It may be released before this sees that it has arrived.
        while now().since(passed) < SETTLED / 2 {
            if spot.lease("a").await == "leased" {
                let arrived = now();
                until("it is released", async || spot.lease("a").await == "available").await;
                return Some(now().since(arrived));
            }
        }
        assert_eq!(spot.lease("a").await, "available");
        None
    };
    // It was given up a second after its sending. The emulator closes a connection that has been idle for five.
    let took = join_all([0, 1000, 2200, 3300].map(late)).await;
    println!("free after {took:.1?}");
    let seen: Vec<_> = took.into_iter().flatten().collect();
    assert!(!seen.is_empty(), "none was seen");
    assert!(seen.iter().all(|took| *took < Duration::from_secs(1) + SLACK), "{seen:?}");
}
