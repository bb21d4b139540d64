//! The primary that Sentinels name: failovers, Sentinels that are dead, and what they do not know.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use polylock::{Fault, Locks};
use polylock_integration_tests::{
    clock,
    load::Load,
    refusals::{refusal, timed_refusal},
    servers::{
        redis_sentinel::{self, Watched},
        redlock::Dead,
    },
};
use polylock_testkit::history;
use tokio::task::block_in_place;

const TTL: Duration = Duration::from_secs(10);

fn url(watched: &Watched) -> String {
    format!("{}?polylock.prefix=p", watched.url())
}

async fn try_ask<T: redis::FromRedisValue>(port: u16, command: &[&str]) -> redis::RedisResult<T> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    redis::cmd(command[0]).arg(&command[1..]).query_async(&mut connection).await
}

async fn ask<T: redis::FromRedisValue>(port: u16, command: &[&str]) -> T {
    try_ask(port, command).await.unwrap()
}

/// Waits until the Sentinels have made this server the primary.
async fn is_primary(watched: &Watched, server: usize) {
    let port = watched.servers[server].port();
    clock::until("a failover", async || watched.primary().await == Some(port)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_is_followed_by_holders_and_waiters_and_tokens_grow() {
    let watched = redis_sentinel::start(&[], &[]).unwrap();
    let url = url(&watched);
    let (locks, others) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    let guard = locks.lock("kept").ttl(TTL).acquire().await.unwrap();
    let waiting = tokio::spawn(others.lock("kept").acquire());
    clock::until("one waits", async || locks.inspect("kept").await.unwrap().waiters.len() == 1).await;
    // The replica has both.
    assert_eq!(ask::<i64>(watched.servers[0].port(), &["WAIT", "1", "5000"]).await, 1);
    block_in_place(|| watched.servers[0].kill());
    is_primary(&watched, 1).await;
    let deadline = guard.deadline();
    clock::until("it is renewed there", async || !guard.is_held() || guard.deadline() > deadline).await;
    guard.ensure_held().unwrap();
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    let next = tokio::time::timeout(TTL, waiting).await.unwrap().unwrap().unwrap();
    assert!(next.fencing_token() > token);
    next.release().await.unwrap();
    // And a new client finds the new one.
    let guard = Locks::connect(&url).await.unwrap().lock("kept").acquire().await.unwrap();
    guard.release().await.unwrap();
}

/// A primary that stands still is replaced, and becomes a replica when it goes on. Nothing that it receives then has an effect.
#[tokio::test(flavor = "multi_thread")]
async fn under_load_a_primary_that_stands_still_is_replaced() {
    let watched = redis_sentinel::start(&[], &[]).unwrap();
    let load = Load {
        stores: 2,
        tasks: 2,
        lasts: Duration::from_secs(4),
        wait: 3 * TTL,
        readers: false,
        ..Load::default()
    };
    let trouble = async {
        clock::pause(Duration::from_millis(300)).await;
        block_in_place(|| watched.servers[0].freeze());
        is_primary(&watched, 1).await;
        block_in_place(|| watched.servers[0].thaw());
    };
    let outcome = load.run(&url(&watched), trouble).await;
    println!("{} sections, {} losses", outcome.sections.len(), outcome.losses);
    assert_eq!(outcome.failures, 0);
    assert_eq!(history::token_regressions(&outcome.sections), []);
    assert_eq!(history::repeated_tokens(&outcome.sections), []);
    // The former primary learns what it is from the Sentinels.
    clock::until("it is a replica", async || {
        // The Sentinels end its connections.
        let roles = try_ask::<String>(watched.servers[0].port(), &["INFO", "replication"]).await;
        roles.is_ok_and(|roles| roles.contains("role:slave"))
    })
    .await;
    let locks = Locks::connect(&url(&watched)).await.unwrap();
    let guard = locks.lock("after").acquire().await.unwrap();
    let keys: Vec<String> = ask(watched.servers[1].port(), &["KEYS", "{p}:h:after"]).await;
    assert_eq!(keys.len(), 1);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn any_sentinel_may_be_dead_and_what_they_do_not_know_is_told() {
    let watched = redis_sentinel::start(&[], &[]).unwrap();
    let hosts: Vec<String> = watched.sentinels.iter().map(|it| format!("127.0.0.1:{}", it.port())).collect();
    let dead = Dead::new();
    let dead = dead.url().trim_start_matches("redis://").to_owned();
    let works = async |url: &str| {
        let locks = Locks::connect(url).await.unwrap();
        locks.lock("any").acquire().await.unwrap().release().await.unwrap();
    };
    works(&format!("redis+sentinel://{dead},{}/orders", hosts[0])).await;
    works(&format!("redis-sentinel://{},{dead}/3?sentinelMasterId=orders", hosts[1])).await;
    // One that never replies does not take the time of the others.
    block_in_place(|| watched.sentinels[2].freeze());
    works(&url(&watched)).await;
    let (fault, text, took) = timed_refusal(&format!("redis+sentinel://{}/orders", hosts[2])).await;
    assert!(fault == Some(Fault::Temporary) && text.contains("orders by 127.0.0.1"), "{text}");
    assert!(took < Duration::from_secs(3), "{took:?}");
    block_in_place(|| watched.sentinels[2].thaw());

    let (fault, text) = refusal(&format!("redis+sentinel://{}/others", hosts.join(","))).await;
    assert!(
        fault == Some(Fault::Permanent) && text.contains("a primary called \"others\""),
        "{fault:?}: {text}"
    );
    let (fault, text) = refusal(&format!("redis+sentinel://{dead},{}/others", hosts[0])).await;
    assert!(
        fault == Some(Fault::Temporary) && text.contains("a primary called \"others\""),
        "{fault:?}: {text}"
    );
    let (fault, text) = refusal(&format!("redis+sentinel://{dead}/orders")).await;
    assert!(fault == Some(Fault::Temporary) && text.contains("can't be reached"), "{fault:?}: {text}");
    let (fault, text) = refusal(&format!("redis://{}", hosts[0])).await;
    assert!(fault == Some(Fault::Permanent) && text.contains("redis+sentinel://"), "{fault:?}: {text}");

    // A Sentinel with a password of its own.
    let port = watched.sentinels[0].port();
    ask::<()>(port, &["ACL", "SETUSER", "watcher", "on", ">canary", "allcommands"]).await;
    ask::<()>(port, &["ACL", "SETUSER", "default", "off"]).await;
    let alone = format!("redis+sentinel://{}/orders", hosts[0]);
    let (fault, text) = refusal(&alone).await;
    assert!(fault == Some(Fault::Denied) && text.contains("sentinel_password"), "{fault:?}: {text}");
    works(&format!("{alone}?sentinel_username=watcher&sentinel_password=canary")).await;
}

/// A Sentinel that has not noticed a failover names the former primary, which is a replica now.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_no_primary_any_more_is_not_used() {
    let watched = redis_sentinel::start(&[], &[]).unwrap();
    // Both servers are replicas for the moment, so every name is wrong.
    let port = watched.servers[1].port().to_string();
    ask::<()>(watched.servers[0].port(), &["REPLICAOF", "127.0.0.1", &port]).await;
    let (fault, text) = refusal(&url(&watched)).await;
    assert!(fault == Some(Fault::Temporary) && text.contains("this is a replica now"), "{fault:?}: {text}");
}
