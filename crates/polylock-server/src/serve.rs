//! The routes, and the server.

use std::{future::Future, io, pin::pin, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request, State},
    middleware::{self, Next},
    response::Response,
    routing::{get, post},
};
use http::HeaderValue;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto::Builder, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use polylock_core::{Clock, SystemClock};
use polylock_protocol::{CLOCK, MAX_BODY, Problem, paths};
use tokio::net::{TcpListener, TcpStream};

use crate::{
    alerts::alerts,
    body::Refused,
    operations,
    service::{Inner, Service},
};

fn routes(service: &Service) -> Router {
    let state = service.inner().clone();
    Router::new()
        .route(paths::STORE, get(operations::describe))
        .route(paths::CLAIM, post(operations::claim))
        .route(paths::WAIT, post(operations::wait))
        .route(paths::KEEP_ALIVE, post(operations::keep_alive))
        .route(paths::RELEASE, post(operations::release))
        .route(paths::CONVERT, post(operations::convert))
        .route(paths::RAISE, post(operations::raise))
        .route(paths::INSPECT, post(operations::inspect))
        .route(paths::LIST, post(operations::list))
        .route(paths::BREAK, post(operations::break_lock))
        .route(paths::READ_RECORD, post(operations::read_record))
        .route(paths::WRITE_RECORD, post(operations::write_record))
        .route(paths::ALERTS, get(alerts))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(state.clone(), with_clock))
        .with_state(state)
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
/// The time within which the header of a request must arrive.
const HEADER: Duration = Duration::from_secs(10);
/// The time between two pings of a silent client, and the time within which it must reply.
const PINGS: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(10));
/// The time after a shutdown for which requests may continue.
const DRAIN: Duration = Duration::from_secs(5);
/// The pause after an error of the listener, for instance because of too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves clients on `listener` until `shutdown` ends, and then the requests that have begun, for five seconds at most.
///
/// # Cancel safety
/// Dropping the future ends the connections. Operations of the store that have begun are carried out.
pub async fn serve(listener: TcpListener, service: Service, shutdown: impl Future<Output = ()>) {
    let (routes, connections) = (routes(&service), GracefulShutdown::new());
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut shutdown => break,
        };
        match accepted {
            Ok((stream, _)) => spawn(stream, routes.clone(), &connections),
            Err(error) if is_of_connection(&error) => {}
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "a client can't connect");
                SystemClock.sleep_until(SystemClock.now() + PAUSE).await;
            }
        }
    }
    drop(listener);
    SystemClock.before(SystemClock.now() + DRAIN, connections.shutdown()).await;
}

/// Serves one client in a task.
fn spawn(stream: TcpStream, routes: Router, connections: &GracefulShutdown) {
    // A small reply must not wait for more.
    stream.set_nodelay(true).ok();
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .keep_alive_interval(PINGS.0)
        .keep_alive_timeout(PINGS.1);
    let service = TowerToHyperService::new(routes);
    let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
    let connection = connections.watch(connection);
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(error, "a connection has ended");
        }
    });
}

fn is_of_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
