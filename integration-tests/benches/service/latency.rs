//! The store itself, and the same store through a server, in turn.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{clock::now, stores::wait_for_waiters};
use serde_json::{Value, json};

use crate::server::Server;

const PAIRS: usize = 2_000;
const HAND_OVERS: usize = 200;

/// Measures pairs of acquisition and release, or hand-overs.
pub(crate) async fn measure(store: &str, server: &Server, hand_over: bool) -> Value {
    let direct = Locks::connect(store).await.unwrap();
    let through = Locks::connect(&format!("polylock+http://{}", server.address)).await.unwrap();
    let (mut own, mut service) = (Vec::new(), Vec::new());
    for _ in 0..if hand_over { HAND_OVERS } else { PAIRS } {
        if hand_over {
            own.push(hand_over_of(&direct).await);
            service.push(hand_over_of_streams(server, &direct).await);
        } else {
            own.push(pair(&direct).await);
            service.push(pair(&through).await);
        }
    }
    let (own, service) = (quantiles(own), quantiles(service));
    let scheme = store.split(':').next().unwrap_or_default();
    json!({
        "measured": if hand_over { "hand-over" } else { "overhead" }, "store": scheme, "store_ms": own, "service_ms": service,
        "more_p50_ms": service[0] - own[0], "ratio_p50": service[0] / own[0],
    })
}

async fn pair(locks: &Locks) -> Duration {
    let begin = now();
    locks.lock("pair").acquire().await.unwrap().release().await.unwrap();
    now().since(begin)
}

async fn hand_over_of(locks: &Locks) -> Duration {
    let guard = locks.lock("direct").acquire().await.unwrap();
    let acquiring = locks.lock("direct").acquire();
    let waiter = tokio::spawn(async move {
        let guard = acquiring.await.unwrap();
        (now(), guard)
    });
    wait_for_waiters(locks, "direct", 1).await;
    let begin = now();
    guard.release().await.unwrap();
    let (granted, guard) = waiter.await.unwrap();
    guard.release().await.unwrap();
    granted.since(begin)
}

/// A client releases the lock of its stream, and another stream is granted it.
async fn hand_over_of_streams(server: &Server, direct: &Locks) -> Duration {
    let mut holder = server.open("POST", "/v1/locks/stream", "").await;
    let (_, granted) = holder.until("granted").await;
    let mut waiter = server.open("POST", "/v1/locks/stream", "").await;
    wait_for_waiters(direct, "stream", 1).await;
    let release = async |granted: Value| {
        let id = granted["id"].as_str().unwrap();
        server.open("DELETE", &format!("/v1/holds/{id}?name=stream"), "").await
    };
    let begin = now();
    let _reply = release(granted).await;
    let (at, next) = waiter.until("granted").await;
    let mut reply = release(next).await;
    reply.until_text("released").await;
    at.since(begin)
}

/// Returns the median, and the 99th percentile, in milliseconds.
pub(crate) fn quantiles(mut times: Vec<Duration>) -> [f64; 2] {
    times.sort_unstable();
    [times.len() / 2, times.len() * 99 / 100].map(|at| times[at].as_secs_f64() * 1000.0)
}
