//! A renewal requires a majority, and succeeds as long as there is one.

use std::{pin::pin, time::Duration};

use futures_util::future::{Either, select};
use polylock::LostReason;
use polylock_integration_tests::{
    clock::{self, now, pause},
    proxy::{Direction, Flow},
};

use super::setup::{NEVER, Setup};

#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_the_lock_is_lost_at_its_deadline() {
    let setup = Setup::shared(5);
    let locks = setup.open("&polylock.ttl=4s").await;
    let guard = locks.lock("n").acquire().await.unwrap();
    guard.renewed().await.expect("it is held");
    for node in 0..3 {
        setup.freeze(node);
    }
    // One renewal may have been in transit.
    let deadline = loop {
        let renewed = guard.renewed();
        let deadline = guard.deadline();
        if renewed.await.is_none() {
            break deadline;
        }
    };
    let ended = now();
    assert_eq!(guard.lost().await, LostReason::DeadlineReached);
    let late = ended.since(deadline);
    assert!(ended >= deadline && late < Duration::from_millis(1500), "{late:?} after its deadline");
    for node in 0..3 {
        setup.thaw(node);
    }
    drop(guard);
    setup.wait_until_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_majority_the_lock_is_renewed() {
    // More than the lease, and the time for which a silent connection is kept.
    const RENEWALS: usize = 8;
    let setup = Setup::shared(5);
    let locks = setup.open("&polylock.ttl=3s").await;
    let guard = locks.lock("n").acquire().await.unwrap();
    setup.freeze(1);
    setup.disconnect(3);
    let began = now();
    for renewal in 0..RENEWALS {
        assert!(guard.renewed().await.is_some(), "lost after {renewal} renewals in {:?}", now().since(began));
    }
    assert!(guard.is_held());
    println!("{RENEWALS} renewals in {:?}", now().since(began));
    setup.thaw(1);
    guard.release().await.unwrap();
    setup.wait_until_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_vote_is_restored() {
    let setup = Setup::private(3, &[]);
    let locks = setup.open("&polylock.ttl=5s&polylock.operation_timeout=1s").await;
    let guard = locks.lock("n").acquire().await.unwrap();
    setup.wait_for_votes(&[1; 3]).await;
    // A renewal restores the vote of a server that replies before the majority is complete.
    setup.proxies[2].set(Direction::ToClient, Flow::Delay(Duration::from_millis(100)));
    setup.query::<()>(0, &["FLUSHALL"]).await;
    setup.wait_for_votes(&[1; 3]).await;
    tokio::task::block_in_place(|| setup.nodes[1].restart());
    setup.wait_for_votes(&[1; 3]).await;
    let holders = setup.holders("n").await;
    assert_eq!(holders, vec![holders[2].clone(); 3]);
    let token: i64 = setup.query(1, &["GET", &setup.key("n", "n")]).await;
    assert_eq!(u64::try_from(token).unwrap(), guard.fencing_token().get(), "the number, too");
    guard.release().await.unwrap();
    setup.wait_until_free().await;
}

/// A server that is silent could have made a majority: the others that reply get the vote without one.
#[tokio::test(flavor = "multi_thread")]
async fn votes_are_restored_while_a_node_of_a_bare_majority_is_silent() {
    let setup = Setup::shared(5);
    let locks = setup.open("&polylock.ttl=6s").await;
    let guard = locks.lock("n").acquire().await.unwrap();
    setup.wait_for_votes(&[1; 5]).await;
    setup.freeze(0);
    for node in [3, 4] {
        setup.query::<()>(node, &["DEL", &setup.key("r", "n")]).await;
    }
    setup.wait_for_votes(&[1; 5]).await;
    for _ in 0..3 {
        guard.renewed().await.expect("four servers reply");
    }
    setup.thaw(0);
    guard.release().await.unwrap();
    setup.wait_until_free().await;
}

/// The break has reached one server so far, and may be on its way to the others.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_no_vote_is_restored_after_a_break() {
    const BREAK: &str = include_str!("../../../../crates/polylock-redis/src/redlock/scripts/break.lua");
    let setup = Setup::shared(5);
    let locks = setup.open("&polylock.ttl=3s").await;
    let guard = locks.lock("n").acquire().await.unwrap();
    setup.wait_for_votes(&[1; 5]).await;
    setup.freeze(4);
    setup.query::<()>(1, &["DEL", &setup.key("r", "n")]).await;
    let token = guard.fencing_token().to_string();
    setup.run_script(BREAK, "n", &[&token, "60000", "n", "a notice", "1", "channel", NEVER]).await;
    let lost = guard.lost();
    tokio::pin!(lost);
    while let Either::Left(_) = select(pin!(pause(Duration::from_millis(50))), &mut lost).await {
        assert_eq!(setup.votes_of(&[0, 1]).await, [0, 0], "a vote was restored");
    }
    setup.thaw(4);
    drop(guard);
    setup.wait_until_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_has_accepted_a_greater_number_restores_no_vote() {
    let setup = Setup::private(3, &[]);
    let locks = setup.open("&polylock.ttl=5s").await;
    let guard = locks.lock("n").acquire().await.unwrap();
    setup.wait_for_votes(&[1; 3]).await;
    // As if another request had held the lock there in the meantime, or the release had been executed.
    setup.query::<()>(0, &["DEL", &setup.key("r", "n")]).await;
    let later = (guard.fencing_token().get() + 1).to_string();
    setup.query::<()>(0, &["SET", &setup.key("n", "n"), &later]).await;
    for _ in 0..3 {
        guard.renewed().await.expect("two are a majority");
    }
    assert_eq!(setup.votes().await, [0, 1, 1]);
    guard.release().await.unwrap();
    clock::until("free", || async { setup.votes().await == [0; 3] }).await;
}
