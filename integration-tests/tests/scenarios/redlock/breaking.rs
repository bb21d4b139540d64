//! Breaking a lock: a break at a minority of the servers has failed.

use std::time::Duration;

use polylock_core::{BreakNotice, Label, LostReason, OwnerId};
use polylock_integration_tests::{
    clock::{self, now, pause},
    proxy::{Direction, Flow, RequestFault},
    refusals::describe,
};

use super::setup::{PATIENT, Setup};

fn notice(reason: &str) -> BreakNotice {
    BreakNotice::new(OwnerId::process(), Some(Label::new(reason).unwrap()))
}

/// Returns by server if its vote has the mark of the break.
async fn marked(setup: &Setup, name: &str) -> Vec<bool> {
    let mut marked = Vec::new();
    for node in 0..setup.proxies.len() {
        let value: Option<Vec<u8>> = setup.query(node, &["GET", &setup.key("r", name)]).await;
        marked.push(value.is_some_and(|value| value.windows(8).any(|part| part == b"the mark")));
    }
    marked
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_hold_excludes_others_until_it_is_released() {
    let setup = Setup::shared(5);
    let locks = setup.open("&polylock.ttl=20s&polylock.operation_timeout=4s").await;
    let guard = locks.lock("n").acquire().await.unwrap();
    setup.wait_for_votes(&[1; 5]).await;
    let deadline = guard.deadline();
    let broken = locks.break_lock("n").reason("the mark").await.unwrap();
    assert_eq!(broken.len(), 1);
    assert_eq!(broken[0].broken, Some(notice("the mark")));
    assert_eq!(guard.lost().await, LostReason::Broken(notice("the mark")));
    assert!(now() < deadline);
    assert_eq!(marked(&setup, "n").await, [true; 5]);
    assert!(locks.lock("n").try_acquire().await.unwrap().is_none(), "its holder may still be at work");
    let status = locks.inspect("n").await.unwrap();
    assert_eq!(status.holders[0].broken, Some(notice("the mark")));
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.lost(), Some(&LostReason::Broken(notice("the mark"))));
    setup.wait_until_free().await;
    locks.lock("n").acquire().await.unwrap().release().await.unwrap();
    setup.wait_until_free().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_break_at_a_minority_fails_and_does_not_end_the_hold() {
    let setup = Setup::shared(5);
    let operator = setup.other_route();
    let url = "&polylock.ttl=5s&polylock.operation_timeout=1s";
    let (locks, operators) = (setup.open(url).await, operator.open(PATIENT).await);
    let guard = locks.lock("n").acquire().await.unwrap();
    setup.wait_for_votes(&[1; 5]).await;
    for node in 2..5 {
        operator.disconnect(node);
    }
    // It can inspect three servers, and break two: the third is unreachable by then.
    operator.reconnect(2);
    clock::until("it reaches three", || async { operators.inspect("n").await.is_ok() }).await;
    operator.proxies[2].fault_every(["the mark"], RequestFault::Drop);
    let error = operators.break_lock("n").reason("the mark").await.expect_err("two are no majority");
    assert!(error.is_temporary(), "{}", describe(&error).1);
    assert_eq!(marked(&setup, "n").await, [true, true, false, false, false]);
    assert_eq!(locks.inspect("n").await.unwrap().holders[0].broken, None, "the hold continues");
    // The marked votes expire, and are not restored.
    for _ in 0..4 {
        assert!(guard.renewed().await.is_some(), "three are a majority");
    }
    setup.wait_for_votes(&[0, 0, 1, 1, 1]).await;
    pause(Duration::from_millis(800)).await;
    assert!(guard.is_held());
    assert_eq!(setup.votes().await, [0, 0, 1, 1, 1]);
    // The break is retried.
    operator.proxies[2].clear_faults();
    for node in 2..5 {
        operator.disconnect(node);
        operator.reconnect(node);
    }
    clock::until("it is broken", || async {
        operators.break_lock("n").reason("the mark").await.is_ok_and(|broken| broken.len() == 1)
    })
    .await;
    assert_eq!(guard.lost().await, LostReason::Broken(notice("the mark")));
    assert!(locks.lock("n").try_acquire().await.unwrap().is_none(), "its holder may still be at work");
    drop(guard);
    setup.wait_until_free().await;
}

/// The hold has two votes, and the server with one of them does not reply to the operator.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_whose_votes_are_not_all_known_is_shown_and_broken() {
    let setup = Setup::shared(3);
    let operator = setup.other_route();
    let url = "&polylock.ttl=20s&polylock.operation_timeout=4s";
    let (locks, operators) = (setup.open(url).await, operator.open(PATIENT).await);
    setup.disconnect(2);
    let guard = locks.lock("n").acquire().await.unwrap();
    setup.wait_for_votes(&[1, 1, 0]).await;
    operator.disconnect(1);
    let status = operators.inspect("n").await.unwrap();
    assert_eq!(status.holders[0].token, Some(guard.fencing_token()));
    let broken = operators.break_lock("n").reason("the mark").await.unwrap();
    assert_eq!(broken.len(), 1);
    setup.reconnect(2);
    assert_eq!(guard.lost().await, LostReason::Broken(notice("the mark")));
    drop(guard);
    setup.wait_until_free().await;
    assert!(operators.inspect("n").await.unwrap().holders.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_break_by_force_frees_the_lock_and_notifies_the_former_holder() {
    let setup = Setup::shared(5);
    let other = setup.other_route();
    let (locks, others) = (setup.open("&polylock.ttl=8s").await, other.open(PATIENT).await);
    let guard = locks.lock("n").acquire().await.unwrap();
    let token = guard.fencing_token();
    setup.wait_for_votes(&[1; 5]).await;
    // The former holder receives nothing until the next one has the lock.
    for node in 0..5 {
        setup.freeze(node);
    }
    assert_eq!(others.break_lock("n").reason("the mark").force().await.unwrap().len(), 1);
    let next = others.lock("n").try_acquire().await.unwrap().expect("it is free");
    assert!(next.fencing_token() > token);
    let keys: i64 = setup.query(0, &["PTTL", &setup.key("b", "n")]).await;
    assert!(keys > 0 && keys <= 8100, "the notice expires with the lease: {keys}");
    for node in 0..5 {
        setup.thaw(node);
    }
    assert_eq!(guard.lost().await, LostReason::Broken(notice("the mark")));
    drop(guard);
    pause(Duration::from_millis(300)).await;
    assert!(next.is_held());
    next.release().await.unwrap();
    setup.wait_until_free().await;
    clock::until("the notices expire", || async {
        let mut keys = 0;
        for node in 0..5 {
            keys += setup.query::<usize>(node, &["EXISTS", &setup.key("b", "n")]).await;
        }
        keys == 0
    })
    .await;
}

/// A server that has lost the vote receives the message that restores it late, after the break.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_vote_is_not_restored() {
    for force in [false, true] {
        let setup = Setup::shared(3);
        let other = setup.other_route();
        // The timeout is a fifth of the TTL at most. The break below is complete in that time on a busy machine, too.
        let url = "&polylock.ttl=8s&polylock.operation_timeout=2s";
        let (locks, others) = (setup.open(url).await, other.open(PATIENT).await);
        let guard = locks.lock("n").acquire().await.unwrap();
        setup.wait_for_votes(&[1; 3]).await;
        setup.query::<()>(2, &["DEL", &setup.key("r", "n")]).await;
        // 1. At the next renewal this server replies that it has no vote, before the last of the others has received the message.
        setup.proxies[1].set(Direction::ToServer, Flow::Hold);
        setup.proxies[2].watch_for_replies("");
        clock::until("it replies", async || !setup.proxies[2].watched_replies().is_empty()).await;
        // 2. Two are a majority, so the client sends the message that restores the vote. That message is late.
        setup.proxies[2].set(Direction::ToServer, Flow::Hold);
        let renewed = guard.renewed();
        setup.proxies[1].set(Direction::ToServer, Flow::Pass);
        renewed.await.expect("two are a majority");
        let order = others.break_lock("n").reason("the mark");
        let broken = if force { order.force() } else { order }.await.unwrap();
        assert_eq!(broken.len(), 1);
        assert_eq!(guard.lost().await, LostReason::Broken(notice("the mark")));
        setup.proxies[2].set(Direction::ToServer, Flow::Pass);
        pause(Duration::from_millis(300)).await;
        let votes = if force { [0, 0, 0] } else { [1, 1, 0] };
        assert_eq!(setup.votes().await, votes);
        drop(guard);
        setup.wait_until_free().await;
    }
}
