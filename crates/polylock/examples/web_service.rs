//! An HTTP service with axum: each request works on an order under the lock of that order, and the service ends gracefully.
//!
//! ```text
//! cargo run -p polylock --example web_service -- memory: 127.0.0.1:3000
//! curl -X POST http://127.0.0.1:3000/orders/42/pay
//! ```
//!
//! `--metrics-listen 127.0.0.1:9464`, with the feature `metrics`, serves the metrics of its locks to Prometheus.
//!
//! A request waits at most two seconds for the lock: 409 if another request holds it for longer, 503 if the store is unavailable. A client
//! that disconnects drops the handler, and with it the guard, which releases the lock. On Ctrl-C, or SIGTERM from a container's
//! orchestrator, the service completes the requests in progress, then waits until the store has confirmed their releases.

#[path = "shared/metrics.rs"]
mod metrics;

use std::time::Duration;

use axum::{
    Router,
    extract::{Path, State},
    http::StatusCode,
    routing::post,
};
use polylock::{Error, FencingToken, Locks};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut arguments = std::env::args().skip(1).collect();
    metrics::listen(&mut arguments)?;
    let mut arguments = arguments.into_iter();
    let url = arguments.next().unwrap_or_else(|| "memory:".to_owned());
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:3000".to_owned());

    let locks = Locks::connect(&url).await?;
    let service = Router::new().route("/orders/{id}/pay", post(pay)).with_state(locks.clone());
    let listener = TcpListener::bind(address).await?;
    // Before the first request: a signal that nobody listens for ends the process at once.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    println!("listening at http://{}", listener.local_addr()?);
    axum::serve(listener, service)
        .with_graceful_shutdown(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        })
        .await?;
    let is_complete = locks.close(Duration::from_secs(10)).await;
    println!("ended, all releases confirmed: {is_complete}");
    Ok(())
}

async fn pay(State(locks): State<Locks>, Path(id): Path<u64>) -> Result<String, (StatusCode, String)> {
    let lock = locks.lock(format!("orders/{id}")).wait(Duration::from_secs(2));
    let guard = lock.acquire().await.map_err(|error| refusal(&error))?;
    let token = guard.fencing_token();
    guard.run(charge(id, token)).await.map_err(|error| refusal(&error))
}

/// Charges the order. The payment provider refuses a token that is smaller than one that it has seen for this order.
async fn charge(id: u64, token: FencingToken) -> String {
    tokio::task::yield_now().await;
    format!("order {id} paid with token {token}\n")
}

fn refusal(error: &Error) -> (StatusCode, String) {
    let status = match error {
        Error::NotAcquired { .. } => StatusCode::CONFLICT,
        error if error.is_temporary() => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, format!("{error}\n"))
}
