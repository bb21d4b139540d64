//! Waiters are notified, and claim again if the notification is lost.

use std::time::Duration;

use polylock::{Locks, Mode};
use polylock_bench::Summary;
use polylock_integration_tests::{
    clock::{self, TIMEOUT, now, pause},
    load::{self, Load},
    proxy::{Direction, Flow},
};
use polylock_testkit::history::{self, Recorder, Rules};
use tokio::runtime::Builder;

use super::setup::Setup;

async fn stores(setup: &Setup, count: usize) -> Vec<Locks> {
    let mut stores = Vec::new();
    for _ in 0..count {
        stores.push(setup.open("").await);
    }
    stores
}

/// Waits until most servers have recorded a waiter. A server that has not voted for the holder may vote for the waiter instead.
async fn wait_until_queued(setup: &Setup) {
    clock::until("it waits", || async {
        let mut noted = 0;
        for node in 0..5 {
            noted += usize::from(setup.query::<bool>(node, &["EXISTS", &setup.key("w", "n")]).await);
        }
        noted >= 3
    })
    .await;
}

/// A holds, B waits, A releases. Returns the time from the release to the grant.
async fn hand_over(
    setup: &Setup,
    a: &Locks,
    b: &Locks,
    before_the_release: impl Future<Output = ()>,
) -> Duration {
    let guard = a.lock("n").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let b = b.clone();
        async move {
            let guard = b.lock("n").acquire().await.unwrap();
            let at = now();
            guard.release().await.unwrap();
            at
        }
    });
    wait_until_queued(setup).await;
    before_the_release.await;
    let released = now();
    guard.release().await.unwrap();
    waiting.await.unwrap().since(released)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_wakes_a_waiter_in_another_process() {
    let setup = Setup::shared(5);
    let stores = stores(&setup, 2).await;
    let mut took = Vec::new();
    for turn in 0..50 {
        took.push(hand_over(&setup, &stores[turn % 2], &stores[1 - turn % 2], async {}).await);
    }
    took.sort_unstable();
    println!("hand-over p50 {:?}, p90 {:?}, max {:?}", took[25], took[45], took[49]);
    // A waiter rechecks after half a second.
    assert!(took[25] < Duration::from_millis(300), "{took:?}");
    setup.wait_until_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_without_a_notification_claims_within_a_second() {
    let setup = Setup::shared(5);
    let stores = stores(&setup, 2).await;
    let mut shortest = Duration::MAX;
    for _ in 0..3 {
        let took = hand_over(&setup, &stores[0], &stores[1], async {
            for node in 0..5 {
                setup.query::<u64>(node, &["DEL", &setup.key("w", "n")]).await;
            }
        })
        .await;
        println!("{took:?}");
        // A busy machine may add more than a second.
        assert!(took < Duration::from_millis(2500), "{took:?}");
        shortest = shortest.min(took);
    }
    assert!(shortest < Duration::from_secs(1), "{shortest:?}");
    setup.wait_until_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_waiter_of_many_starves() {
    const TURNS: usize = 5;
    let load = Load { wait: TIMEOUT, ..Load::default() };
    let setup = Setup::shared(5);
    let recorder = Recorder::new();
    let mut tasks = Vec::new();
    for (store, locks) in stores(&setup, 4).await.into_iter().enumerate() {
        for task in 0..16 {
            let (locks, recorder, client) = (locks.clone(), recorder.clone(), format!("{store}.{task}"));
            tasks.push(tokio::spawn(async move {
                for _ in 0..TURNS {
                    let attempt = recorder.invoke("n", client.clone(), Mode::Exclusive);
                    assert!(load::hold(&locks, &load, attempt, "n", Mode::Exclusive).await.unwrap());
                }
            }));
        }
    }
    for task in tasks {
        tokio::select! {
            done = task => done.unwrap(),
            () = pause(Duration::from_secs(30)) => panic!("a waiter starves"),
        }
    }
    let sections = recorder.sections();
    assert_eq!(history::check(&sections, Rules::default()), []);
    let flow = Summary::of(&sections);
    println!("{flow}; wait p50 {:?}", flow.wait.p50());
    assert_eq!(sections.len(), 64 * TURNS);
    setup.wait_until_free().await;
}

#[test]
fn a_waiter_that_arrives_during_a_release_of_its_process_is_woken() {
    let runtime = || Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (outer, caller) = (runtime(), runtime());
    let _inside = outer.enter();
    let setup = Setup::shared(5);
    let other_route = setup.other_route();
    let (locks, other) = outer.block_on(async { (setup.open("").await, other_route.open("").await) });
    caller.block_on(setup.warm_up(&locks));
    // The caller's connections: its releases arrive later than the claims of the I/O thread.
    for proxy in &setup.proxies {
        proxy.set_one(2, Direction::ToServer, Flow::Delay(Duration::from_millis(25)));
    }
    let took = (0..3).map(|_| {
        let held = outer.block_on(other.lock("n").acquire()).unwrap();
        let waiting = caller.spawn(locks.lock("n").acquire());
        outer.block_on(wait_until_queued(&setup));
        outer.block_on(held.release()).unwrap();
        let guard = outer.block_on(waiting).unwrap().unwrap();
        let released = now();
        let release = caller.spawn(guard.release());
        let guard = outer.block_on(locks.lock("n").acquire()).unwrap();
        let took = now().since(released);
        outer.block_on(release).unwrap().unwrap();
        outer.block_on(guard.release()).unwrap();
        println!("{took:?}");
        took
    });
    // A waiter rechecks after half a second.
    assert!(took.min().unwrap() < Duration::from_millis(400));
}
