//! The store itself, and the same store through a server, in turn.

use std::time::Duration;

use polylock::Locks;
use polylock_integration_tests::{clock::now, process::Process, stores::wait_for_waiters};
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
    let scheme = store.split(':').next().unwrap_or_default();
    if hand_over {
        let (mut holder, mut waiter) = (Worker::start(store), Worker::start(store));
        let (mut tasks, mut processes, mut streams) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..HAND_OVERS {
            tasks.push(hand_over_of_tasks(&direct).await);
            processes.push(hand_over_of_processes(&mut holder, &mut waiter, &direct).await);
            streams.push(hand_over_of_streams(server, &mut requests, &direct).await);
        }
        return json!({
            "measured": "hand-over", "store": scheme,
            "between_tasks": compared(tasks, streams.clone()), "between_processes": compared(processes, streams),
        });
    }
    let (mut own, mut service, mut http) = (Pairs::default(), Pairs::default(), Vec::new());
    for _ in 0..PAIRS {
        own.measure(&direct).await;
        service.measure(&through).await;
        http.push(request(server, &mut requests).await);
    }
    json!({
        "measured": "overhead", "store": scheme, "http_request_ms": quantiles(http),
        "acquire": compared(own.acquire, service.acquire), "release": compared(own.release, service.release),
        "pair": compared(own.pair, service.pair),
    })
}

/// Returns the quantiles of the store and of the service, and their comparison.
fn compared(own: Vec<Duration>, service: Vec<Duration>) -> Value {
    let (own, service) = (quantiles(own), quantiles(service));
    json!({
        "store_ms": own, "service_ms": service, "more_p50_ms": service[0] - own[0], "ratio_p50": service[0] / own[0],
    })
}

/// The times of acquisitions, of their releases, and of both together.
#[derive(Default)]
struct Pairs {
    acquire: Vec<Duration>,
    release: Vec<Duration>,
    pair: Vec<Duration>,
}

impl Pairs {
    async fn measure(&mut self, locks: &Locks) {
        let begin = now();
        let guard = locks.lock("pair").acquire().await.unwrap();
        let acquired = now();
        guard.release().await.unwrap();
        let released = now();
        self.acquire.push(acquired.since(begin));
        self.release.push(released.since(acquired));
        self.pair.push(released.since(begin));
    }
}

/// Sends a request that needs no store, without a client library.
async fn request(server: &Server, connection: &mut TcpStream) -> Duration {
    let begin = now();
    send(server, connection, "GET /healthz").await;
    receive(connection).await;
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

/// A client of the store in a process of its own, as in `comparison`.
struct Worker(Process);

impl Worker {
    fn start(store: &str) -> Self {
        let mut process = Process::start(env!("CARGO_BIN_EXE_worker"), ["measure", store, ""]);
        process.expect_line("ready");
        Self(process)
    }

    fn acquire(&mut self) {
        self.0.send_line("take processes");
    }

    /// Returns the time of the grant, in nanoseconds.
    fn granted(&mut self) -> u64 {
        self.0.expect_line("held")[2].parse().unwrap()
    }

    /// Releases the lock, and returns the time at which the release began, in nanoseconds.
    fn release(&mut self) -> u64 {
        self.0.send_line("drop processes");
        self.0.expect_line("dropped")[1].parse().unwrap()
    }
}

/// A process releases a lock, and another process is granted it.
async fn hand_over_of_processes(holder: &mut Worker, waiter: &mut Worker, direct: &Locks) -> Duration {
    holder.acquire();
    holder.granted();
    waiter.acquire();
    wait_for_waiters(direct, "processes", 1).await;
    let begin = holder.release();
    let granted = waiter.granted();
    waiter.release();
    Duration::from_nanos(granted - begin)
}

/// A task releases a lock, and another task of this process is granted it.
async fn hand_over_of_tasks(locks: &Locks) -> Duration {
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
