//! Servers that delete the empty nodes of locks beneath those who use them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use polylock::Locks;
use polylock_integration_tests::{
    clock::{self, pause},
    servers::zookeeper,
};
use polylock_testkit::history::{self, Rules};
use zookeeper_client::Error as Failure;

use crate::{Spot, load::Load};

/// Ten times a second, those too that nobody has ever used.
const OFTEN: [&str; 3] = [
    "-Dznode.container.checkIntervalMs=100",
    "-Dznode.container.maxNeverUsedIntervalMs=50",
    "-Dznode.container.maxPerMinute=60000",
];

/// How often one takes a lock whose node is deleted all the time.
const ROUNDS: usize = 300;

/// How often a lock's node was deleted by the server.
fn reaped(log: &str) -> usize {
    log.matches("Attempting to delete candidate container").count()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_delete_empty_nodes_disturb_nobody() {
    let server = zookeeper::start(&OFTEN).unwrap();
    let spot = Spot::of(&server);
    // Most locks are free at any time, and so prey.
    let load = Load { names: 60, lasts: Duration::from_secs(6), more_than: 200, ..Load::default() };
    let outcome = load.run(&spot.url, async {}).await;
    let reaped = reaped(&server.log());
    println!("{} sections, {reaped} times a node was to be deleted", outcome.sections.len());
    assert_eq!((outcome.failures, outcome.losses), (0, 0));
    assert_eq!(history::check(&outcome.sections, Rules::default()), []);
    assert!(outcome.sections.len() > 200 && reaped > 20, "they met");
    let raw = spot.raw().await;
    clock::until("not even the nodes of locks are left", async || {
        raw.list_children(&spot.root).await.unwrap().is_empty()
    })
    .await;
}

/// A thousand times a second, as if it were meant.
#[tokio::test(flavor = "multi_thread")]
async fn one_lock_whose_node_is_deleted_between_any_two_steps() {
    let server = zookeeper::start(&[]).unwrap();
    let spot = Spot::of(&server);
    let (here, raw) = (Locks::connect(&spot.url).await.unwrap(), spot.raw().await);
    here.lock("n").acquire().await.unwrap().release().await.unwrap();
    let node = format!("{}/n", spot.root);
    let over = Arc::new(AtomicBool::new(false));
    let done = over.clone();
    let reaper = tokio::spawn(async move {
        let (mut deleted, mut kept) = (0, 0);
        while !done.load(Ordering::Relaxed) {
            match raw.delete(&node, None).await {
                Ok(()) => deleted += 1,
                Err(Failure::NoNode | Failure::NotEmpty) => kept += 1,
                Err(error) => panic!("{error}"),
            }
            pause(Duration::from_millis(1)).await;
        }
        (deleted, kept)
    });
    let mut token = None;
    for round in 0..ROUNDS {
        let guard = match round % 3 {
            0 => here.lock("n").try_acquire().await.unwrap().expect("nobody has it"),
            1 => here.lock("n").shared().acquire().await.unwrap(),
            _ => here.lock("n").acquire().await.unwrap(),
        };
        assert!(guard.is_held() && Some(guard.fencing_token()) > token);
        token = Some(guard.fencing_token());
        guard.release().await.unwrap();
    }
    over.store(true, Ordering::Relaxed);
    let (deleted, kept) = reaper.await.unwrap();
    println!("{ROUNDS} holds; deleted {deleted} times, and not {kept} times");
    assert!(deleted > 20, "they met");
    spot.is_clean().await;
}
