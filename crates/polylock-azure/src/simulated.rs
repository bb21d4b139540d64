//! HTTP on the connections of a simulated process.

use std::sync::Mutex;

use azure_core::error::{Error, ErrorKind};
use http_body_util::BodyExt;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use polylock_core::{
    Executor,
    simulation::{self, Connecting},
    sync::lock,
};
use reqwest::Body;

use crate::exchange::{Failure, Reply};

/// The idle connections. A real process has none.
#[derive(Debug, Default)]
pub(crate) struct Connections(Mutex<Vec<SendRequest<Body>>>);

impl Connections {
    /// Sends `request`, and returns the reply; `None` in a real process.
    pub(crate) async fn exchange(&self, request: &reqwest::Request) -> Option<Result<Reply, Failure>> {
        if let Some(connection) = self.idle().await {
            return Some(self.send(connection, request).await);
        }
        match open(simulation::connect(request.url().authority())?).await {
            Ok(connection) => Some(self.send(connection, request).await),
            Err(failure) => Some(Err(failure)),
        }
    }

    /// Returns an idle connection that has not ended, as far as is known.
    async fn idle(&self) -> Option<SendRequest<Body>> {
        loop {
            let mut connection = lock(&self.0).pop()?;
            if connection.ready().await.is_ok() {
                return Some(connection);
            }
        }
    }

    async fn send(
        &self,
        mut connection: SendRequest<Body>,
        request: &reqwest::Request,
    ) -> Result<Reply, Failure> {
        let request = request.try_clone().unwrap_or_else(|| unreachable!("its body is not a stream"));
        let response = connection.send_request(request.try_into()?).await.map_err(disconnected)?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.collect().await.map_err(disconnected)?.to_bytes();
        lock(&self.0).push(connection);
        Ok(Reply { status, headers, body })
    }
}

async fn open(connecting: Connecting) -> Result<SendRequest<Body>, Failure> {
    let stream = connecting.await.map_err(|error| Failure {
        error: Error::with_error(ErrorKind::Connection, error, "no connection"),
        is_disconnected: false,
    })?;
    let (connection, task) = http1::handshake(TokioIo::new(stream)).await.map_err(disconnected)?;
    // It ends when the connection is dropped.
    drop(Executor::current().spawn(task));
    Ok(connection)
}

fn disconnected(error: hyper::Error) -> Failure {
    Failure {
        error: Error::with_error(ErrorKind::Io, error, "the connection has ended"),
        is_disconnected: true,
    }
}
