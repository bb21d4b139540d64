//! Servers that delete the empty nodes of locks while they are used.

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
    load::Load,
    servers::zookeeper,
};
use polylock_testkit::history::{self, Rules};
use zookeeper_client::Error as Failure;

use super::Namespace;

/// Ten times a second, including nodes that were never used.
const OFTEN: [&str; 3] = [
    "-Dznode.container.checkIntervalMs=100",
    "-Dznode.container.maxNeverUsedIntervalMs=50",
    "-Dznode.container.maxPerMinute=60000",
];

/// The number of acquisitions of a lock with a node that is deleted repeatedly.
const ROUNDS: usize = 300;

/// Returns the number of deletions of lock nodes by the server.
fn reaped(log: &str) -> usize {
    log.matches("Attempting to delete candidate container").count()
}

#[tokio::test(flavor = "multi_thread")]
async fn deletions_by_the_servers_violate_no_guarantee() {
    let server = zookeeper::start(&OFTEN).unwrap();
    let namespace = Namespace::of(&server);
    // Most locks are free at any time, so their nodes may be deleted.
    let load = Load { names: 60, duration: Duration::from_secs(6), min_holds: 200, ..Load::default() };
    let outcome = load.run(&namespace.url, async {}).await;
    let reaped = reaped(&server.log());
    println!("{} sections, {reaped} deletions of nodes", outcome.sections.len());
    assert_eq!((outcome.failures, outcome.losses), (0, 0));
    assert_eq!(history::check(&outcome.sections, Rules::default()), []);
    assert!(outcome.sections.len() > 200 && reaped > 20, "too few deletions");
    let raw = namespace.client().await;
    clock::until("the nodes of locks are deleted, too", async || {
        raw.list_children(&namespace.root).await.unwrap().is_empty()
    })
    .await;
}

/// A thousand times a second.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_node_may_be_deleted_between_any_two_steps() {
    let server = zookeeper::start(&[]).unwrap();
    let namespace = Namespace::of(&server);
    let (here, raw) = (Locks::connect(&namespace.url).await.unwrap(), namespace.client().await);
    here.lock("n").acquire().await.unwrap().release().await.unwrap();
    let node = format!("{}/n", namespace.root);
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
            0 => here.lock("n").try_acquire().await.unwrap().expect("the lock is free"),
            1 => here.lock("n").shared().acquire().await.unwrap(),
            _ => here.lock("n").acquire().await.unwrap(),
        };
        assert!(guard.is_held() && Some(guard.fencing_token()) > token);
        token = Some(guard.fencing_token());
        guard.release().await.unwrap();
    }
    over.store(true, Ordering::Relaxed);
    let (deleted, kept) = reaper.await.unwrap();
    println!("{ROUNDS} holds; {deleted} deletions, {kept} refused");
    assert!(deleted > 20, "too few deletions");
    namespace.wait_until_empty().await;
}
