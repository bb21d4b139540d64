//! Who waits is told, and comes back by itself if the news get lost.

use std::time::Duration;

use polylock::{Locks, Mode};
use polylock_integration_tests::{
    clock::{self, PATIENCE, now, pause},
    history::{Flow, at},
};
use polylock_testkit::history::{self, Recorder, Rules};

use crate::{load, site::Site};

async fn stores(site: &Site, count: usize) -> Vec<Locks> {
    let mut stores = Vec::new();
    for _ in 0..count {
        stores.push(site.open("").await);
    }
    stores
}

/// A holds, B waits, A releases.
async fn hand_over(
    site: &Site,
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
    // Until it has told most nodes that it waits. One that has not voted for A may vote for B, and then for nobody.
    clock::until("it waits", || async {
        let mut told = 0;
        for node in 0..5 {
            told += usize::from(site.ask::<bool>(node, &["EXISTS", &site.key("w", "n")]).await);
        }
        told >= 3
    })
    .await;
    before_the_release.await;
    let released = now();
    guard.release().await.unwrap();
    waiting.await.unwrap().since(released)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_wakes_who_waits_elsewhere() {
    let site = Site::shared(5);
    let stores = stores(&site, 2).await;
    let mut took = Vec::new();
    for turn in 0..50 {
        took.push(hand_over(&site, &stores[turn % 2], &stores[1 - turn % 2], async {}).await);
    }
    took.sort_unstable();
    println!("hand-over p50 {:?}, p90 {:?}, max {:?}", took[25], took[45], took[49]);
    // A recheck comes after half a second.
    assert!(took[25] < Duration::from_millis(100), "{took:?}");
    site.is_free_soon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whose_bell_is_lost_goes_on_within_a_second() {
    let site = Site::shared(5);
    let stores = stores(&site, 2).await;
    for _ in 0..3 {
        let took = hand_over(&site, &stores[0], &stores[1], async {
            for node in 0..5 {
                site.ask::<u64>(node, &["DEL", &site.key("w", "n")]).await;
            }
        })
        .await;
        println!("{took:?}");
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
    site.is_free_soon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_of_many_starves() {
    const TURNS: usize = 5;
    let site = Site::shared(5);
    let recorder = Recorder::new();
    let mut tasks = Vec::new();
    for (store, locks) in stores(&site, 4).await.into_iter().enumerate() {
        for task in 0..16 {
            let (locks, recorder, client) = (locks.clone(), recorder.clone(), format!("{store}.{task}"));
            tasks.push(tokio::spawn(async move {
                for _ in 0..TURNS {
                    let attempt = recorder.invoke("n", client.clone(), Mode::Exclusive);
                    assert!(load::hold(&locks, PATIENCE, attempt, "n", Mode::Exclusive).await.unwrap());
                }
            }));
        }
    }
    for task in tasks {
        tokio::select! {
            done = task => done.unwrap(),
            () = pause(Duration::from_secs(30)) => panic!("somebody starves"),
        }
    }
    let sections = recorder.sections();
    assert_eq!(history::check(&sections, Rules::default()), []);
    let flow = Flow::of(&sections);
    println!("{flow}; wait p50 {:?}", at(&flow.wait, 0.5));
    assert_eq!(sections.len(), 64 * TURNS);
    site.is_free_soon().await;
}
