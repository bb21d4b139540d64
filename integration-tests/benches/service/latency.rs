//! The store itself, and the same store through a server, in turn.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{clock::now, stores::wait_for_waiters};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::server::Server;

const PAIRS: usize = 2_000;
const HAND_OVERS: usize = 200;

/// Measures pairs of acquisition and release, or hand-overs.
pub(crate) async fn measure(store: &str, server: &Server, hand_over: bool) -> Value {
    let direct = Locks::connect(store).await.unwrap();
    let through = Locks::connect(&format!("polylock+http://{}", server.address)).await.unwrap();
    let mut requests = server.connect().await;
    let (mut own, mut service, mut http) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..if hand_over { HAND_OVERS } else { PAIRS } {
        if hand_over {
            own.push(hand_over_of(&direct).await);
            service.push(hand_over_of_streams(server, &mut requests, &direct).await);
        } else {
            own.push(pair(&direct).await);
            service.push(pair(&through).await);
            http.push(two_requests(server, &mut requests).await);
        }
    }
    let (own, service) = (quantiles(own), quantiles(service));
    let http = (!hand_over).then(|| quantiles(http));
    let scheme = store.split(':').next().unwrap_or_default();
    json!({
        "measured": if hand_over { "hand-over" } else { "overhead" }, "store": scheme, "store_ms": own, "service_ms": service, "http_ms": http,
        "more_p50_ms": service[0] - own[0], "ratio_p50": service[0] / own[0],
    })
}

async fn pair(locks: &Locks) -> Duration {
    let begin = now();
    locks.lock("pair").acquire().await.unwrap().release().await.unwrap();
    now().since(begin)
}

/// Sends two requests that need no store, without a client library.
async fn two_requests(server: &Server, connection: &mut TcpStream) -> Duration {
    let begin = now();
    for _ in 0..2 {
        send(server, connection, "GET /healthz").await;
        receive(connection).await;
    }
    now().since(begin)
}

async fn send(server: &Server, connection: &mut TcpStream, request: &str) {
    let request = format!("{request} HTTP/1.1\r\nHost: {}\r\n\r\n", server.address);
    connection.write_all(request.as_bytes()).await.unwrap();
}

async fn receive(connection: &mut TcpStream) {
    // The server writes a reply without a stream at once.
    let mut reply = [0; 1024];
    assert!(connection.read(&mut reply).await.unwrap() > 0, "the server has closed the connection");
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
async fn hand_over_of_streams(server: &Server, requests: &mut TcpStream, direct: &Locks) -> Duration {
    let mut holder = server.open("POST", "/v1/locks/stream", "").await;
    let (_, granted) = holder.until("granted").await;
    let mut waiter = server.open("POST", "/v1/locks/stream", "").await;
    wait_for_waiters(direct, "stream", 1).await;
    let release =
        |granted: &Value| format!("DELETE /v1/holds/{}?name=stream", granted["id"].as_str().unwrap());
    let begin = now();
    send(server, requests, &release(&granted)).await;
    let (at, next) = waiter.until("granted").await;
    receive(requests).await;
    send(server, requests, &release(&next)).await;
    receive(requests).await;
    at.since(begin)
}

/// Returns the median, and the 99th percentile, in milliseconds.
pub(crate) fn quantiles(mut times: Vec<Duration>) -> [f64; 2] {
    times.sort_unstable();
    [times.len() / 2, times.len() * 99 / 100].map(|at| times[at].as_secs_f64() * 1000.0)
}
