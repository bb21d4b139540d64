//! Settings of a server that break locks, and settings that do not.

use std::time::Duration;

use polylock::{Error, Fault, Locks};
use polylock_integration_tests::{
    clock,
    servers::{redis, valkey},
};

use super::{Namespace, command, describe, refusal, use_all_operations};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_may_evict_locks_is_refused_unless_allowed() {
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let server = redis::start(&["maxmemory 100mb", &format!("maxmemory-policy {policy}")]).unwrap();
        let url = Namespace::on(&server).await.url;
        let (fault, text) = refusal(&url).await;
        assert_eq!(fault, Some(Fault::Permanent));
        assert!(text.contains(policy) && text.contains("polylock.allow=eviction"), "{text}");
        use_all_operations(&format!("{url}&polylock.allow=eviction")).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_refused() {
    for start in [redis::start, valkey::start] {
        let primary = start(&[]).unwrap();
        let replica = start(&[&format!("replicaof 127.0.0.1 {}", primary.port())]).unwrap();
        let (fault, text) = refusal(replica.url()).await;
        let address = format!("connect to the primary, which is 127.0.0.1:{}", primary.port());
        assert!(fault == Some(Fault::Temporary) && text.contains(&address), "{text}");
        // The next command detects that a primary has become a replica.
        let (namespace, other) = (Namespace::on(&primary).await, Namespace::on(&replica).await);
        let locks = namespace.locks().await;
        locks.lock("a").acquire().await.unwrap().release().await.unwrap();
        other.query::<()>(&command("REPLICAOF NO ONE")).await;
        namespace.query::<()>(&command(&format!("REPLICAOF 127.0.0.1 {}", replica.port()))).await;
        let (fault, text) = describe(&locks.lock("a").try_acquire().await.unwrap_err());
        assert!(text.contains("replica"), "{fault:?}: {text}");
        use_all_operations(&other.url).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_is_refused_with_the_name_of_the_primary() {
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
async fn a_node_of_a_cluster_is_refused_unless_allowed() {
    for start in [redis::start, valkey::start] {
        let server = start(&["cluster-enabled yes"]).unwrap();
        let namespace = Namespace::on(&server).await;
        let (fault, text) = refusal(&namespace.url).await;
        assert!(fault == Some(Fault::Permanent) && text.contains("redis-cluster://"), "{text}");
        assert!(text.contains("polylock.allow=cluster"), "{text}");

        let url = format!("{}&polylock.allow=cluster", namespace.url);
        let locks = Locks::connect(&url).await.unwrap();
        let (fault, text) = describe(&locks.lock("a").try_acquire().await.unwrap_err());
        println!("without slots: {fault:?}: {text}");
        assert!(text.contains("no node that serves it"), "{text}");

        namespace.query::<()>(&command("CLUSTER ADDSLOTSRANGE 0 16383")).await;
        clock::until("it serves", async || locks.lock("a").try_acquire().await.is_ok()).await;
        use_all_operations(&url).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_reports_that_and_keeps_its_locks() {
    const TTL: Duration = Duration::from_secs(6);
    let server = redis::start(&[]).unwrap();
    let namespace = Namespace::on(&server).await;
    let locks = namespace.locks().await;
    let guard = locks.lock("held").ttl(TTL).acquire().await.unwrap();
    let other = locks.lock("other").acquire().await.unwrap();
    namespace.query::<()>(&command("CONFIG SET maxmemory 1")).await;
    let (fault, text) = describe(&locks.lock("new").try_acquire().await.unwrap_err());
    assert!(fault == Some(Fault::Temporary) && text.contains("out of memory"), "{fault:?}: {text}");
    // Other clients can open the store, to inspect or break a lock.
    let admin = namespace.locks().await;
    assert_eq!(admin.list("").await.unwrap().len(), 2);
    other.release().await.unwrap();
    assert!(guard.renewed().await.is_some(), "what is held can be renewed");

    let waiting = tokio::spawn(locks.lock("new").acquire());
    guard.release().await.unwrap();
    namespace.query::<()>(&command("CONFIG SET maxmemory 0")).await;
    waiting.await.unwrap().unwrap().release().await.unwrap();
    namespace.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_database_and_each_prefix_has_its_own_locks() {
    let server = redis::start(&[]).unwrap();
    let mut guards = Vec::new();
    for path in ["/0", "/1", "/1?polylock.namespace=other", "/15?polylock.namespace=a:b/c"] {
        let locks = Locks::connect(&format!("{}{path}", server.url())).await.unwrap();
        guards.push(locks.lock("a").try_acquire().await.unwrap().expect("it is free"));
        assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    }
    // The setting is wrong, and not the server: the exit code of the command line differs.
    let url = format!("{}/99", server.url());
    let Err(Error::Config(error)) = Locks::connect(&url).await else {
        panic!("it is not a configuration error")
    };
    assert!(error.key == "store" && error.problem.contains("/99"), "{error}");
    let many = format!(
        "redlock://{}/99",
        [server.url(), "a:1", "b:1"].map(|url| url.trim_start_matches("redis://")).join(",")
    );
    let Err(Error::Config(error)) = Locks::connect(&many).await else {
        panic!("it is not a configuration error")
    };
    assert!(error.problem.contains("/99"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_temporary_fault_is_reported_with_its_cause() {
    let server = redis::start(&["maxclients 8"]).unwrap();
    let namespace = Namespace::on(&server).await;
    let locks = namespace.locks().await;
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
    let refused = async |word: &str| {
        let (fault, text) = describe(&locks.lock("a").try_acquire().await.unwrap_err());
        assert!(fault == Some(Fault::Temporary) && text.contains(word), "{fault:?}: {text}");
    };

    namespace.query::<()>(&command("CONFIG SET min-replicas-to-write 1")).await;
    refused("too few replicas").await;
    namespace.query::<()>(&command("CONFIG SET min-replicas-to-write 0")).await;

    namespace.query::<()>(&command("CONFIG SET busy-reply-threshold 1")).await;
    let mut endless_script = super::connect(server.url()).await;
    let endless_script = tokio::spawn(async move {
        let mut script = command("EVAL");
        script.arg("while true do end").arg(0).exec_async(&mut endless_script).await
    });
    clock::until("the script runs", async || {
        locks.lock("a").try_acquire().await.is_err_and(|error| describe(&error).1.contains("SCRIPT KILL"))
    })
    .await;
    refused("SCRIPT KILL").await;
    let (fault, text) = refusal(&namespace.url).await;
    assert!(fault == Some(Fault::Temporary) && text.contains("SCRIPT KILL"), "{fault:?}: {text}");
    namespace.query::<()>(&command("SCRIPT KILL")).await;
    assert!(endless_script.await.unwrap().is_err());
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();

    let mut more = Vec::new();
    let error = loop {
        while let Ok(connection) = redis::connect(server.url()).await {
            more.push(connection);
        }
        match Locks::builder(&namespace.url).outage(Duration::ZERO).connect().await {
            // A connection from above has ended in the meantime.
            Ok(locks) => drop(locks),
            Err(error) => break error,
        }
    };
    let (fault, text) = describe(&error);
    // The reset may overtake the server's error message.
    let names_limit = text.contains("maxclients");
    assert!(fault == Some(Fault::Temporary) && names_limit, "{fault:?}: {text}");
    drop(more);
    clock::until("there is room again", async || Locks::connect(&namespace.url).await.is_ok()).await;
}
