//! Fencing tokens: exact, and growing. A Lua number of that size that is written as it is has only 14 digits.

use std::time::Duration;

use polylock::{Error, Fault, LockStatus, Locks};
use polylock_integration_tests::{clock::PATIENCE, servers::redis};

use crate::{Spot, command, told, waiters};

/// Whether each is greater than the one before.
fn grow(tokens: &[u64]) -> bool {
    tokens.windows(2).all(|pair| pair[0] < pair[1])
}

/// Two clients hand the lock to each other, so often in all. The tokens in the order in which they were had, each as the
/// client has it and as the server has it; and how often the server was asked for that.
async fn hand_overs(spot: &Spot, count: usize) -> (Vec<(u64, u64)>, u64) {
    let clients = [spot.locks().await, spot.locks().await];
    let client = |turn: usize| clients[turn % 2].lock("turns").ttl(Duration::from_secs(5));
    let (mut tokens, mut looks) = (Vec::new(), 0);
    let mut guard = client(0).acquire().await.unwrap();
    for turn in 1..=count {
        let waiting = tokio::spawn(client(turn).acquire());
        let mut status = look(&clients[0], &mut looks).await;
        while status.waiters.is_empty() {
            status = look(&clients[0], &mut looks).await;
        }
        tokens.push((guard.fencing_token().get(), status.holders[0].token.unwrap().get()));
        guard.release().await.unwrap();
        guard = waiting.await.unwrap().unwrap();
    }
    guard.release().await.unwrap();
    (tokens, looks)
}

async fn look(locks: &Locks, looks: &mut u64) -> LockStatus {
    *looks += 1;
    locks.inspect("turns").await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_hand_overs_give_exact_and_growing_tokens() {
    let server = redis::start(&[]).unwrap();
    let spot = Spot::of(&server).await;
    let handed = tokio::time::timeout(PATIENCE, hand_overs(&spot, 1000)).await;
    let (tokens, looks) = handed.expect("each waiter is told at once");
    let (theirs, servers): (Vec<u64>, Vec<u64>) = tokens.into_iter().unzip();
    assert_eq!(theirs, servers);
    assert!(grow(&theirs));
    assert!(theirs[0] > 1_000_000_000_000_000, "microseconds since 1970: {}", theirs[0]);
    let calls = spot.calls().await;
    assert_eq!(calls["publish"], 1000);
    // What is pushed is understood: with one claim and one release each, nobody has to ask again, unless the machine is busy.
    let scripts = spot.scripts_run().await - looks;
    println!("{scripts} claims and releases");
    assert!(scripts < 2200, "{scripts}");
    spot.is_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_clock_is_behind_the_last_token_the_next_is_greater_by_one() {
    let server = redis::start(&[]).unwrap();
    let spot = Spot::of(&server).await;
    let locks = spot.locks().await;
    let (seconds, micros): (u64, u64) = spot.ask(&command("TIME")).await;
    // An odd number, so that no digit of it is lost unseen.
    let mut last = ((seconds + 3600) * 1_000_000 + micros) | 1;
    spot.ask::<()>(command("SET").arg(spot.key("last")).arg(last)).await;
    for _ in 0..20 {
        let guard = locks.lock("ahead").acquire().await.unwrap();
        last += 1;
        assert_eq!(guard.fencing_token().get(), last);
        assert_eq!(spot.ask::<u64>(command("GET").arg(spot.key("last"))).await, last);
        guard.release().await.unwrap();
    }
    let (ahead, _) = hand_overs(&spot, 20).await;
    assert!(ahead.iter().all(|(theirs, servers)| theirs == servers));
    let theirs: Vec<u64> = ahead.into_iter().map(|(theirs, _)| theirs).collect();
    assert!(grow(&theirs) && theirs[0] == last + 1, "{theirs:?}");
    // Each hand-over draws two, one of which is the place in the queue.
    assert_eq!(theirs[19], last + 1 + 2 * 19);
}

/// A number that leaves no room for greater ones, or is none.
const DAMAGED: [&str; 6] = ["9007199254740991", "9007199254740992", "1e300", "not a number", "nan", "-5"];

#[tokio::test(flavor = "multi_thread")]
async fn without_a_greater_number_nobody_is_granted_and_the_error_says_what_to_do() {
    let server = redis::start(&[]).unwrap();
    let spot = Spot::of(&server).await;
    let locks = spot.locks().await;
    let set = async |last: &str| spot.ask::<()>(command("SET").arg(spot.key("last")).arg(last)).await;
    let refused = |error: Error, last: &str| {
        let (fault, text) = told(&error);
        assert!(fault == Some(Fault::Permanent), "{last}: {fault:?}: {text}");
        assert!(text.contains(":last") && text.contains("greatest token"), "{last}: {text}");
    };
    for last in DAMAGED {
        // Free; with a holder; with a waiter whose turn comes by the release of the holder.
        set("0").await;
        let guard = locks.lock("held").acquire().await.unwrap();
        let waiting = tokio::spawn(locks.lock("held").acquire());
        waiters(&locks, "held", 1).await;
        let reader = locks.lock("read").shared().acquire().await.unwrap();
        set(last).await;
        refused(locks.lock("free").try_acquire().await.expect_err(last), last);
        refused(locks.lock("read").shared().try_acquire().await.expect_err(last), last);
        refused(locks.lock("held").wait(Duration::from_secs(1)).acquire().await.expect_err(last), last);
        // What is held is renewed and released.
        reader.release().await.unwrap();
        guard.release().await.unwrap();
        refused(waiting.await.unwrap().expect_err(last), last);
        assert_eq!(spot.ask::<String>(command("GET").arg(spot.key("last"))).await, last);
        spot.is_clean().await;
    }
    // The last but one number is granted, and then no other.
    set("9007199254740990").await;
    let guard = locks.lock("free").acquire().await.unwrap();
    assert_eq!(guard.fencing_token().get(), 9_007_199_254_740_991);
    guard.release().await.unwrap();
    refused(locks.lock("free").try_acquire().await.expect_err("no number is left"), "");
    spot.ask::<()>(command("DEL").arg(spot.key("last"))).await;
    locks.lock("free").acquire().await.unwrap().release().await.unwrap();
}

/// The same rule with the number's own text: the checks above find it out.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_written_as_lua_writes_numbers_does_not_grow() {
    let server = redis::start(&[]).unwrap();
    let spot = Spot::of(&server).await;
    const NAIVE: &str = "local last = tonumber(redis.call('GET', KEYS[1]) or '0') \
                         redis.call('SET', KEYS[1], tostring(last + 1)) return last + 1";
    let key = spot.key("last");
    spot.ask::<()>(command("SET").arg(&key).arg(1_790_000_000_123_456_u64)).await;
    let mut tokens = Vec::new();
    for _ in 0..10 {
        let token: u64 = spot.ask(command("EVAL").arg(NAIVE).arg(1).arg(&key)).await;
        tokens.push(token);
    }
    assert!(!grow(&tokens), "{tokens:?}");
}
