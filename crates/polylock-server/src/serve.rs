//! The routes, and the server.

use std::{future::Future, io, pin::pin, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    extract::{DefaultBodyLimit, Request, State},
    middleware::{self, AddExtension, Next},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post, put},
};
use http::{HeaderValue, header};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{
        conn::auto,
        graceful::{GracefulShutdown, Watcher},
    },
    service::TowerToHyperService,
};
use polylock_core::{Clock, SystemClock};
use polylock_protocol::{CLOCK, MAX_BODY, Problem, paths};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tower_layer::Layer;

use crate::{
    access::Peer,
    alerts::alerts,
    body::Refused,
    caller::{self, admit, refuse_pages},
    console,
    events::events,
    health, holds, jobs, operations,
    service::{Inner, Service},
    status, streams,
    tls::Tls,
};

pub(crate) fn routes(service: &Service) -> Router {
    let (state, access) = (service.inner().clone(), service.access.clone());
    let of_callers = api()
        .into_iter()
        .fold(Router::new(), |router, (path, method)| router.route(path, method))
        .route(paths::STORE, get(operations::describe))
        .route(paths::CLAIM, post(operations::claim))
        .route(paths::WAIT, post(operations::wait))
        .route(paths::KEEP_ALIVE, post(operations::keep_alive))
        .route(paths::RELEASE, post(operations::release))
        .route(paths::CONVERT, post(operations::convert))
        .route(paths::PARK, post(operations::park))
        .route(paths::RAISE, post(operations::raise))
        .route(paths::INSPECT, post(operations::inspect))
        .route(paths::LIST, post(operations::list))
        .route(paths::BREAK, post(operations::break_lock))
        .route(paths::READ_RECORD, post(operations::read_record))
        .route(paths::WRITE_RECORD, post(operations::write_record))
        .route(paths::ALERTS, get(alerts))
        .route_layer(middleware::from_fn_with_state(access.clone(), admit));
    Router::new()
        .route("/healthz", get(health::healthy))
        .route("/readyz", get(health::ready))
        .route("/v1/openapi.json", get(openapi))
        .merge(console::routes())
        .merge(of_callers)
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(access, refuse_pages))
        .layer(middleware::from_fn_with_state(state.clone(), with_clock))
        .with_state(state)
}

/// Returns the paths for programs in any language. `openapi.json` describes them.
pub(crate) fn api() -> [(&'static str, MethodRouter<Arc<Inner>>); 8] {
    [
        ("/v1/caller", get(caller::describe)),
        ("/v1/events", get(events)),
        ("/v1/locks", get(status::list)),
        ("/v1/locks/{name}", get(status::inspect).post(streams::acquire)),
        ("/v1/locks/{name}/break", post(status::break_lock)),
        ("/v1/holds/{id}", put(holds::put).delete(holds::delete)),
        ("/v1/jobs/{name}", get(jobs::last_run).post(jobs::begin)),
        ("/v1/jobs/{name}/outcome", post(jobs::record)),
    ]
}

/// Returns the description of the API.
async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], include_str!("openapi.json"))
}

async fn no_such_path(request: Request) -> Refused {
    let path = request.uri().path();
    Refused(Problem::new("not-found", "no such path", 404, format!("there is no {path}: see /v1/store")))
}

async fn no_such_method(request: Request) -> Refused {
    let (method, path) = (request.method(), request.uri().path());
    Refused(Problem::new("method", "another method is needed", 405, format!("{path} has no {method}")))
}

/// Adds the clock of the server to a reply.
async fn with_clock(State(service): State<Arc<Inner>>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if let Ok(time) = HeaderValue::from_str(&service.clock.now().to_string()) {
        response.headers_mut().insert(CLOCK, time);
    }
    response
}

/// The requests of one client at the same time on one connection: one for each waiter.
const STREAMS: u32 = 100_000;
/// The connections at the same time. Further clients wait until one ends.
const CONNECTIONS: usize = 25_000;
/// The time for the handshake of an encrypted connection, and within which the header of a request must arrive.
const HEADER: Duration = Duration::from_secs(10);
/// The first bytes of HTTP/2, which no method of HTTP/1.1 has.
const HTTP2: &[u8] = b"PRI";
/// The time between two pings of a silent client, and the time within which it must reply.
const PINGS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(10));
/// The time without an acknowledgement after which a client has gone.
const GONE: Duration = Duration::from_secs(20);
/// The time after a shutdown for which requests may continue.
const DRAIN: Duration = Duration::from_secs(5);
/// The time between two searches for waiters of clients that have gone.
pub(crate) const SWEEP: Duration = Duration::from_secs(1);
/// The pause after an error of the listener, for instance because of too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves clients on `listener` until `shutdown` ends. Then it ends the streams, and serves the requests that have begun, for five seconds
/// at most. The locks of the streams stay taken for their leases.
///
/// # Cancel safety
/// Dropping the future ends the connections. Operations of the store that have begun are carried out.
pub async fn serve(listener: TcpListener, service: Service, shutdown: impl Future<Output = ()>) {
    let (routes, connections) = (routes(&service), GracefulShutdown::new());
    let free = Arc::new(Semaphore::new(CONNECTIONS));
    let mut shutdown = pin!(shutdown);
    let mut next_sweep = SystemClock.now() + SWEEP;
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &free) => accepted,
            () = &mut shutdown => break,
            () = SystemClock.sleep_until(next_sweep) => {
                let now = SystemClock.now();
                service.inner().drop_waiters(now);
                next_sweep = now + SWEEP;
                continue;
            }
        };
        match accepted {
            Ok((stream, permit)) => {
                let (routes, watcher, tls) = (routes.clone(), connections.watcher(), service.tls.clone());
                tokio::spawn(async move {
                    let _permit = permit;
                    if let Err(error) = serve_one(stream, tls, routes, watcher).await {
                        tracing::debug!(error, "a connection has ended");
                    }
                });
            }
            Err(error) if is_of_connection(&error) => {}
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "a client can't connect");
                SystemClock.sleep_until(SystemClock.now() + PAUSE).await;
            }
        }
    }
    drop(listener);
    let inner = service.inner();
    inner.close();
    SystemClock.before(SystemClock.now() + DRAIN, connections.shutdown()).await;
    // The locks of a client that reads slowly stay taken, too: it may count on its lease.
    if Arc::strong_count(&inner.held) > 1 {
        return;
    }
    // The waiters leave their queues.
    if let Some(Err(error)) = SystemClock.before(SystemClock.now() + DRAIN, inner.locks.shutdown()).await {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "not all requests of streams were withdrawn"
        );
    }
}

/// Waits until a connection is free, and for its client.
async fn accept(
    listener: &TcpListener,
    free: &Arc<Semaphore>,
) -> io::Result<(TcpStream, Option<OwnedSemaphorePermit>)> {
    // The semaphore is never closed.
    let permit = free.clone().acquire_owned().await.ok();
    listener.accept().await.map(|(stream, _)| (stream, permit))
}

/// The reason for which a connection has ended.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Serves one client.
async fn serve_one(
    stream: TcpStream,
    tls: Option<Tls>,
    routes: Router,
    watcher: Watcher,
) -> Result<(), Failure> {
    // A small reply must not wait for more.
    stream.set_nodelay(true).ok();
    // A machine that has gone does not acknowledge the heartbeats of a stream.
    #[cfg(target_os = "linux")]
    rustix::net::sockopt::set_tcp_user_timeout(&stream, GONE.as_millis().try_into().unwrap_or(u32::MAX)).ok();
    // In boxes, because each is as large as the largest one otherwise.
    match tls {
        None if begins_with_http1(&stream).await? => Box::pin(serve_http1(stream, routes, watcher)).await,
        None => Box::pin(serve_http(stream, Peer(None), routes, watcher)).await,
        Some(tls) => Box::pin(serve_tls(stream, tls, routes, watcher)).await,
    }
}

/// Waits for the first bytes of a connection. Returns true if they are those of HTTP/1.1, and false if only more bytes can tell.
async fn begins_with_http1(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0; HTTP2.len()];
    let read = SystemClock.before(SystemClock.now() + HEADER, stream.peek(&mut first)).await;
    let length = read.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))?;
    Ok(!HTTP2.starts_with(&first[..length]))
}

async fn serve_tls(stream: TcpStream, tls: Tls, routes: Router, watcher: Watcher) -> Result<(), Failure> {
    match SystemClock.before(SystemClock.now() + HEADER, tls.accept(stream)).await {
        Some(accepted) => {
            let (stream, peer) = accepted?;
            serve_http(stream, peer, routes, watcher).await
        }
        None => Err("no handshake in time".into()),
    }
}

/// Serves the requests of a connection of HTTP/1.1 without encryption. One that may be of either version is larger, and reads into a
/// buffer of twice the size: that would be much of the memory of a stream.
async fn serve_http1(stream: TcpStream, routes: Router, watcher: Watcher) -> Result<(), Failure> {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER);
    Ok(watcher.watch(builder.serve_connection(TokioIo::new(stream), requests(Peer(None), routes))).await?)
}

/// Serves the requests of a connection of HTTP/1.1 or HTTP/2.
fn serve_http(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    routes: Router,
    watcher: Watcher,
) -> impl Future<Output = Result<(), Failure>> + Send {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .keep_alive_interval(PINGS.0)
        .keep_alive_timeout(PINGS.1);
    let connection = builder.serve_connection(TokioIo::new(stream), requests(peer, routes));
    watcher.watch(connection.into_owned())
}

/// Returns the routes for the requests of a client with this certificate.
pub(crate) fn requests(peer: Peer, routes: Router) -> TowerToHyperService<AddExtension<Router, Peer>> {
    TowerToHyperService::new(Extension(peer).layer(routes))
}

fn is_of_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
