//! The nodes of locks: the store deletes its empty ones, and discards its knowledge when a node was created again.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use polylock::{Error, Locks, LostReason};
use polylock_integration_tests::{
    clock::{self, pause},
    load::Load,
    proxy::{Direction, Flow, Proxy},
    servers::zookeeper,
    stores::wait_for_waiters,
};
use polylock_testkit::history::{self, Rules};
use tokio::sync::Notify;
use zookeeper_client::{Client, Error as Failure};

use super::Namespace;

/// The servers delete no empty node within a test.
const NO_REAPER: [&str; 1] = ["-Dznode.container.checkIntervalMs=3600000"];

const NAMES: usize = 500;

#[tokio::test(flavor = "multi_thread")]
async fn that_are_empty_are_deleted_without_the_servers_reaper() {
    let server = zookeeper::start(&NO_REAPER).unwrap();
    let namespace = Namespace::of(&server);
    let (here, raw) = (Locks::connect(&namespace.url).await.unwrap(), namespace.client().await);
    // One is held, one is used by another session, and one was not created by the store.
    let held = here.lock("held").acquire().await.unwrap();
    let there = Locks::connect(&namespace.url).await.unwrap();
    let others = there.lock("others").shared().acquire().await.unwrap();
    here.lock("others").shared().acquire().await.unwrap().release().await.unwrap();
    let kept = zookeeper_client::CreateMode::Persistent.with_acls(zookeeper_client::Acls::anyone_all());
    raw.create(&format!("{}/kept", namespace.root), b"", &kept).await.unwrap();
    here.lock("kept").acquire().await.unwrap().release().await.unwrap();
    let uses = stream::iter(0..NAMES).for_each_concurrent(32, async |name| {
        here.lock(format!("job-{name}")).acquire().await.unwrap().release().await.unwrap();
    });
    uses.await;
    clock::until("all others are deleted", async || {
        let mut left = raw.list_children(&namespace.root).await.unwrap();
        left.sort();
        left == ["held", "kept", "others"]
    })
    .await;
    assert!(held.is_held() && others.is_held());
    let token = held.fencing_token();
    held.release().await.unwrap();
    // Created again, its sequences start at 0, and the tokens continue to grow.
    clock::until("it is deleted, too", async || {
        raw.check_stat(&format!("{}/held", namespace.root)).await.unwrap().is_none()
    })
    .await;
    let again = here.lock("held").acquire().await.unwrap();
    assert!(again.fencing_token() > token);
    again.release().await.unwrap();
    others.release().await.unwrap();
    namespace.wait_until_empty().await;
}

/// A stranger deletes the path that the URL names, and its parent, while one process holds a lock there and another one waits.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_root_that_is_deleted_are_created_again_and_the_holder_is_told() {
    let server = zookeeper::start(&[]).unwrap();
    let namespace = Namespace::of(&server);
    let raw = namespace.client().await;
    let url = namespace.url.replacen(&namespace.root, &format!("{}/team/locks", namespace.root), 1);
    let (here, there) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    let held = here.lock("n").acquire().await.unwrap();
    let token = held.fencing_token();
    let waiting = tokio::spawn(there.lock("n").acquire());
    wait_for_waiters(&here, "n", 1).await;
    let team = format!("{}/team", namespace.root);
    // In one transaction: the waiter creates its node again as soon as it is deleted.
    let nodes = [format!("{team}/locks"), team.clone()];
    delete(&raw, &format!("{team}/locks/n"), &nodes).await;
    let next = tokio::time::timeout(clock::TIMEOUT, waiting).await.unwrap().unwrap().unwrap();
    assert!(next.fencing_token() > token);
    assert!(matches!(held.lost().await, LostReason::Gone), "it is told");
    assert!(held.release().await.is_err());
    assert!(next.is_held());
    next.release().await.unwrap();
    clock::until("no request is left", async || {
        let nodes = raw.list_children(&format!("{team}/locks")).await.unwrap_or_default();
        nodes.iter().all(|node| node != "n")
    })
    .await;
}

/// Deletes all children of a lock's node, the node itself, and those above it, in one transaction.
async fn delete(raw: &Client, node: &str, above: &[String]) {
    let children = raw.list_children(node).await.unwrap();
    let mut writer = raw.new_multi_writer();
    for child in children {
        writer.add_delete(&format!("{node}/{child}"), None).unwrap();
    }
    writer.add_delete(node, None).unwrap();
    for node in above {
        writer.add_delete(node, None).unwrap();
    }
    writer.commit().await.unwrap();
}

/// While this process does not know yet that its hold was deleted, and the sequences start at 0 again.
#[tokio::test(flavor = "multi_thread")]
async fn that_were_created_again_are_listed_before_a_grant() {
    let server = zookeeper::start(&[]).unwrap();
    let (namespace, proxy) = (Namespace::of(&server), Proxy::to(server.port()));
    let raw = namespace.client().await;
    let node = format!("{}/n", namespace.root);
    let (here, there) = (
        Locks::connect(&proxy.url(&namespace.url_with_session(Duration::from_secs(6)))).await.unwrap(),
        Locks::connect(&namespace.url_with_session(Duration::from_secs(60))).await.unwrap(),
    );
    // The sequence of the deleted request is less than that of the later request, or greater.
    for before in [0, 6] {
        for _ in 0..before {
            here.lock("n").acquire().await.unwrap().release().await.unwrap();
        }
        let deleted = here.lock("n").acquire().await.unwrap();
        let waiter = tokio::spawn(here.lock("n").acquire());
        wait_for_waiters(&there, "n", 1).await;
        // Otherwise the waiter could notice the deletion, and create its node again before the other request.
        proxy.set(Direction::ToServer, Flow::Hold);
        delete(&raw, &node, &[]).await;
        let other = there.lock("n").acquire().await.unwrap();
        proxy.set(Direction::ToServer, Flow::Pass);
        let refused = here.lock("n").wait(Duration::from_secs(3)).acquire().await;
        assert!(matches!(refused, Err(Error::NotAcquired { .. })), "{before}: {refused:?}");
        assert!(other.is_held() && !deleted.is_held() && !waiter.is_finished());
        let token = other.fencing_token();
        other.release().await.unwrap();
        let next = tokio::time::timeout(clock::TIMEOUT, waiter)
            .await
            .expect("the waiter is granted the lock")
            .unwrap()
            .unwrap();
        assert!(next.fencing_token() > token && token > deleted.fencing_token());
        next.release().await.unwrap();
        // A request that has given up may still be deleting its node.
        clock::until("no request is left", async || namespace.requests(&raw).await == 0).await;
        delete(&raw, &node, &[]).await;
    }
    namespace.wait_until_empty().await;
}

/// An earlier list proves that no request is ahead, but not that the request's own node still exists.
#[tokio::test(flavor = "multi_thread")]
async fn with_a_deleted_request_do_not_grant_it() {
    let server = zookeeper::start(&[]).unwrap();
    let namespace = Namespace::of(&server);
    let raw = namespace.client().await;
    let locks = Locks::connect(&namespace.url_with_session(Duration::from_secs(60))).await.unwrap();
    let first = locks.lock("n").acquire().await.unwrap();
    let mut waiting = Vec::new();
    for number in 1..=3 {
        waiting.push(tokio::spawn(locks.lock("n").acquire()));
        wait_for_waiters(&locks, "n", number).await;
    }
    let [second, mut third, mut fourth] = waiting.try_into().unwrap();
    first.release().await.unwrap();
    // The list of this claim shows the others, too.
    let second = second.await.unwrap().unwrap();
    let node = format!("{}/n", namespace.root);
    let mut children = raw.list_children(&node).await.unwrap();
    children.sort_by_key(|child| child.rsplit_once('_').unwrap().1.to_owned());
    raw.delete(&format!("{node}/{}", children[1]), None).await.unwrap();
    second.release().await.unwrap();
    let fourth = tokio::select! {
        _ = &mut third => panic!("a request without a node was granted"),
        fourth = &mut fourth => fourth.unwrap().unwrap(),
    };
    // The third request is at the end of the queue now.
    fourth.release().await.unwrap();
    let third = tokio::time::timeout(clock::TIMEOUT, third)
        .await
        .expect("the waiter is granted the lock")
        .unwrap()
        .unwrap();
    third.release().await.unwrap();
    namespace.wait_until_empty().await;
}

/// Several stores with several tasks use locks with nodes that are deleted as soon as they are empty.
#[tokio::test(flavor = "multi_thread")]
async fn that_are_deleted_repeatedly_violate_no_guarantee() {
    let server = zookeeper::start(&NO_REAPER).unwrap();
    let namespace = Namespace::of(&server);
    let (raw, done) = (namespace.client().await, Arc::new(Notify::new()));
    let (root, over) = (namespace.root.clone(), done.clone());
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
    let load = Load { stores: 3, tasks: 3, names: 6, min_holds: 300, ..Load::default() };
    let outcome = load.run(&namespace.url, async {}).await;
    done.notify_one();
    let deleted = deleter.await.unwrap();
    println!("{} sections, {deleted} nodes deleted", outcome.sections.len());
    assert_eq!((outcome.failures, outcome.losses), (0, 0));
    assert_eq!(history::check(&outcome.sections, Rules::default()), []);
    assert!(outcome.sections.len() > 300 && deleted > 50, "too few sections or deletions");
    namespace.wait_until_empty().await;
}
