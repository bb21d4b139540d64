//! A release reports its outcome: only the servers that may have a vote can confirm it.

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use polylock::LostReason;
use polylock_integration_tests::{
    cargo,
    clock::{self, now, pause},
    proxy::{Flow, Way},
};

use crate::site::Site;

/// Node 2 is dead when the lock is acquired. Of the two that have a vote, node 1 is away when it is released.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_never_asked_confirms_nothing() {
    let site = Site::shared(3);
    let locks = site.open("&polylock.ttl=20s").await;
    site.kill(2);
    let guard = locks.lock("n").acquire().await.unwrap();
    site.has(&[1, 1, 0]).await;
    site.kill(1);
    let release = tokio::spawn(guard.release());
    site.has(&[0, 1, 0]).await;
    pause(Duration::from_millis(700)).await;
    assert!(!release.is_finished(), "confirmed by one server of the two that had a vote");
    site.revive(1);
    let began = now();
    release.await.unwrap().unwrap();
    println!("confirmed after {:?}", now().since(began));
    site.is_free_soon().await;
}

/// Node 2 is away when the lock is acquired, and is given a vote by a renewal.
#[tokio::test(flavor = "multi_thread")]
async fn a_vote_that_was_restored_is_withdrawn() {
    for _ in 0..5 {
        let site = Site::shared(3);
        let locks = site.open("&polylock.ttl=1200ms").await;
        site.kill(2);
        let guard = locks.lock("n").acquire().await.unwrap();
        site.has(&[1, 1, 0]).await;
        site.revive(2);
        site.has(&[1; 3]).await;
        guard.release().await.unwrap();
        site.is_free_soon().await;
    }
}

/// 1. The release removes the vote of one of the two servers that have one; the other one does not answer.
/// 2. It is tried again: the first has no vote any more, because it has been removed.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_is_tried_again_is_no_loss() {
    let site = Site::shared(3);
    let locks = site.open("&polylock.ttl=20s").await;
    site.kill(2);
    let guard = locks.lock("n").acquire().await.unwrap();
    site.has(&[1, 1, 0]).await;
    // It removes its vote, and its reply is lost; the other one hears of it later.
    site.proxies[0].set(Way::ToClient, Flow::Hold);
    site.proxies[1].set(Way::ToServer, Flow::Hold);
    let release = tokio::spawn(guard.release());
    site.has(&[0, 1, 0]).await;
    pause(Duration::from_millis(400)).await;
    for way in [Way::ToClient, Way::ToServer] {
        site.proxies[0].set(way, Flow::Pass);
        site.proxies[1].set(way, Flow::Pass);
    }
    release.await.unwrap().unwrap();
    site.is_free_soon().await;
}

/// Most of the votes are gone: another may have had the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_without_a_majority_of_votes_is_reported_as_lost_by_its_release() {
    let site = Site::shared(5);
    let locks = site.open("&polylock.ttl=20s").await;
    for (gone, lost) in [(2, false), (3, true)] {
        let guard = locks.lock("n").acquire().await.unwrap();
        site.has(&[1; 5]).await;
        for node in 0..gone {
            site.ask::<()>(node, &["DEL", &site.key("r", "n")]).await;
        }
        let released = guard.release().await;
        assert_eq!(released.is_err(), lost, "{gone}: {released:?}");
        if let Err(error) = released {
            assert_eq!(error.lost(), Some(&LostReason::Gone));
        }
        site.is_free_soon().await;
    }
}

/// The same as the first, with the command: it warns, goes on until the release is confirmed, and ends with the lock free.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_warns_of_a_release_that_is_not_confirmed_and_ends_with_the_lock_free() {
    let polylock = tokio::task::block_in_place(|| {
        cargo::program("polylock-cli", "polylock", Path::new(env!("CARGO_BIN_EXE_worker")))
    });
    let site = Site::private(3, &[]);
    tokio::task::block_in_place(|| site.nodes[2].kill());
    let mut run = Command::new(&polylock);
    run.args(["-S", &site.url("&polylock.ttl=10s"), "run", "n", "--", "sh", "-c", "echo runs; read line"]);
    run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = run.spawn().unwrap();
    clock::until("it is held", || async { site.votes_of(&[0, 1]).await == [1, 1] }).await;
    site.kill(1);
    run.stdin.take().unwrap().write_all(b"\n").unwrap();
    clock::until("it is released", || async { site.votes_of(&[0, 1]).await == [0, 1] }).await;
    pause(Duration::from_millis(600)).await;
    site.revive(1);
    let output = tokio::task::block_in_place(|| run.wait_with_output()).unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    println!("{text}");
    assert_eq!(site.votes_of(&[0, 1]).await, [0, 0], "{text}");
    assert!(output.status.success(), "{text}");
    let warning = format!("polylock: warning: {}: the release of lock n is not confirmed", site.address(1));
    assert_eq!(text.matches(&warning).count(), 1, "{text}");
}
