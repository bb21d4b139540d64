//! Nothing that holds a lock stays behind, on nodes that answer late either.

use std::{pin::pin, time::Duration};

use polylock_core::{LockName, Mode, Request, Standing};
use polylock_integration_tests::{
    clock::{self, now, pause},
    proxy::{Flow, Way},
};
use polylock_redis::redlock::{Config, connect};

use crate::site::Site;

async fn cycles(site: &Site, count: usize) {
    let locks = site.open("").await;
    for cycle in 0..count {
        let guard = locks.lock(format!("n{}", cycle % 7)).acquire().await.unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_cycles_leave_nothing() {
    let site = Site::shared(5);
    cycles(&site, 100).await;
    site.is_free_soon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cycles_with_a_slow_node_leave_nothing() {
    let site = Site::shared(5);
    site.proxies[2].set(Way::ToServer, Flow::Delay(Duration::from_millis(150)));
    cycles(&site, 100).await;
    site.is_free_soon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cycles_with_a_node_that_freezes_and_thaws_leave_nothing() {
    // Shorter than its connection is kept, and longer.
    for frozen in [Duration::from_millis(400), Duration::from_millis(2500)] {
        let site = Site::shared(5);
        let locks = site.open("").await;
        let (began, mut cycles) = (now(), 0);
        let thaws = began + frozen;
        site.freeze(2);
        while now() < thaws {
            locks.lock("n").acquire().await.unwrap().release().await.unwrap();
            cycles += 1;
            pause(Duration::from_millis(2)).await;
        }
        site.thaw(2);
        site.is_free_soon().await;
        println!("{cycles} cycles in {frozen:?}");
        // And it votes again.
        let guard = locks.lock("n").acquire().await.unwrap();
        clock::until("all vote", || async {
            locks.lock("m").acquire().await.unwrap().release().await.unwrap();
            site.ask::<bool>(2, &["EXISTS", &site.key("n", "m")]).await
        })
        .await;
        guard.release().await.unwrap();
        site.is_free_soon().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_away_at_the_release_is_asked_when_it_is_back() {
    let site = Site::shared(5);
    let locks = site.open("").await;
    let guard = locks.lock("n").acquire().await.unwrap();
    site.has(&[1; 5]).await;
    site.kill(2);
    site.kill(4);
    guard.release().await.unwrap();
    site.has(&[0, 0, 1, 0, 1]).await;
    pause(Duration::from_millis(1500)).await;
    site.revive(2);
    site.revive(4);
    site.is_free_soon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_in_vain_leaves_nothing() {
    let site = Site::shared(5);
    let locks = site.open("").await;
    let other = site.other_way();
    let others = other.open("").await;
    let guard = locks.lock("n").acquire().await.unwrap();
    site.has(&[1; 5]).await;
    let held = site.holders("n").await;
    assert!(others.lock("n").try_acquire().await.unwrap().is_none());
    assert!(others.lock("n").wait(Duration::from_millis(100)).acquire().await.unwrap_err().is_not_acquired());
    assert_eq!(site.holders("n").await, held);
    guard.release().await.unwrap();
    site.is_free_soon().await;
    // Nor does it come back when the one who gave up would have had its turn.
    pause(Duration::from_millis(600)).await;
    assert_eq!(site.votes().await, [0; 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_is_dropped_anywhere_leaves_nothing() {
    let site = Site::shared(5);
    let locks = site.open("").await;
    // So that there are many points in between, on each of the nodes at another time.
    for (node, proxy) in site.proxies.iter().enumerate() {
        proxy.set(Way::ToServer, Flow::Delay(Duration::from_millis(2 * node as u64)));
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
            site.is_free_soon().await;
        }
        assert!(completed < 25, "none was dropped");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proposal_that_comes_after_the_release_takes_nothing() {
    let site = Site::shared(5);
    let locks = site.open("").await;
    locks.lock("n").acquire().await.unwrap().release().await.unwrap();
    site.is_free_soon().await;
    // From now on, what is sent to this node on the connection that there is comes late ...
    site.proxies[3].set_earlier(Way::ToServer, Flow::Hold);
    let guard = locks.lock("n").acquire().await.unwrap();
    site.has(&[1, 1, 1, 0, 1]).await;
    // ... until it is given up and replaced, and the node hears of the release on the new one.
    let late = site.proxies[3].counts().connections;
    clock::until("a new connection", || async {
        locks.lock("m").acquire().await.unwrap().release().await.unwrap();
        site.proxies[3].counts().connections > late
    })
    .await;
    guard.release().await.unwrap();
    site.is_free_soon().await;
    let number: i64 = site.ask(3, &["GET", &site.key("n", "n")]).await;
    site.proxies[3].set(Way::ToServer, Flow::Pass);
    clock::until("the old connection ends", || async { site.proxies[3].counts().open == 1 }).await;
    // The late ones: a proposal, perhaps renewals, perhaps a release.
    assert_eq!(site.votes().await, [0; 5]);
    assert_eq!(site.ask::<i64>(3, &["GET", &site.key("n", "n")]).await, number);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_answer_too_late_give_nothing() {
    // The lease would be over before a majority has answered; and it would not, but the nodes' time is.
    for (ttl, delay) in [(100, 150), (2000, 300)] {
        let site = Site::shared(3);
        let locks = site.open("").await;
        locks.lock("n").acquire().await.unwrap().release().await.unwrap();
        for proxy in &site.proxies {
            proxy.set(Way::ToServer, Flow::Delay(Duration::from_millis(delay)));
        }
        let error = locks.lock("n").ttl(Duration::from_millis(ttl)).try_acquire().await.unwrap_err();
        assert!(error.is_temporary(), "{error:?}");
        // They have voted by then, and been asked back.
        pause(Duration::from_millis(delay)).await;
        site.is_free_soon().await;
    }
}

/// A client that stands still while the answers come.
#[test]
fn votes_that_are_heard_after_the_lease_are_no_grant() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    let site = Site::shared(3);
    let config = Config::new(&site.url("")).unwrap();
    runtime.block_on(async {
        let store = connect(config).await.unwrap();
        let ttl = Duration::from_millis(100);
        let mut request = Request::new(LockName::new("n").unwrap(), Mode::Exclusive, ttl);
        request.queues = true;
        // The servers know the scripts from here on, so that one message is enough.
        let warm = Request::new(LockName::new("warm").unwrap(), Mode::Exclusive, Duration::from_secs(5));
        store.backend.claim(&warm).await.unwrap();
        site.has(&[1; 3]).await;
        store.backend.release(&warm).await.unwrap();
        site.is_free_soon().await;
        let (backend, asked) = (store.backend.clone(), request.clone());
        let claim = tokio::spawn(async move { backend.claim(&asked).await });
        // It asks, and may not hear the answers while its lease lasts.
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
        assert!(!claim.is_finished(), "it was too quick");
        clock::within(ttl + Duration::from_millis(50), || false);
        for node in 0..3 {
            assert!(site.ask::<bool>(node, &["EXISTS", &site.key("n", "n")]).await, "all have voted");
        }
        let standing = claim.await.unwrap();
        assert!(!matches!(standing, Ok(Standing::Held(_))), "a lease that was over: {standing:?}");
        store.backend.release(&request).await.unwrap();
        site.is_free_soon().await;
    });
}
