//! Ten thousand streams, and clients that disturb others.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream};
use polylock::Locks;
use polylock_integration_tests::clock::{now, pause};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::{latency::quantiles, server::Server};

const STREAMS: usize = 10_000;
const DISTURBING: usize = 1_000;
/// The connections that are opened at the same time.
const OPENING: usize = 100;
/// The time for which a server is observed.
const OBSERVED: Duration = Duration::from_secs(30);
/// The time of each half of the load.
const LOAD: Duration = Duration::from_secs(15);
/// The clients of the load.
const CLIENTS: usize = 8;

/// The body of a request for a lock that the server renews.
const RENEWED: &str = r#"{"renew":true}"#;

pub(crate) async fn measure(server: &Server, slow: bool) -> Value {
    if slow { beside_slow_readers(server).await } else { streams(server).await }
}

async fn streams(server: &Server) -> Value {
    let (before, begin) = (server.memory(), now());
    let streams: Vec<_> = stream::iter(0..STREAMS)
        .map(|number| async move {
            let mut stream = server.open("POST", &format!("/v1/locks/stream-{number}"), RENEWED).await;
            stream.until("granted").await;
            stream
        })
        .buffer_unordered(OPENING)
        .collect()
        .await;
    let granted_in = now().since(begin);
    let granted: Vec<_> = streams.into_iter().map(|stream| tokio::spawn(stream.drain())).collect();
    // Renewals are the state of rest.
    pause(OBSERVED).await;
    let (busy, begin) = (server.processor(), now());
    pause(OBSERVED).await;
    let share = (server.processor() - busy).as_secs_f64() / now().since(begin).as_secs_f64();
    let ended = granted.iter().filter(|reading| reading.is_finished()).count();
    json!({
        "measured": "streams", "count": STREAMS, "granted_in_s": granted_in.as_secs_f64(), "ended": ended,
        "memory_before": before, "memory": server.memory(), "cpu_percent_when_idle": 100.0 * share,
    })
}

async fn beside_slow_readers(server: &Server) -> Value {
    let alone = load(server).await;
    let begin = server.memory();
    // Some of them receive the events of every lock, and do not read them.
    let slow: Vec<_> = stream::iter(0..DISTURBING)
        .map(|number| async move {
            if number % 20 == 0 {
                server.open("GET", "/v1/events", "").await
            } else {
                server.open("POST", &format!("/v1/locks/slow-{number}"), RENEWED).await
            }
        })
        .buffer_unordered(OPENING)
        .collect()
        .await;
    let stops = Arc::new(AtomicBool::new(false));
    for _ in 0..DISTURBING {
        // The server ends a connection without a request after ten seconds.
        let (address, stops) = (server.address.clone(), stops.clone());
        tokio::spawn(async move {
            while !stops.load(Ordering::Relaxed) {
                let Ok(mut connection) = tokio::net::TcpStream::connect(&address).await else { continue };
                connection.write_all(b"POST /v1/locks/half HTTP/1.1\r\nHost: 127.0").await.ok();
                // It sends a reply, and ends the connection.
                tokio::io::copy(&mut connection, &mut tokio::io::sink()).await.ok();
            }
        });
    }
    pause(Duration::from_secs(2)).await;
    let beside = load(server).await;
    let memory = server.memory();
    stops.store(true, Ordering::Relaxed);
    drop(slow);
    json!({
        "measured": "slow", "count": DISTURBING, "alone_ms": alone, "beside_ms": beside,
        "ratio_p99": beside[1] / alone[1], "memory_before": begin, "memory": memory,
    })
}

/// Acquires and releases locks through the service for a time, and returns the quantiles of the pairs.
async fn load(server: &Server) -> [f64; 2] {
    let until = now() + LOAD;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let url = format!("polylock+http://{}", server.address);
            tokio::spawn(async move {
                let locks = Locks::connect(&url).await.unwrap();
                let mut times = Vec::new();
                while now() < until {
                    let begin = now();
                    let guard = locks.lock(format!("load-{client}")).acquire().await.unwrap();
                    guard.release().await.unwrap();
                    times.push(now().since(begin));
                    pause(Duration::from_millis(5)).await;
                }
                times
            })
        })
        .collect();
    let mut all = Vec::new();
    for client in clients {
        all.extend(client.await.unwrap());
    }
    quantiles(all)
}
