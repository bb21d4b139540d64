//! The nodes of locks: the store deletes those that it has left empty, and knows what it may no longer trust when one was made anew.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use polylock::{Error, Locks};
use polylock_integration_tests::{
    clock::{self, pause},
    load::Load,
    servers::zookeeper,
};
use polylock_testkit::history::{self, Rules};
use tokio::sync::Notify;
use zookeeper_client::{Client, Error as Failure};

use crate::{Spot, waiters};

/// The servers delete no empty node within a test.
const NO_REAPER: [&str; 1] = ["-Dznode.container.checkIntervalMs=3600000"];

const NAMES: usize = 500;

#[tokio::test(flavor = "multi_thread")]
async fn that_were_left_empty_are_deleted_without_the_servers_reaper() {
    let server = zookeeper::start(&NO_REAPER).unwrap();
    let spot = Spot::of(&server);
    let (here, raw) = (Locks::connect(&spot.url).await.unwrap(), spot.raw().await);
    // One is held meanwhile, one belongs to somebody else, and one is no lock's.
    let held = here.lock("held").acquire().await.unwrap();
    let there = Locks::connect(&spot.url).await.unwrap();
    let others = there.lock("others").shared().acquire().await.unwrap();
    here.lock("others").shared().acquire().await.unwrap().release().await.unwrap();
    let kept = zookeeper_client::CreateMode::Persistent.with_acls(zookeeper_client::Acls::anyone_all());
    raw.create(&format!("{}/kept", spot.root), b"", &kept).await.unwrap();
    here.lock("kept").acquire().await.unwrap().release().await.unwrap();
    let uses = stream::iter(0..NAMES).for_each_concurrent(32, async |name| {
        here.lock(format!("job-{name}")).acquire().await.unwrap().release().await.unwrap();
    });
    uses.await;
    clock::until("all others are gone", async || {
        let mut left = raw.list_children(&spot.root).await.unwrap();
        left.sort();
        left == ["held", "kept", "others"]
    })
    .await;
    assert!(held.is_held() && others.is_held());
    let token = held.fencing_token();
    held.release().await.unwrap();
    // Made anew, it counts from 0, and the tokens go on.
    clock::until("it is gone, too", async || {
        raw.check_stat(&format!("{}/held", spot.root)).await.unwrap().is_none()
    })
    .await;
    let again = here.lock("held").acquire().await.unwrap();
    assert!(again.fencing_token() > token);
    again.release().await.unwrap();
    others.release().await.unwrap();
    spot.is_clean().await;
}

/// Deletes all children of a lock's node, and the node itself.
async fn delete(raw: &Client, node: &str) {
    for child in raw.list_children(node).await.unwrap() {
        raw.delete(&format!("{node}/{child}"), None).await.unwrap();
    }
    raw.delete(node, None).await.unwrap();
}

/// While this process still takes its deleted request for a hold, and though the sequences begin with 0 again.
#[tokio::test(flavor = "multi_thread")]
async fn that_were_made_anew_are_listed_before_a_grant() {
    let server = zookeeper::start(&[]).unwrap();
    let spot = Spot::of(&server);
    let raw = spot.raw().await;
    let node = format!("{}/n", spot.root);
    let (here, there) = (
        Locks::connect(&spot.with(Duration::from_secs(6))).await.unwrap(),
        Locks::connect(&spot.with(Duration::from_secs(60))).await.unwrap(),
    );
    // The sequence of the request that is deleted is less than that of the request that comes after it, or greater.
    for before in [0, 6] {
        for _ in 0..before {
            here.lock("n").acquire().await.unwrap().release().await.unwrap();
        }
        let deleted = here.lock("n").acquire().await.unwrap();
        let waits = tokio::spawn(here.lock("n").acquire());
        waiters(&there, "n", 1).await;
        delete(&raw, &node).await;
        let other = there.lock("n").acquire().await.unwrap();
        let refused = here.lock("n").wait(Duration::from_secs(3)).acquire().await;
        assert!(matches!(refused, Err(Error::NotAcquired { .. })), "{before}: {refused:?}");
        assert!(other.is_held() && !deleted.is_held() && !waits.is_finished());
        let token = other.fencing_token();
        other.release().await.unwrap();
        let next =
            tokio::time::timeout(clock::PATIENCE, waits).await.expect("its turn comes").unwrap().unwrap();
        assert!(next.fencing_token() > token && token > deleted.fencing_token());
        next.release().await.unwrap();
        delete(&raw, &node).await;
    }
    spot.is_clean().await;
}

/// What a session knows from an earlier list is that nobody is before it, and not that it is still there.
#[tokio::test(flavor = "multi_thread")]
async fn of_which_one_has_lost_a_request_do_not_grant_it() {
    let server = zookeeper::start(&[]).unwrap();
    let spot = Spot::of(&server);
    let raw = spot.raw().await;
    let locks = Locks::connect(&spot.with(Duration::from_secs(60))).await.unwrap();
    let first = locks.lock("n").acquire().await.unwrap();
    let mut waiting = Vec::new();
    for number in 1..=3 {
        waiting.push(tokio::spawn(locks.lock("n").acquire()));
        waiters(&locks, "n", number).await;
    }
    let [second, mut third, mut fourth] = waiting.try_into().unwrap();
    first.release().await.unwrap();
    // Its list shows the others, too.
    let second = second.await.unwrap().unwrap();
    let node = format!("{}/n", spot.root);
    let mut children = raw.list_children(&node).await.unwrap();
    children.sort_by_key(|child| child.rsplit_once('_').unwrap().1.to_owned());
    raw.delete(&format!("{node}/{}", children[1]), None).await.unwrap();
    second.release().await.unwrap();
    let fourth = tokio::select! {
        _ = &mut third => panic!("it has no node"),
        fourth = &mut fourth => fourth.unwrap().unwrap(),
    };
    // It is at the end of the queue now.
    fourth.release().await.unwrap();
    let third = tokio::time::timeout(clock::PATIENCE, third).await.expect("its turn comes").unwrap().unwrap();
    third.release().await.unwrap();
    spot.is_clean().await;
}

/// Several processes, each with several tasks, for locks whose nodes are deleted as soon as they are empty.
#[tokio::test(flavor = "multi_thread")]
async fn that_are_deleted_all_the_time_keep_every_promise() {
    let server = zookeeper::start(&NO_REAPER).unwrap();
    let spot = Spot::of(&server);
    let (raw, done) = (spot.raw().await, Arc::new(Notify::new()));
    let (root, over) = (spot.root.clone(), done.clone());
    let deleter = tokio::spawn(async move {
        let mut deleted = 0;
        loop {
            for number in 0..6 {
                match raw.delete(&format!("{root}/lock-{number}"), None).await {
                    Ok(()) => deleted += 1,
                    Err(Failure::NoNode | Failure::NotEmpty) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            tokio::select! {
                () = over.notified() => return deleted,
                () = pause(Duration::from_millis(1)) => {}
            }
        }
    });
    let load = Load { stores: 3, tasks: 3, names: 6, more_than: 300, ..Load::default() };
    let outcome = load.run(&spot.url, async {}).await;
    done.notify_one();
    let deleted = deleter.await.unwrap();
    println!("{} sections, {deleted} nodes deleted", outcome.sections.len());
    assert_eq!((outcome.failures, outcome.losses), (0, 0));
    assert_eq!(history::check(&outcome.sections, Rules::default()), []);
    assert!(outcome.sections.len() > 300 && deleted > 50, "they met");
    spot.is_clean().await;
}
