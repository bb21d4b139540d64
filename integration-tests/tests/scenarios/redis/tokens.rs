//! Fencing tokens: exact, and growing. Lua's own number format has only 14 digits.

use std::time::Duration;

use polylock::{Error, Fault, LockStatus, Locks};
use polylock_integration_tests::{clock::TIMEOUT, servers::redis, stores::wait_for_waiters};

use super::{Namespace, command, describe};

/// Returns true if each token is greater than the one before.
fn is_growing(tokens: &[u64]) -> bool {
    tokens.windows(2).all(|pair| pair[0] < pair[1])
}

/// Two clients hand the lock to each other `count` times. Returns the tokens in the order of the grants, each as reported to the
/// client and as stored in the server; and the number of inspections.
async fn hand_overs(namespace: &Namespace, count: usize) -> (Vec<(u64, u64)>, u64) {
    let clients = [namespace.locks().await, namespace.locks().await];
    let client = |index: usize| clients[index % 2].lock("turns").ttl(Duration::from_secs(5));
    let (mut tokens, mut inspections) = (Vec::new(), 0);
    let mut guard = client(0).acquire().await.unwrap();
    for index in 1..=count {
        let waiting = tokio::spawn(client(index).acquire());
        let mut status = inspect(&clients[0], &mut inspections).await;
        while status.waiters.is_empty() {
            status = inspect(&clients[0], &mut inspections).await;
        }
        tokens.push((guard.fencing_token().get(), status.holders[0].token.unwrap().get()));
        guard.release().await.unwrap();
        guard = waiting.await.unwrap().unwrap();
    }
    guard.release().await.unwrap();
    (tokens, inspections)
}

async fn inspect(locks: &Locks, inspections: &mut u64) -> LockStatus {
    *inspections += 1;
    locks.inspect("turns").await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_hand_overs_return_exact_and_growing_tokens() {
    let server = redis::start(&[]).unwrap();
    let namespace = Namespace::on(&server).await;
    let completed = tokio::time::timeout(3 * TIMEOUT, hand_overs(&namespace, 1000)).await;
    let (tokens, inspections) = completed.expect("each waiter is notified at once");
    let (client_tokens, server_tokens): (Vec<u64>, Vec<u64>) = tokens.into_iter().unzip();
    assert_eq!(client_tokens, server_tokens);
    assert!(is_growing(&client_tokens));
    assert!(client_tokens[0] > 1_000_000_000_000_000, "microseconds since 1970: {}", client_tokens[0]);
    let calls = namespace.command_calls().await;
    assert_eq!(calls["publish"], 1000);
    // The pushed grants are accepted: each hand-over costs one claim and one release, unless the machine is busy.
    let scripts = namespace.script_count().await - inspections;
    println!("{scripts} claims and releases");
    assert!(scripts < 2700, "{scripts}");
    namespace.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_clock_behind_the_last_token_the_next_is_greater_by_one() {
    let server = redis::start(&[]).unwrap();
    let namespace = Namespace::on(&server).await;
    let locks = namespace.locks().await;
    let (seconds, micros): (u64, u64) = namespace.query(&command("TIME")).await;
    // An odd number, so that a lost digit is detected.
    let mut last = ((seconds + 3600) * 1_000_000 + micros) | 1;
    namespace.query::<()>(command("SET").arg(namespace.key("last")).arg(last)).await;
    for _ in 0..20 {
        let guard = locks.lock("ahead").acquire().await.unwrap();
        last += 1;
        assert_eq!(guard.fencing_token().get(), last);
        assert_eq!(namespace.query::<u64>(command("GET").arg(namespace.key("last"))).await, last);
        guard.release().await.unwrap();
    }
    let (ahead, _) = hand_overs(&namespace, 20).await;
    assert!(ahead.iter().all(|(client_tokens, server_tokens)| client_tokens == server_tokens));
    let client_tokens: Vec<u64> = ahead.into_iter().map(|(client_tokens, _)| client_tokens).collect();
    assert!(is_growing(&client_tokens) && client_tokens[0] == last + 1, "{client_tokens:?}");
    // Each hand-over draws two numbers, one of which is the queue position.
    assert_eq!(client_tokens[19], last + 1 + 2 * 19);
}

/// Numbers that leave no room for greater ones, and texts that are not numbers.
const DAMAGED: [&str; 6] = ["9007199254740991", "9007199254740992", "1e300", "not a number", "nan", "-5"];

#[tokio::test(flavor = "multi_thread")]
async fn without_a_greater_number_claims_fail_with_a_remedy() {
    let server = redis::start(&[]).unwrap();
    let namespace = Namespace::on(&server).await;
    let locks = namespace.locks().await;
    let set =
        async |last: &str| namespace.query::<()>(command("SET").arg(namespace.key("last")).arg(last)).await;
    let refused = |error: Error, last: &str| {
        let (fault, text) = describe(&error);
        assert!(fault == Some(Fault::Permanent), "{last}: {fault:?}: {text}");
        assert!(text.contains(":last") && text.contains("greatest token"), "{last}: {text}");
    };
    for last in DAMAGED {
        // A free lock; one with a holder; one with a waiter that is granted the lock by the release.
        set("0").await;
        let guard = locks.lock("held").acquire().await.unwrap();
        let waiting = tokio::spawn(locks.lock("held").acquire());
        wait_for_waiters(&locks, "held", 1).await;
        let reader = locks.lock("read").shared().acquire().await.unwrap();
        set(last).await;
        refused(locks.lock("free").try_acquire().await.expect_err(last), last);
        refused(locks.lock("read").shared().try_acquire().await.expect_err(last), last);
        refused(locks.lock("held").wait(Duration::from_secs(1)).acquire().await.expect_err(last), last);
        // Held locks can be renewed and released.
        reader.release().await.unwrap();
        guard.release().await.unwrap();
        refused(waiting.await.unwrap().expect_err(last), last);
        assert_eq!(namespace.query::<String>(command("GET").arg(namespace.key("last"))).await, last);
        namespace.assert_clean().await;
    }
    // The last possible number is granted, and then no other.
    set("9007199254740990").await;
    let guard = locks.lock("free").acquire().await.unwrap();
    assert_eq!(guard.fencing_token().get(), 9_007_199_254_740_991);
    guard.release().await.unwrap();
    refused(locks.lock("free").try_acquire().await.expect_err("no number is left"), "");
    namespace.query::<()>(command("DEL").arg(namespace.key("last"))).await;
    locks.lock("free").acquire().await.unwrap().release().await.unwrap();
}

/// The same rule in Lua's number format is detected by the checks above.
#[tokio::test(flavor = "multi_thread")]
async fn planted_a_token_in_the_number_format_of_lua_does_not_grow() {
    let server = redis::start(&[]).unwrap();
    let namespace = Namespace::on(&server).await;
    const NAIVE: &str = "local last = tonumber(redis.call('GET', KEYS[1]) or '0') \
                         redis.call('SET', KEYS[1], tostring(last + 1)) return last + 1";
    let key = namespace.key("last");
    namespace.query::<()>(command("SET").arg(&key).arg(1_790_000_000_123_456_u64)).await;
    let mut tokens = Vec::new();
    for _ in 0..10 {
        let token: u64 = namespace.query(command("EVAL").arg(NAIVE).arg(1).arg(&key)).await;
        tokens.push(token);
    }
    assert!(!is_growing(&tokens), "{tokens:?}");
}
