//! No vote is left behind, not even on nodes that reply late.

use std::{pin::pin, time::Duration};

use polylock_core::{ClaimOutcome, LockName, Mode, Request};
use polylock_integration_tests::{
    clock::{self, now, pause},
    proxy::{Direction, Flow},
};
use polylock_redis::redlock::{Config, connect};

use super::setup::{PATIENT, Setup};

async fn cycles(setup: &Setup, count: usize) {
    let locks = setup.open("").await;
    for cycle in 0..count {
        let guard = locks.lock(format!("n{}", cycle % 7)).acquire().await.unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_cycles_leave_nothing() {
    let setup = Setup::shared(5);
    cycles(&setup, 100).await;
    setup.wait_until_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cycles_with_a_slow_node_leave_nothing() {
    let setup = Setup::shared(5);
    setup.proxies[2].set(Direction::ToServer, Flow::Delay(Duration::from_millis(150)));
    cycles(&setup, 100).await;
    setup.wait_until_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cycles_with_a_node_that_freezes_and_thaws_leave_nothing() {
    // Shorter and longer than the time for which its connection is kept.
    for frozen in [Duration::from_millis(400), Duration::from_millis(2500)] {
        let setup = Setup::shared(5);
        let locks = setup.open("").await;
        let (began, mut cycles) = (now(), 0);
        let thaws = began + frozen;
        setup.freeze(2);
        while now() < thaws {
            locks.lock("n").acquire().await.unwrap().release().await.unwrap();
            cycles += 1;
            pause(Duration::from_millis(2)).await;
        }
        setup.thaw(2);
        setup.wait_until_free().await;
        println!("{cycles} cycles in {frozen:?}");
        // The node votes again.
        let guard = locks.lock("n").acquire().await.unwrap();
        clock::until("all vote", || async {
            locks.lock("m").acquire().await.unwrap().release().await.unwrap();
            setup.query::<bool>(2, &["EXISTS", &setup.key("n", "m")]).await
        })
        .await;
        guard.release().await.unwrap();
        setup.wait_until_free().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_is_repeated_at_a_node_that_was_unreachable() {
    let setup = Setup::shared(5);
    let locks = setup.open("").await;
    let guard = locks.lock("n").acquire().await.unwrap();
    setup.wait_for_votes(&[1; 5]).await;
    setup.disconnect(2);
    setup.disconnect(4);
    guard.release().await.unwrap();
    setup.wait_for_votes(&[0, 0, 1, 0, 1]).await;
    pause(Duration::from_millis(1500)).await;
    setup.reconnect(2);
    setup.reconnect(4);
    setup.wait_until_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_attempt_leaves_nothing() {
    let setup = Setup::shared(5);
    let locks = setup.open("").await;
    let other = setup.other_route();
    let others = other.open(PATIENT).await;
    let guard = locks.lock("n").acquire().await.unwrap();
    setup.wait_for_votes(&[1; 5]).await;
    let held = setup.holders("n").await;
    assert!(others.lock("n").try_acquire().await.unwrap().is_none());
    assert!(others.lock("n").wait(Duration::from_secs(2)).acquire().await.unwrap_err().is_not_acquired());
    assert_eq!(setup.holders("n").await, held);
    guard.release().await.unwrap();
    setup.wait_until_free().await;
    // No vote appears at the time at which the cancelled request would have claimed again.
    pause(Duration::from_millis(600)).await;
    assert_eq!(setup.votes().await, [0; 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_dropped_at_any_point_leaves_nothing() {
    let setup = Setup::shared(5);
    let locks = setup.open("").await;
    // Different delays provide many points of interruption.
    for (node, proxy) in setup.proxies.iter().enumerate() {
        proxy.set(Direction::ToServer, Flow::Delay(Duration::from_millis(2 * node as u64)));
    }
    for held in [false, true] {
        let mut completed = 0;
        for point in 0..25_u64 {
            let guard = if held { Some(locks.lock("n").acquire().await.unwrap()) } else { None };
            {
                let acquire = locks.lock("n").acquire();
                let mut acquire = pin!(acquire);
                let release = async {
                    if let Some(guard) = guard {
                        pause(Duration::from_millis(3)).await;
                        guard.release().await.unwrap();
                    }
                    std::future::pending::<()>().await;
                };
                tokio::select! {
                    guard = &mut acquire => {
                        completed += 1;
                        guard.unwrap().release().await.unwrap();
                    }
                    () = release => {}
                    () = pause(Duration::from_micros(700 * point)) => {}
                }
            }
            setup.wait_until_free().await;
        }
        assert!(completed < 25, "none was dropped");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proposal_executed_after_the_release_gets_no_vote() {
    let setup = Setup::shared(5);
    let locks = setup.open("").await;
    setup.warm_up(&locks).await;
    // From now on, messages to this node on the present connections are late, and it gets no proposal on a new one ...
    setup.proxies[3].set_existing(Direction::ToServer, Flow::Hold);
    tokio::task::block_in_place(|| setup.proxies[3].refuse(true));
    let guard = locks.lock("n").acquire().await.unwrap();
    setup.wait_for_votes(&[1, 1, 1, 0, 1]).await;
    // ... until these are replaced, and the node receives the release on a new one.
    setup.reconnect(3);
    let late = setup.proxies[3].counts().connections;
    clock::until("new connections", || async {
        locks.lock("m").acquire().await.unwrap().release().await.unwrap();
        setup.proxies[3].counts().connections > late + 1
    })
    .await;
    guard.release().await.unwrap();
    setup.wait_until_free().await;
    // The release has ended at a majority; this node executes it when its new connection is ready.
    let key = setup.key("n", "n");
    let command = ["GET", key.as_str()];
    let number = || setup.query::<Option<i64>>(3, &command);
    clock::until("the release at the late node", || async { number().await.is_some() }).await;
    let released = number().await;
    setup.proxies[3].set(Direction::ToServer, Flow::Pass);
    clock::until("the old connections end", || async { setup.proxies[3].counts().open == 2 }).await;
    // The late messages: a proposal, perhaps renewals, perhaps a release.
    assert_eq!(setup.holders("n").await, vec![None; 5]);
    assert_eq!(number().await, released);
    // Those of the other lock may have been withdrawn later.
    setup.wait_until_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn votes_that_arrive_too_late_are_withdrawn() {
    // In the second case the lease ends only after the test.
    for ttl in [100, 30_000] {
        let setup = Setup::shared(3);
        let locks = setup.open("").await;
        locks.lock("n").acquire().await.unwrap().release().await.unwrap();
        setup.wait_until_free().await;
        let numbers = async || {
            let mut numbers = Vec::new();
            for node in 0..3 {
                numbers.push(setup.query::<Option<i64>>(node, &["GET", &setup.key("n", "n")]).await);
            }
            numbers
        };
        let before = numbers().await;
        // The timeout of the nodes ends before they receive the proposals.
        for proxy in &setup.proxies {
            proxy.set(Direction::ToServer, Flow::Hold);
        }
        let error = locks.lock("n").ttl(Duration::from_millis(ttl)).try_acquire().await.unwrap_err();
        assert!(error.is_temporary(), "{error:?}");
        for proxy in &setup.proxies {
            proxy.set(Direction::ToServer, Flow::Pass);
        }
        // They vote, and the votes are withdrawn.
        clock::until("the late messages arrive", async || {
            numbers().await.iter().zip(&before).all(|(number, before)| number > before)
        })
        .await;
        setup.wait_until_free().await;
    }
}

/// The client is suspended while the replies arrive.
#[test]
fn votes_received_after_the_lease_are_not_a_grant() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    let setup = Setup::shared(3);
    let config = Config::new(&setup.url("&polylock.operation_timeout=10s")).unwrap();
    runtime.block_on(async {
        let store = connect(config).await.unwrap();
        // A fifth of it is the time for which the client waits for the replies that are held.
        let ttl = Duration::from_secs(20);
        let mut request = Request::new(LockName::new("n").unwrap(), Mode::Exclusive, ttl);
        request.queues = true;
        // The scripts are loaded from here on, so one message is sufficient.
        let warm = Request::new(LockName::new("warm").unwrap(), Mode::Exclusive, Duration::from_secs(30));
        store.backend.claim(&warm).await.unwrap();
        setup.wait_for_votes(&[1; 3]).await;
        store.backend.release(&warm).await.unwrap();
        setup.wait_until_free().await;
        for proxy in &setup.proxies {
            proxy.set(Direction::ToClient, Flow::Hold);
        }
        let (backend, asked) = (store.backend.clone(), request.clone());
        let claim = tokio::spawn(async move { backend.claim(&asked).await });
        setup.wait_for_votes(&[1; 3]).await;
        assert!(!claim.is_finished(), "the claim ended without a reply");
        // The replies arrive now, and are not read before the lease has ended.
        for proxy in &setup.proxies {
            proxy.set(Direction::ToClient, Flow::Pass);
        }
        clock::within(ttl + Duration::from_millis(50), || false);
        let outcome = claim.await.unwrap();
        assert!(!matches!(outcome, Ok(ClaimOutcome::Granted(_))), "a lease that was over: {outcome:?}");
        store.backend.release(&request).await.unwrap();
        setup.wait_until_free().await;
    });
}
