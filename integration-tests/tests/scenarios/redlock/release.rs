//! A release reports its outcome: only the servers that may have a vote can confirm it.

use std::{
    io::Write as _,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use futures_util::future::join_all;
use polylock::{Locks, LostReason};
use polylock_integration_tests::{
    cargo,
    clock::{self, now, pause},
    proxy::{Direction, Flow},
};
use polylock_testkit::ManualClock;

use super::setup::Setup;

/// Node 2 is dead when the lock is acquired. Of the two that have a vote, node 1 is unreachable when it is released.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_vote_confirms_no_release() {
    let setup = Setup::shared(3);
    let locks = setup.open("&polylock.ttl=20s").await;
    setup.disconnect(2);
    let guard = locks.lock("n").acquire().await.unwrap();
    setup.wait_for_votes(&[1, 1, 0]).await;
    setup.disconnect(1);
    let release = tokio::spawn(guard.release());
    setup.wait_for_votes(&[0, 1, 0]).await;
    pause(Duration::from_millis(700)).await;
    assert!(!release.is_finished(), "confirmed by one server of the two that had a vote");
    setup.reconnect(1);
    let began = now();
    release.await.unwrap().unwrap();
    println!("confirmed after {:?}", now().since(began));
    setup.wait_until_free().await;
}

/// Node 2 is unreachable when the lock is acquired, and a renewal gives it a vote.
#[tokio::test(flavor = "multi_thread")]
async fn a_restored_vote_is_withdrawn() {
    let rounds = (0..5).map(|_| async {
        let setup = Setup::shared(3);
        // The rest of the lease is longer than the time for which the last line waits.
        let locks = setup.open("&polylock.ttl=6s&polylock.operation_timeout=1s").await;
        setup.disconnect(2);
        let guard = locks.lock("n").acquire().await.unwrap();
        setup.wait_for_votes(&[1, 1, 0]).await;
        setup.reconnect(2);
        // A renewal restores the vote of a server that replies before the majority is complete.
        setup.proxies[0].set(Direction::ToClient, Flow::Delay(Duration::from_millis(100)));
        setup.wait_for_votes(&[1; 3]).await;
        setup.proxies[0].set(Direction::ToClient, Flow::Pass);
        guard.release().await.unwrap();
        setup.wait_until_free().await;
    });
    join_all(rounds).await;
}

/// 1. The release removes the vote of one of the two servers that have one; the other one does not reply.
/// 2. It is retried: the first server has no vote any more, because it has removed it.
#[tokio::test(flavor = "multi_thread")]
async fn a_retried_release_is_not_a_loss() {
    let setup = Setup::shared(3);
    let locks = setup.open("&polylock.ttl=20s").await;
    setup.disconnect(2);
    let guard = locks.lock("n").acquire().await.unwrap();
    setup.wait_for_votes(&[1, 1, 0]).await;
    // It removes its vote, and its reply is lost; the other one receives the message later.
    setup.proxies[0].set(Direction::ToClient, Flow::Hold);
    setup.proxies[1].set(Direction::ToServer, Flow::Hold);
    let release = tokio::spawn(guard.release());
    setup.wait_for_votes(&[0, 1, 0]).await;
    pause(Duration::from_millis(400)).await;
    for way in [Direction::ToClient, Direction::ToServer] {
        setup.proxies[0].set(way, Flow::Pass);
        setup.proxies[1].set(way, Flow::Pass);
    }
    release.await.unwrap().unwrap();
    setup.wait_until_free().await;
}

/// Most of the votes are gone: another request may have been granted the lock. Only the first attempt can report that. So the clock of the
/// deadlines stands still, and the I/O thread does not take the release over.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_without_a_majority_of_votes_reports_the_loss() {
    let setup = Setup::shared(5);
    let url = setup.url("&polylock.ttl=20s&polylock.operation_timeout=4s");
    let locks = Locks::builder(&url).clock(Arc::new(ManualClock::new())).connect().await.unwrap();
    for (gone, lost) in [(2, false), (3, true)] {
        let guard = locks.lock("n").acquire().await.unwrap();
        setup.wait_for_votes(&[1; 5]).await;
        for node in 0..gone {
            setup.query::<()>(node, &["DEL", &setup.key("r", "n")]).await;
        }
        let released = guard.release().await;
        assert_eq!(released.is_err(), lost, "{gone}: {released:?}");
        if let Err(error) = released {
            assert_eq!(error.lost(), Some(&LostReason::Gone));
        }
        setup.wait_until_free().await;
    }
}

/// The first case with the command line: it warns, retries until the release is confirmed, and ends with the lock free.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_warns_of_an_unconfirmed_release_and_retries_it() {
    let setup = Setup::private(3, &[]);
    tokio::task::block_in_place(|| setup.nodes[2].kill());
    let mut run = Command::new(cargo::polylock());
    let url = setup.url("&polylock.ttl=10s&polylock.operation_timeout=2s");
    run.args(["-S", &url, "run", "n", "--", "sh", "-c", "echo runs; read line"]);
    run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = run.spawn().unwrap();
    clock::until("it is held", || async { setup.votes_of(&[0, 1]).await == [1, 1] }).await;
    setup.disconnect(1);
    run.stdin.take().unwrap().write_all(b"\n").unwrap();
    clock::until("it is released", || async { setup.votes_of(&[0, 1]).await == [0, 1] }).await;
    pause(Duration::from_millis(600)).await;
    setup.reconnect(1);
    let output = tokio::task::block_in_place(|| run.wait_with_output()).unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    println!("{text}");
    assert_eq!(setup.votes_of(&[0, 1]).await, [0, 0], "{text}");
    assert!(output.status.success(), "{text}");
    let warning = format!("polylock: warning: {}: the release of lock n is not confirmed", setup.address(1));
    assert_eq!(text.matches(&warning).count(), 1, "{text}");
}
