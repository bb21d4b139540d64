//! One server: a request to it, and its clock.

use std::{
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use http::header::AUTHORIZATION;
use polylock_core::{Clock, SystemClock, server_clock::ServerClock, sync::lock};
use polylock_protocol::{CLOCK, EXPIRES, Problem, ServerTime, StoreBody, paths};
use reqwest::{RequestBuilder, Response};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    config::Config,
    connection::{Connection, Sending},
    error::Failure,
};

/// One server.
#[derive(Debug)]
pub(crate) struct Server {
    connection: Connection,
    /// The URL, without a path.
    pub(crate) base: String,
    authorization: Option<String>,
    clock: Mutex<Option<(u64, ServerClock)>>,
    /// The description of the store behind it.
    store: Mutex<Option<StoreBody>>,
}

impl Server {
    pub(crate) fn new(connection: Connection, config: &Config, server: &str) -> Self {
        let authorization = config.token.as_ref().map(|token| format!("Bearer {token}"));
        Self {
            connection,
            base: config.base(server),
            authorization,
            clock: Mutex::default(),
            store: Mutex::default(),
        }
    }

    /// Sends `body` to `path`.
    pub(crate) async fn post<B: Serialize + Sync, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
        limit: Duration,
    ) -> Result<T, Failure> {
        self.post_by(path, body, limit, None).await
    }

    /// Sends `body` to `path`; the server does not carry it out after `expires`.
    pub(crate) async fn post_by<B: Serialize + Sync, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
        limit: Duration,
        expires: Option<ServerTime>,
    ) -> Result<T, Failure> {
        let body = serde_json::to_vec(body).map_err(|error| Failure::Invalid(error.to_string()))?;
        let sending = self.connection.send();
        let request = sending.client.post(format!("{}{path}", self.base)).timeout(limit);
        let mut request = request.header(http::header::CONTENT_TYPE, "application/json").body(body);
        if let Some(expires) = expires {
            request = request.header(EXPIRES, expires.to_string());
        }
        let bytes = self.complete(&sending, request).await?;
        serde_json::from_slice(&bytes).map_err(|error| {
            Failure::Invalid(format!("the reply of {path} is not one of this version of polylock: {error}"))
        })
    }

    /// Returns the description of the store, after a first request for it.
    pub(crate) async fn store(&self, limit: Duration) -> Result<StoreBody, Failure> {
        if let Some(known) = self.lock_store().clone() {
            return Ok(known);
        }
        let sending = self.connection.send();
        let request = sending.client.get(format!("{}{}", self.base, paths::STORE)).timeout(limit);
        let bytes = self.complete(&sending, request).await?;
        let store: StoreBody = serde_json::from_slice(&bytes).map_err(|_| {
            Failure::Invalid("it is not a lock service of polylock, or one of another version".to_owned())
        })?;
        *self.lock_store() = Some(store.clone());
        Ok(store)
    }

    /// Opens the stream of the names of broken locks.
    pub(crate) async fn alerts(&self) -> Result<Response, Failure> {
        let sending = self.connection.send();
        self.reply(&sending, sending.client.get(format!("{}{}", self.base, paths::ALERTS))).await
    }

    /// Returns the time by the clock of the server at which a claim expires that is sent now and abandoned after `limit`; `None` before
    /// its first reply.
    pub(crate) fn expiry(&self, limit: Duration) -> Option<ServerTime> {
        let clock = self.lock_clock();
        let (server, clock) = clock.as_ref()?;
        Some(ServerTime { server: *server, us: clock.expiry_us(limit)? })
    }

    /// Returns the whole reply, within the time limit of the request.
    async fn complete(&self, sending: &Sending, request: RequestBuilder) -> Result<Vec<u8>, Failure> {
        let reply = async {
            let response = self.reply(sending, request).await?;
            response.bytes().await.map(Vec::from).map_err(|error| Failure::of(&error))
        };
        let reply = reply.await;
        if reply.as_ref().is_err_and(Failure::is_unanswered) {
            self.connection.unanswered(sending);
        }
        reply
    }

    async fn reply(&self, sending: &Sending, mut request: RequestBuilder) -> Result<Response, Failure> {
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let sent = SystemClock.now();
        #[cfg(not(feature = "simulation"))]
        let response = request.send().await.map_err(|error| Failure::of(&error))?;
        #[cfg(feature = "simulation")]
        let response = self.connection.simulated.send(request).await?;
        self.connection.replied(sending);
        let time = response.headers().get(CLOCK).and_then(|time| time.to_str().ok()?.parse().ok());
        if let Some(ServerTime { server, us }) = time {
            let mut clock = self.lock_clock();
            match &*clock {
                Some((known, clock)) if *known == server => clock.observe(sent, us),
                _ => {
                    // Another process of the server: its clock, and its knowledge of waiters, are new.
                    let new = ServerClock::default();
                    new.observe(sent, us);
                    *clock = Some((server, new));
                }
            }
        }
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body = response.bytes().await.unwrap_or_default();
        Err(Failure::Refused(serde_json::from_slice(&body).unwrap_or_else(|_| {
            Problem::new(
                "http",
                "not a reply of the lock service",
                status.as_u16(),
                format!("the server replied {status}"),
            )
        })))
    }

    fn lock_clock(&self) -> MutexGuard<'_, Option<(u64, ServerClock)>> {
        lock(&self.clock)
    }

    fn lock_store(&self) -> MutexGuard<'_, Option<StoreBody>> {
        lock(&self.store)
    }
}
