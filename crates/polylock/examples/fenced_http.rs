//! A holder is stopped just before its request to an HTTP service, and another one gets the lock and sends its own. The first one
//! continues, and the service answers 412 to its request.
//!
//! ```text
//! cargo run -p polylock --features sqlite,tower --example fenced_http
//! ```
//!
//! With `--unfenced` the service does not require a token, and the late request without one destroys the other holder's write.

#[path = "shared/paused.rs"]
mod paused;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, extract::State, routing::get};
use paused::{Arguments, Order, Result};
use polylock::{
    FencingToken, Guard, Locks,
    tower::{FencingLayer, MemoryTokens},
};
use reqwest::{Client, StatusCode};
use tokio::net::TcpListener;

/// The name of the lock, and of the resource.
const NAME: &str = "orders/42";

/// The order, at this URL of the service.
struct HttpOrder(String);

impl Order for HttpOrder {
    async fn state(&self) -> Result<String> {
        Ok(Client::new().get(&self.0).send().await?.error_for_status()?.text().await?)
    }

    async fn set_state(&self, state: &str, token: Option<FencingToken>) -> Result<Result<(), String>> {
        let mut request = Client::new().put(&self.0).header("Lock-Name", NAME).body(state.to_owned());
        if let Some(token) = token {
            request = request.header("Fencing-Token", token.get());
        }
        let response = request.send().await?;
        if response.status() == StatusCode::PRECONDITION_FAILED {
            return Ok(Err(response.text().await?));
        }
        response.error_for_status()?;
        Ok(Ok(()))
    }
}

/// The service: one order, behind the layer.
fn service(is_unfenced: bool) -> Router {
    type Shared = State<Arc<Mutex<String>>>;

    async fn read(State(order): Shared) -> String {
        order.lock().map_or_else(|_| "broken".to_owned(), |state| state.clone())
    }

    async fn write(State(order): Shared, body: String) {
        if let Ok(mut state) = order.lock() {
            *state = body;
        }
    }

    let layer =
        FencingLayer::by_header(MemoryTokens::default(), axum::http::HeaderName::from_static("lock-name"));
    let layer = if is_unfenced { layer.optional() } else { layer };
    let order = Arc::new(Mutex::new("new".to_owned()));
    Router::new().route("/orders/42", get(read).put(write)).with_state(order).layer(layer)
}

#[tokio::main]
async fn main() -> Result<()> {
    // With TLS compiled in, the HTTP client needs a provider of cryptography, also without an encrypted connection.
    #[cfg(feature = "tls")]
    polylock::core::url::install_crypto_provider();
    let arguments = Arguments::read();
    let acquire = async |locks: &str| -> Result<Guard> {
        let lock = Locks::connect(locks).await?.lock(NAME).ttl(Duration::from_secs(1));
        Ok(lock.wait(Duration::from_secs(60)).acquire().await?)
    };
    if let (true, [url, locks]) = (arguments.is_first, &arguments.rest[..]) {
        return paused::first(acquire(locks).await?, &HttpOrder(url.clone()), &arguments).await;
    }
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/orders/42", listener.local_addr()?);
    let is_unfenced = arguments.is_unfenced;
    tokio::spawn(async move { axum::serve(listener, service(is_unfenced)).await });
    let directory = tempfile::TempDir::new()?;
    let locks = format!("sqlite://{}/locks.db", directory.path().display());
    let order = HttpOrder(url.clone());
    paused::demonstrate(async || acquire(&locks).await, &order, &arguments, &[&url, &locks]).await
}
