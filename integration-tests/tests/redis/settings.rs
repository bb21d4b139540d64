//! Settings of a server that break locks, and those that don't.

use std::time::Duration;

use polylock::{Error, Fault, Locks};
use polylock_integration_tests::{
    clock,
    servers::{redis, valkey},
};

use crate::{Spot, command, everything_works, refusal, told};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_may_evict_locks_is_refused_unless_that_is_accepted() {
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let server = redis::start(&["maxmemory 100mb", &format!("maxmemory-policy {policy}")]).unwrap();
        let url = Spot::of(&server).await.url;
        let (fault, text) = refusal(&url).await;
        assert_eq!(fault, Some(Fault::Permanent));
        assert!(text.contains(policy) && text.contains("polylock.allow=eviction"), "{text}");
        everything_works(&format!("{url}&polylock.allow=eviction")).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_refused() {
    for start in [redis::start, valkey::start] {
        let primary = start(&[]).unwrap();
        let replica = start(&[&format!("replicaof 127.0.0.1 {}", primary.port())]).unwrap();
        let (fault, text) = refusal(replica.url()).await;
        let address = format!("connect to the primary, which is 127.0.0.1:{}", primary.port());
        assert!(fault == Some(Fault::Permanent) && text.contains(&address), "{text}");
        // A primary that is made a replica is found out by the next command.
        let (spot, other) = (Spot::of(&primary).await, Spot::of(&replica).await);
        let locks = spot.locks().await;
        locks.lock("a").acquire().await.unwrap().release().await.unwrap();
        other.ask::<()>(&command("REPLICAOF NO ONE")).await;
        spot.ask::<()>(&command(&format!("REPLICAOF 127.0.0.1 {}", replica.port()))).await;
        let (fault, text) = told(&locks.lock("a").try_acquire().await.unwrap_err());
        assert!(text.contains("replica"), "{fault:?}: {text}");
        everything_works(&other.url).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_is_refused_and_names_the_primary() {
    let primary = redis::start(&[]).unwrap();
    let sentinel = redis::start_sentinel(primary.port()).unwrap();
    let address = format!("orders is 127.0.0.1:{}", primary.port());
    let others = format!("{0},{0}", format_args!("127.0.0.1:{}", primary.port()));
    let host = sentinel.url().trim_start_matches("redis://");
    for url in [
        sentinel.url().to_owned(),
        format!("redlock://{host},{}", others.replacen("127.0.0.1", "localhost", 1)),
    ] {
        let (fault, text) = refusal(&url).await;
        assert!(fault == Some(Fault::Permanent) && text.contains("this is a Sentinel"), "{fault:?}: {text}");
        assert!(text.contains(&address), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_a_cluster_is_refused_unless_that_is_accepted_and_then_all_works() {
    for start in [redis::start, valkey::start] {
        let server = start(&["cluster-enabled yes"]).unwrap();
        let spot = Spot::of(&server).await;
        let (fault, text) = refusal(&spot.url).await;
        assert!(fault == Some(Fault::Permanent) && text.contains("redis-cluster://"), "{text}");
        assert!(text.contains("polylock.allow=cluster"), "{text}");

        let url = format!("{}&polylock.allow=cluster", spot.url);
        let locks = Locks::connect(&url).await.unwrap();
        let (fault, text) = told(&locks.lock("a").try_acquire().await.unwrap_err());
        println!("without slots: {fault:?}: {text}");
        assert!(text.contains("no node that serves it"), "{text}");

        spot.ask::<()>(&command("CLUSTER ADDSLOTSRANGE 0 16383")).await;
        clock::until("it serves", async || locks.lock("a").try_acquire().await.is_ok()).await;
        everything_works(&url).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_full_says_so_and_keeps_what_it_has() {
    const TTL: Duration = Duration::from_secs(1);
    let server = redis::start(&[]).unwrap();
    let spot = Spot::of(&server).await;
    let locks = spot.locks().await;
    let guard = locks.lock("held").ttl(TTL).acquire().await.unwrap();
    let other = locks.lock("other").acquire().await.unwrap();
    spot.ask::<()>(&command("CONFIG SET maxmemory 1")).await;
    let (fault, text) = told(&locks.lock("new").try_acquire().await.unwrap_err());
    assert!(fault == Some(Fault::Temporary) && text.contains("out of memory"), "{fault:?}: {text}");
    // Others can open it, to look or to break a lock.
    let admin = spot.locks().await;
    assert_eq!(admin.list("").await.unwrap().len(), 2);
    other.release().await.unwrap();
    assert!(guard.renewed().await.is_some(), "what is held can be renewed");

    let waiting = tokio::spawn(locks.lock("new").acquire());
    guard.release().await.unwrap();
    spot.ask::<()>(&command("CONFIG SET maxmemory 0")).await;
    waiting.await.unwrap().unwrap().release().await.unwrap();
    spot.is_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_database_and_each_prefix_has_locks_of_its_own() {
    let server = redis::start(&[]).unwrap();
    let mut guards = Vec::new();
    for place in ["/0", "/1", "/1?polylock.prefix=other", "/15?polylock.prefix=a:b/c"] {
        let locks = Locks::connect(&format!("{}{place}", server.url())).await.unwrap();
        guards.push(locks.lock("a").try_acquire().await.unwrap().expect("nobody else has it"));
        assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    }
    // The setting is wrong, and not the server: the command line tells them apart by its exit code.
    let url = format!("{}/99", server.url());
    let Err(Error::Config(error)) = Locks::connect(&url).await else { panic!("it is no setting") };
    assert!(error.key == "store" && error.problem.contains("/99"), "{error}");
    let many = format!(
        "redlock://{}/99",
        [server.url(), "a:1", "b:1"].map(|url| url.trim_start_matches("redis://")).join(",")
    );
    let Err(Error::Config(error)) = Locks::connect(&many).await else { panic!("it is no setting") };
    assert!(error.problem.contains("/99"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_can_do_nothing_for_the_moment_says_why() {
    let server = redis::start(&["maxclients 8"]).unwrap();
    let spot = Spot::of(&server).await;
    let locks = spot.locks().await;
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
    let refused = async |word: &str| {
        let (fault, text) = told(&locks.lock("a").try_acquire().await.unwrap_err());
        assert!(fault == Some(Fault::Temporary) && text.contains(word), "{fault:?}: {text}");
    };

    spot.ask::<()>(&command("CONFIG SET min-replicas-to-write 1")).await;
    refused("too few replicas").await;
    spot.ask::<()>(&command("CONFIG SET min-replicas-to-write 0")).await;

    spot.ask::<()>(&command("CONFIG SET busy-reply-threshold 1")).await;
    let mut endless = crate::raw(server.url()).await;
    let endless = tokio::spawn(async move {
        let mut script = command("EVAL");
        script.arg("while true do end").arg(0).exec_async(&mut endless).await
    });
    clock::until("the script runs", async || {
        locks.lock("a").try_acquire().await.is_err_and(|error| told(&error).1.contains("SCRIPT KILL"))
    })
    .await;
    refused("SCRIPT KILL").await;
    let (fault, text) = refusal(&spot.url).await;
    assert!(fault == Some(Fault::Temporary) && text.contains("SCRIPT KILL"), "{fault:?}: {text}");
    spot.ask::<()>(&command("SCRIPT KILL")).await;
    assert!(endless.await.unwrap().is_err());
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();

    let mut more = Vec::new();
    while let Ok(connection) = crate::try_raw(server.url()).await {
        more.push(connection);
    }
    let (fault, text) = refusal(&spot.url).await;
    // The reset behind the server's words may overtake them.
    let told = text.contains("maxclients");
    assert!(fault == Some(Fault::Temporary) && told, "{fault:?}: {text}");
    drop(more);
    clock::until("there is room again", async || Locks::connect(&spot.url).await.is_ok()).await;
}
