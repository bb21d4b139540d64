//! The primary that Sentinels name: failovers, dead Sentinels, and unknown primaries.

use std::{process::Command, time::Duration};

use polylock::{Fault, Locks};
use polylock_integration_tests::{
    cargo, clock,
    load::Load,
    refusals::{refusal, timed_refusal},
    servers::{
        PrivateServer, redis,
        redis_sentinel::{self, Watched},
        redlock::Dead,
    },
};
use polylock_testkit::history;
use tokio::task::block_in_place;

const TTL: Duration = Duration::from_secs(10);

fn url(watched: &Watched) -> String {
    format!("{}?polylock.namespace=p", watched.url())
}

async fn try_query<T: ::redis::FromRedisValue>(port: u16, command: &[&str]) -> ::redis::RedisResult<T> {
    let client = ::redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    ::redis::cmd(command[0]).arg(&command[1..]).query_async(&mut connection).await
}

async fn query<T: ::redis::FromRedisValue>(port: u16, command: &[&str]) -> T {
    try_query(port, command).await.unwrap()
}

/// Waits until the Sentinels have made this server the primary.
async fn wait_for_primary(watched: &Watched, server: usize) {
    let port = watched.servers[server].port();
    clock::until("a failover", async || watched.primary().await == Some(port)).await;
}

/// Cut off from the others, such a primary grants locks that the next one grants, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_accepts_writes_without_replicas_causes_a_warning() {
    let warns = |settings: &[&str]| {
        let watched = redis_sentinel::start(settings, &[]).unwrap();
        let mut polylock = Command::new(cargo::polylock());
        let output = polylock.args(["-S", &url(&watched), "status", "n"]).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        println!("{settings:?}: {text}");
        text.contains("min-replicas-to-write or min-replicas-max-lag is 0")
    };
    assert!(block_in_place(|| warns(&[])));
    assert!(!block_in_place(|| warns(&["min-replicas-to-write 1"])));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_is_followed_by_holders_and_waiters_and_tokens_grow() {
    let watched = redis_sentinel::start(&[], &[]).unwrap();
    let url = url(&watched);
    let (locks, others) = (Locks::connect(&url).await.unwrap(), Locks::connect(&url).await.unwrap());
    let guard = locks.lock("kept").ttl(TTL).acquire().await.unwrap();
    let waiting = tokio::spawn(others.lock("kept").acquire());
    clock::until("one waits", async || locks.inspect("kept").await.unwrap().waiters.len() == 1).await;
    // The replica has received the hold and the queue entry.
    assert_eq!(query::<i64>(watched.servers[0].port(), &["WAIT", "1", "5000"]).await, 1);
    block_in_place(|| watched.servers[0].kill());
    wait_for_primary(&watched, 1).await;
    let deadline = guard.deadline();
    clock::until("it is renewed there", async || !guard.is_held() || guard.deadline() > deadline).await;
    guard.ensure_held().unwrap();
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    let next = tokio::time::timeout(TTL, waiting).await.unwrap().unwrap().unwrap();
    assert!(next.fencing_token() > token);
    next.release().await.unwrap();
    // A new client finds the new primary.
    let guard = Locks::connect(&url).await.unwrap().lock("kept").acquire().await.unwrap();
    guard.release().await.unwrap();
}

/// A frozen primary is replaced, and becomes a replica after the thaw. Commands that it receives then have no effect.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_primary_is_replaced_under_load() {
    let watched = redis_sentinel::start(&[], &[]).unwrap();
    let load = Load {
        stores: 2,
        tasks: 2,
        duration: Duration::from_secs(4),
        wait: 3 * TTL,
        readers: false,
        ..Load::default()
    };
    let fault = async {
        clock::pause(Duration::from_millis(300)).await;
        block_in_place(|| watched.servers[0].freeze());
        wait_for_primary(&watched, 1).await;
        block_in_place(|| watched.servers[0].thaw());
    };
    let outcome = load.run(&url(&watched), fault).await;
    println!("{} sections, {} losses", outcome.sections.len(), outcome.losses);
    assert_eq!(outcome.failures, 0);
    assert_eq!(history::token_regressions(&outcome.sections), []);
    assert_eq!(history::repeated_tokens(&outcome.sections), []);
    // The Sentinels make the former primary a replica.
    clock::until("it is a replica", async || {
        // The Sentinels close its connections.
        let roles = try_query::<String>(watched.servers[0].port(), &["INFO", "replication"]).await;
        roles.is_ok_and(|roles| roles.contains("role:slave"))
    })
    .await;
    let locks = Locks::connect(&url(&watched)).await.unwrap();
    let guard = locks.lock("after").acquire().await.unwrap();
    let keys: Vec<String> = query(watched.servers[1].port(), &["KEYS", "{p}:h:after"]).await;
    assert_eq!(keys.len(), 1);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn some_sentinels_may_be_dead_and_unknown_names_are_reported() {
    let watched = redis_sentinel::start(&[], &[]).unwrap();
    let hosts: Vec<String> = watched.sentinels.iter().map(|it| format!("127.0.0.1:{}", it.port())).collect();
    let dead = Dead::new();
    let dead = dead.url().trim_start_matches("redis://").to_owned();
    let assert_usable = async |url: &str| {
        let locks = Locks::connect(url).await.unwrap();
        locks.lock("any").acquire().await.unwrap().release().await.unwrap();
    };
    assert_usable(&format!("redis+sentinel://{dead},{}/orders", hosts[0])).await;
    assert_usable(&format!("redis-sentinel://{},{dead}/3?sentinelMasterId=orders", hosts[1])).await;
    // A Sentinel that never replies does not delay the others.
    block_in_place(|| watched.sentinels[2].freeze());
    assert_usable(&url(&watched)).await;
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

    // A Sentinel with its own password.
    let port = watched.sentinels[0].port();
    query::<()>(port, &["ACL", "SETUSER", "watcher", "on", ">canary", "allcommands"]).await;
    query::<()>(port, &["ACL", "SETUSER", "default", "off"]).await;
    let alone = format!("redis+sentinel://{}/orders", hosts[0]);
    let (fault, text) = refusal(&alone).await;
    assert!(fault == Some(Fault::Denied) && text.contains("sentinel_password"), "{fault:?}: {text}");
    assert_usable(&format!("{alone}?sentinel_username=watcher&sentinel_password=canary")).await;
}

/// A Sentinel that has not noticed a failover names the former primary, which is a replica now.
#[tokio::test(flavor = "multi_thread")]
async fn a_former_primary_is_not_used() {
    let watched = redis_sentinel::start(&[], &[]).unwrap();
    // Both servers are temporarily replicas, so no server is a primary.
    let port = watched.servers[1].port().to_string();
    query::<()>(watched.servers[0].port(), &["REPLICAOF", "127.0.0.1", &port]).await;
    let (fault, text) = refusal(&url(&watched)).await;
    assert!(fault == Some(Fault::Temporary) && text.contains("this is a replica now"), "{fault:?}: {text}");
}

/// The primary after a failover is encrypted, too, and its certificate is checked with the same authority.
#[tokio::test(flavor = "multi_thread")]
async fn an_encrypted_primary_requires_the_right_authority() {
    let (watched, other) = (redis_sentinel::start_tls(&[], &[]).unwrap(), redis::start_tls(&[]).unwrap());
    let url_with_authority = |server: &PrivateServer| {
        format!("{}&polylock.tls_ca={}", url(&watched), server.directory().join("ca.crt").display())
    };
    let url_of_all = url_with_authority(&watched.sentinels[0]);
    let stores = [Locks::connect(&url_of_all).await.unwrap(), Locks::connect(&url_of_all).await.unwrap()];
    let guard = stores[0].lock("kept").ttl(TTL).acquire().await.unwrap();
    assert!(stores[1].lock("kept").try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn(stores[1].lock("kept").acquire());
    clock::until("one waits", async || stores[0].inspect("kept").await.unwrap().waiters.len() == 1).await;
    let primary = redis::client(&watched.servers[0]).unwrap();
    let mut primary = primary.get_multiplexed_async_connection().await.unwrap();
    let replicated: i64 = ::redis::cmd("WAIT").arg(1).arg(5000).query_async(&mut primary).await.unwrap();
    assert_eq!(replicated, 1);
    block_in_place(|| watched.servers[0].kill());
    wait_for_primary(&watched, 1).await;
    let deadline = guard.deadline();
    clock::until("it is renewed there", async || !guard.is_held() || guard.deadline() > deadline).await;
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    let next = tokio::time::timeout(TTL, waiting).await.unwrap().unwrap().unwrap();
    assert!(next.fencing_token() > token);
    next.release().await.unwrap();

    for url in [url(&watched), url_with_authority(&other)] {
        let (fault, text) = refusal(&url).await;
        assert!(fault == Some(Fault::Permanent) && text.contains("polylock.tls_ca"), "{fault:?}: {text}");
    }
    let (fault, text) = refusal(&url(&watched).replace("rediss+", "redis+")).await;
    assert!(
        fault == Some(Fault::Temporary) && text.contains("write rediss+sentinel://"),
        "{fault:?}: {text}"
    );
    let plain = redis::start(&[]).unwrap();
    let (fault, text) =
        refusal(&format!("{}/orders", plain.url().replace("redis:", "rediss+sentinel:"))).await;
    assert!(fault == Some(Fault::Temporary) && text.contains("write redis+sentinel://"), "{fault:?}: {text}");
}
