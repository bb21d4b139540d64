//! Breaking a lock that a majority holds: what a minority does is no break.

use std::time::Duration;

use polylock_core::{BreakNotice, Label, LostReason, OwnerId};
use polylock_integration_tests::{
    clock::{self, now, pause},
    proxy::{Fate, Flow, Way},
};

use crate::site::{Site, told};

fn notice(reason: &str) -> BreakNotice {
    BreakNotice::new(OwnerId::process(), Some(Label::new(reason).unwrap()))
}

/// Each server's value of a lock, without the request's id.
async fn marked(site: &Site, name: &str) -> Vec<bool> {
    let mut marked = Vec::new();
    for node in 0..site.proxies.len() {
        let value: Option<Vec<u8>> = site.ask(node, &["GET", &site.key("r", name)]).await;
        marked.push(value.is_some_and(|value| value.windows(8).any(|part| part == b"the mark")));
    }
    marked
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_hold_keeps_others_out_until_it_is_released_and_does_not_come_back() {
    let site = Site::shared(5);
    let locks = site.open("&polylock.ttl=3s").await;
    let guard = locks.lock("n").acquire().await.unwrap();
    site.has(&[1; 5]).await;
    let deadline = guard.deadline();
    let broken = locks.break_lock("n").reason("the mark").await.unwrap();
    assert_eq!(broken.len(), 1);
    assert_eq!(broken[0].broken, Some(notice("the mark")));
    assert_eq!(guard.lost().await, LostReason::Broken(notice("the mark")));
    assert!(now() < deadline);
    assert_eq!(marked(&site, "n").await, [true; 5]);
    assert!(locks.lock("n").try_acquire().await.unwrap().is_none(), "its holder may still be at work");
    let status = locks.inspect("n").await.unwrap();
    assert_eq!(status.holders[0].broken, Some(notice("the mark")));
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.lost(), Some(&LostReason::Broken(notice("the mark"))));
    site.is_free_soon().await;
    locks.lock("n").acquire().await.unwrap().release().await.unwrap();
    site.is_free_soon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_minority_of_marks_is_a_failed_break_and_does_not_end_the_hold() {
    let site = Site::shared(5);
    let operator = site.other_way();
    let (locks, operators) = (site.open("&polylock.ttl=2s").await, operator.open("").await);
    let guard = locks.lock("n").acquire().await.unwrap();
    site.has(&[1; 5]).await;
    for node in 2..5 {
        operator.kill(node);
    }
    // It can inspect three, and break two: the third is away by then.
    operator.revive(2);
    clock::until("it reaches three", || async { operators.inspect("n").await.is_ok() }).await;
    operator.proxies[2].next(["the mark"], Fate::Swallow);
    let error = operators.break_lock("n").reason("the mark").await.expect_err("two are no majority");
    assert!(error.is_temporary(), "{}", told(&error));
    assert_eq!(marked(&site, "n").await, [true, true, false, false, false]);
    assert_eq!(locks.inspect("n").await.unwrap().holders[0].broken, None, "it goes on");
    // The marked votes expire, and are not given again.
    for _ in 0..4 {
        assert!(guard.renewed().await.is_some(), "three are a majority");
    }
    site.has(&[0, 0, 1, 1, 1]).await;
    pause(Duration::from_millis(800)).await;
    assert!(guard.is_held());
    assert_eq!(site.votes().await, [0, 0, 1, 1, 1]);
    // A break that is tried again.
    for node in 2..5 {
        operator.kill(node);
        operator.revive(node);
    }
    clock::until("it is broken", || async {
        operators.break_lock("n").reason("the mark").await.is_ok_and(|broken| broken.len() == 1)
    })
    .await;
    assert_eq!(guard.lost().await, LostReason::Broken(notice("the mark")));
    assert!(locks.lock("n").try_acquire().await.unwrap().is_none(), "its holder may still be at work");
    drop(guard);
    site.is_free_soon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn by_force_the_next_holder_is_granted_at_once_and_the_former_one_receives_the_notice() {
    let site = Site::shared(5);
    let other = site.other_way();
    let (locks, others) = (site.open("&polylock.ttl=3s").await, other.open("").await);
    let guard = locks.lock("n").acquire().await.unwrap();
    let token = guard.fencing_token();
    site.has(&[1; 5]).await;
    // The former holder hears nothing until the next one has the lock.
    for node in 0..5 {
        site.freeze(node);
    }
    assert_eq!(others.break_lock("n").reason("the mark").force().await.unwrap().len(), 1);
    let next = others.lock("n").try_acquire().await.unwrap().expect("it is free");
    assert!(next.fencing_token() > token);
    let keys: i64 = site.ask(0, &["PTTL", &site.key("b", "n")]).await;
    assert!(keys > 0 && keys <= 3100, "the notice expires with the lease: {keys}");
    for node in 0..5 {
        site.thaw(node);
    }
    assert_eq!(guard.lost().await, LostReason::Broken(notice("the mark")));
    drop(guard);
    pause(Duration::from_millis(300)).await;
    assert!(next.is_held());
    next.release().await.unwrap();
    site.is_free_soon().await;
    clock::until("the notices expire", || async {
        let mut keys = 0;
        for node in 0..5 {
            keys += site.ask::<usize>(node, &["EXISTS", &site.key("b", "n")]).await;
        }
        keys == 0
    })
    .await;
}

/// A server that has lost the vote is told to give it again. It is told late, when the lock was broken by force.
#[tokio::test(flavor = "multi_thread")]
async fn a_vote_that_was_broken_is_not_given_again() {
    for force in [false, true] {
        let site = Site::shared(3);
        let other = site.other_way();
        let (locks, others) = (site.open("&polylock.ttl=3s").await, other.open("").await);
        let guard = locks.lock("n").acquire().await.unwrap();
        site.has(&[1; 3]).await;
        site.ask::<()>(2, &["DEL", &site.key("r", "n")]).await;
        // Of the messages to this server, the one that gives the vote again is late.
        site.proxies[2].set(Way::ToServer, Flow::Hold);
        guard.renewed().await.expect("two are a majority");
        let order = others.break_lock("n").reason("the mark");
        let broken = if force { order.force() } else { order }.await.unwrap();
        assert_eq!(broken.len(), 1);
        assert_eq!(guard.lost().await, LostReason::Broken(notice("the mark")));
        site.proxies[2].set(Way::ToServer, Flow::Pass);
        pause(Duration::from_millis(300)).await;
        let votes = if force { [0, 0, 0] } else { [1, 1, 0] };
        assert_eq!(site.votes().await, votes);
        drop(guard);
        site.is_free_soon().await;
    }
}
