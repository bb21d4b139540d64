//! HTTP on the connections of a simulated process.
//!
//! Each request has a connection to itself until its reply, as in HTTP/1.1, so messages may overtake each other. A request that is given up closes its
//! connection. Streams are not simulated.

use std::sync::Mutex;

use http_body_util::BodyExt;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use polylock_core::{
    Clock, Executor, SystemClock,
    simulation::{self, Connecting},
    sync::lock,
};
use reqwest::{Body, Request, RequestBuilder, Response};

use crate::error::Failure;

/// The idle connections; `None` in a real process.
#[derive(Debug, Default)]
pub(crate) struct Connections(Mutex<Option<Vec<SendRequest<Body>>>>);

impl Connections {
    /// Closes the idle connections. Returns false in a real process.
    pub(crate) fn replace(&self) -> bool {
        lock(&self.0).as_mut().map(Vec::clear).is_some()
    }

    /// Sends `request` and returns the reply. A real process sends it on a real connection.
    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let (client, request) = request.build_split();
        let request = request.map_err(|error| Failure::of(&error))?;
        let idle = lock(&self.0).as_mut().and_then(Vec::pop);
        let opening = match idle {
            Some(_) => None,
            None => match simulation::connect(request.url().authority()) {
                None => return client.execute(request).await.map_err(|error| Failure::of(&error)),
                opening => opening,
            },
        };
        lock(&self.0).get_or_insert_default();
        // The time limit of the real client is one of the runtime's clock.
        let by = request.timeout().map(|limit| SystemClock.now() + *limit);
        let exchange = self.exchange((idle, opening), request);
        match by {
            Some(by) => SystemClock
                .before(by, exchange)
                .await
                .unwrap_or_else(|| Err(Failure::Unanswered("no reply in time".to_owned()))),
            None => exchange.await,
        }
    }

    async fn exchange(
        &self,
        (idle, opening): (Option<SendRequest<Body>>, Option<Connecting>),
        request: Request,
    ) -> Result<Response, Failure> {
        let mut connection = match (idle, opening) {
            (Some(idle), _) => ready(idle, &request).await?,
            (None, Some(opening)) => open(opening).await?,
            (None, None) => return Err(Failure::NotSent("no connection".to_owned())),
        };
        let request = request.try_into().map_err(|error| Failure::of(&error))?;
        let response = connection.send_request(request).await.map_err(|error| ended(&error))?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map_err(|error| ended(&error))?.to_bytes();
        lock(&self.0).get_or_insert_default().push(connection);
        Ok(http::Response::from_parts(parts, body).into())
    }
}

/// Returns an idle connection, or a new one if it has ended.
async fn ready(mut idle: SendRequest<Body>, request: &Request) -> Result<SendRequest<Body>, Failure> {
    if idle.ready().await.is_ok() {
        return Ok(idle);
    }
    match simulation::connect(request.url().authority()) {
        Some(opening) => open(opening).await,
        None => Err(Failure::NotSent("the connection has ended".to_owned())),
    }
}

async fn open(opening: Connecting) -> Result<SendRequest<Body>, Failure> {
    let stream = opening.await.map_err(|error| Failure::NotSent(error.to_string()))?;
    let (connection, task) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| ended(&error))?;
    // It ends when the connection is dropped.
    drop(Executor::current().spawn(task));
    Ok(connection)
}

/// Returns the failure of a request after the end of its connection: the server may have received it.
fn ended(error: &hyper::Error) -> Failure {
    Failure::Unanswered(error.to_string())
}
