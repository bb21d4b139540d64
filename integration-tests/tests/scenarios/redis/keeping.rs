//! Keeping holds and queue entries alive: in one message, without a claim, and on a server that is out of memory.

use std::{sync::Arc, time::Duration};

use polylock_core::{Backend, ClaimOutcome, KeepAlive, LockName, LostReason, Mode, Request, io};
use polylock_integration_tests::{clock::pause, servers::redis};
use polylock_redis::single::{Config, connect};

use super::{Namespace, command};

const IS_HELD: fn(&KeepAlive) -> bool = |outcome| matches!(outcome, KeepAlive::Held { .. });

fn request(name: &str, ttl: Duration) -> Arc<Request> {
    Arc::new(Request::new(LockName::new(name).unwrap(), Mode::Exclusive, ttl))
}

/// Returns the store, and the requests of a hold and of a waiter behind it.
async fn hold_with_waiter(namespace: &Namespace, ttl: Duration) -> (Arc<dyn Backend>, [Arc<Request>; 2]) {
    let store = connect(Config::new(&namespace.url).unwrap()).await.unwrap();
    let (backend, pair) = (store.backend, [request("n", ttl), request("n", ttl)]);
    let (on_thread, [holder, waiter]) = (backend.clone(), pair.clone());
    io::run("redis", async move {
        assert!(matches!(on_thread.claim(&holder).await.unwrap(), ClaimOutcome::Granted(_)));
        assert!(matches!(on_thread.claim(&waiter).await.unwrap(), ClaimOutcome::Queued(_)));
    })
    .await
    .unwrap();
    (backend, pair)
}

async fn keep_alive(backend: &Arc<dyn Backend>, requests: &[Arc<Request>]) -> Vec<KeepAlive> {
    let (backend, requests) = (backend.clone(), requests.to_vec());
    io::run("redis", async move { backend.keep_alive(&requests).await.unwrap() }).await.unwrap()
}

async fn release(backend: &Arc<dyn Backend>, requests: &[Arc<Request>]) {
    for request in requests {
        let (backend, request) = (backend.clone(), request.clone());
        io::run("redis", async move { backend.release(&request).await.unwrap() }).await.unwrap();
    }
}

/// Every key expires by itself, a second after the last entry in it. No claim extends them here.
#[tokio::test(flavor = "multi_thread")]
async fn entries_outlive_the_first_expiry_of_their_keys_without_a_claim() {
    const TTL: Duration = Duration::from_secs(3);
    let server = redis::start(&[]).unwrap();
    let namespace = Namespace::on(&server).await;
    let (backend, pair) = hold_with_waiter(&namespace, TTL).await;
    for _ in 0..8 {
        pause(TTL / 4).await;
        let outcomes = keep_alive(&backend, &pair).await;
        assert!(
            matches!(outcomes[..], [KeepAlive::Held { lease: TTL, .. }, KeepAlive::Queued]),
            "{outcomes:?}"
        );
    }
    for key in ["h:n", "q:n", "w:n"] {
        let left: i64 = namespace.query(command("PTTL").arg(namespace.key(key))).await;
        assert!(left > 1000, "{key} expires in {left} ms");
    }
    release(&backend, &[pair[1].clone(), pair[0].clone()]).await;
    namespace.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_has_expired_is_not_revived() {
    const TTL: Duration = Duration::from_millis(1500);
    let server = redis::start(&[]).unwrap();
    let namespace = Namespace::on(&server).await;
    let (backend, pair) = hold_with_waiter(&namespace, TTL).await;
    pause(TTL + TTL / 4).await;
    let gone = || KeepAlive::Lost(LostReason::Gone);
    assert_eq!(keep_alive(&backend, &pair).await, [gone(), gone()]);
    release(&backend, &pair).await;
    namespace.assert_clean().await;
}

/// The second lock of a batch is extended even if nothing was stored for the first one.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_keeps_holds_and_queue_entries_alive() {
    const TTL: Duration = Duration::from_secs(20);
    let server = redis::start(&[]).unwrap();
    let namespace = Namespace::on(&server).await;
    let (backend, [holder, waiter]) = hold_with_waiter(&namespace, TTL).await;
    namespace.query::<()>(&command("CONFIG SET maxmemory 1")).await;
    let outcomes =
        keep_alive(&backend, &[request("other", TTL), waiter.clone(), holder.clone(), waiter.clone()]).await;
    assert!(IS_HELD(&outcomes[2]) && outcomes[0] == KeepAlive::Lost(LostReason::Gone), "{outcomes:?}");
    assert_eq!([&outcomes[1], &outcomes[3]], [&KeepAlive::Queued; 2]);
    namespace.query::<()>(&command("CONFIG SET maxmemory 0")).await;
    release(&backend, &[waiter, holder]).await;
    namespace.assert_clean().await;
}

/// The number of messages is the number of batches, even for ten thousand requests.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_batch_is_one_message() {
    const TTL: Duration = Duration::from_secs(60);
    let server = redis::start(&[]).unwrap();
    let namespace = Namespace::on(&server).await;
    let store = connect(Config::new(&namespace.url).unwrap()).await.unwrap();
    let (backend, size) = (store.backend.clone(), store.backend.capabilities().keep_alive_batch);
    assert_eq!(size, 256);
    let requests: Vec<_> = (0..size).map(|number| request(&format!("lock-{number}"), TTL)).collect();
    let (on_thread, all) = (backend.clone(), requests.clone());
    io::run("redis", async move {
        for request in &all {
            on_thread.claim(request).await.unwrap();
        }
    })
    .await
    .unwrap();
    // The first keep-alive loads the script.
    keep_alive(&backend, &requests[..1]).await;
    let before = namespace.script_count().await;
    let outcomes = keep_alive(&backend, &requests).await;
    assert!(outcomes.iter().all(IS_HELD) && outcomes.len() == size, "{outcomes:?}");
    assert_eq!(namespace.script_count().await - before, 1);
    release(&backend, &requests).await;
    namespace.assert_clean().await;
}
