//! Keeping holds and queue entries alive: in one message, without a claim, and on a server that is out of memory.

use std::{sync::Arc, time::Duration};

use polylock_core::{Backend, KeepAlive, LockName, LostReason, Mode, Request, Standing, io};
use polylock_integration_tests::{clock::pause, servers::redis};
use polylock_redis::single::{Config, connect};

use crate::{Spot, command};

const HELD: fn(&KeepAlive) -> bool = |outcome| matches!(outcome, KeepAlive::Held { .. });

fn request(name: &str, ttl: Duration) -> Arc<Request> {
    Arc::new(Request::new(LockName::new(name).unwrap(), Mode::Exclusive, ttl))
}

/// The store, and a hold with a waiter behind it.
async fn held_and_queued(spot: &Spot, ttl: Duration) -> (Arc<dyn Backend>, [Arc<Request>; 2]) {
    let store = connect(Config::new(&spot.url).unwrap()).await.unwrap();
    let (backend, pair) = (store.backend, [request("n", ttl), request("n", ttl)]);
    let (on_thread, [holder, waiter]) = (backend.clone(), pair.clone());
    io::run("redis", async move {
        assert!(matches!(on_thread.claim(&holder).await.unwrap(), Standing::Held(_)));
        assert!(matches!(on_thread.claim(&waiter).await.unwrap(), Standing::Queued(_)));
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
    const TTL: Duration = Duration::from_millis(400);
    let server = redis::start(&[]).unwrap();
    let spot = Spot::of(&server).await;
    let (backend, pair) = held_and_queued(&spot, TTL).await;
    for _ in 0..16 {
        pause(TTL / 4).await;
        let outcomes = keep_alive(&backend, &pair).await;
        assert_eq!(outcomes, [KeepAlive::Held { lease: TTL }, KeepAlive::Queued]);
    }
    for key in ["h:n", "q:n", "w:n"] {
        let left: i64 = spot.ask(command("PTTL").arg(spot.key(key))).await;
        assert!(left > 1000, "{key} expires in {left} ms");
    }
    release(&backend, &[pair[1].clone(), pair[0].clone()]).await;
    spot.is_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_has_expired_is_not_revived() {
    const TTL: Duration = Duration::from_millis(200);
    let server = redis::start(&[]).unwrap();
    let spot = Spot::of(&server).await;
    let (backend, pair) = held_and_queued(&spot, TTL).await;
    pause(TTL + TTL / 4).await;
    let gone = || KeepAlive::Lost(LostReason::Gone);
    assert_eq!(keep_alive(&backend, &pair).await, [gone(), gone()]);
    release(&backend, &pair).await;
    spot.is_clean().await;
}

/// The second lock of a batch is extended, too, though nothing was stored for the first one.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_full_keeps_holds_and_queue_entries_alive() {
    const TTL: Duration = Duration::from_secs(2);
    let server = redis::start(&[]).unwrap();
    let spot = Spot::of(&server).await;
    let (backend, [holder, waiter]) = held_and_queued(&spot, TTL).await;
    spot.ask::<()>(&command("CONFIG SET maxmemory 1")).await;
    let outcomes =
        keep_alive(&backend, &[request("other", TTL), waiter.clone(), holder.clone(), waiter.clone()]).await;
    assert!(HELD(&outcomes[2]) && outcomes[0] == KeepAlive::Lost(LostReason::Gone), "{outcomes:?}");
    assert_eq!([&outcomes[1], &outcomes[3]], [&KeepAlive::Queued; 2]);
    spot.ask::<()>(&command("CONFIG SET maxmemory 0")).await;
    release(&backend, &[waiter, holder]).await;
    spot.is_clean().await;
}

/// The leases of ten thousand requests cost as many messages as batches.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_one_message_whatever_its_size() {
    const TTL: Duration = Duration::from_secs(60);
    let server = redis::start(&[]).unwrap();
    let spot = Spot::of(&server).await;
    let store = connect(Config::new(&spot.url).unwrap()).await.unwrap();
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
    // The first one sends the script.
    keep_alive(&backend, &requests[..1]).await;
    let before = spot.scripts_run().await;
    let outcomes = keep_alive(&backend, &requests).await;
    assert!(outcomes.iter().all(HELD) && outcomes.len() == size, "{outcomes:?}");
    assert_eq!(spot.scripts_run().await - before, 1);
    release(&backend, &requests).await;
    spot.is_clean().await;
}
