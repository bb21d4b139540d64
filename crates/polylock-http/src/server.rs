//! One server: a request to it, and its clock.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::header::AUTHORIZATION;
use polylock_core::{Clock, SystemClock, server_clock::ServerClock};
use polylock_protocol::{CLOCK, Problem, ServerTime, StoreBody, paths};
use reqwest::{Client, RequestBuilder, Response};
use serde::{Serialize, de::DeserializeOwned};

use crate::{config::Config, error::Failure};

/// One server.
#[derive(Debug)]
pub(crate) struct Server {
    client: Client,
    /// The URL, without a path.
    pub(crate) base: String,
    authorization: Option<String>,
    clock: Mutex<Option<(u64, ServerClock)>>,
    /// The description of the store behind it.
    store: Mutex<Option<StoreBody>>,
}

impl Server {
    pub(crate) fn new(client: Client, config: &Config, server: &str) -> Self {
        let authorization = config.token.as_ref().map(|token| format!("Bearer {token}"));
        Self {
            client,
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
        let body = serde_json::to_vec(body).map_err(|error| Failure::Invalid(error.to_string()))?;
        let request = self.client.post(format!("{}{path}", self.base)).timeout(limit);
        let request = request.header(http::header::CONTENT_TYPE, "application/json").body(body);
        let bytes = self.reply(request).await?;
        let bytes = bytes.bytes().await.map_err(|error| Failure::of(&error))?;
        serde_json::from_slice(&bytes).map_err(|error| {
            Failure::Invalid(format!("the reply of {path} is not one of this version of polylock: {error}"))
        })
    }

    /// Returns the description of the store, after a first request for it.
    pub(crate) async fn store(&self, limit: Duration) -> Result<StoreBody, Failure> {
        if let Some(known) = self.lock_store().clone() {
            return Ok(known);
        }
        let request = self.client.get(format!("{}{}", self.base, paths::STORE)).timeout(limit);
        let bytes = self.reply(request).await?.bytes().await.map_err(|error| Failure::of(&error))?;
        let store: StoreBody = serde_json::from_slice(&bytes).map_err(|_| {
            Failure::Invalid("it is not a lock service of polylock, or one of another version".to_owned())
        })?;
        *self.lock_store() = Some(store.clone());
        Ok(store)
    }

    /// Opens the stream of the names of broken locks.
    pub(crate) async fn alerts(&self) -> Result<Response, Failure> {
        self.reply(self.client.get(format!("{}{}", self.base, paths::ALERTS))).await
    }

    /// Returns the time by the clock of the server at which a claim expires that is sent now and abandoned after `limit`; `None` before
    /// its first reply.
    pub(crate) fn expiry(&self, limit: Duration) -> Option<ServerTime> {
        let clock = self.lock_clock();
        let (server, clock) = clock.as_ref()?;
        Some(ServerTime { server: *server, us: clock.expiry_us(limit)? })
    }

    async fn reply(&self, mut request: RequestBuilder) -> Result<Response, Failure> {
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let sent = SystemClock.now();
        let response = request.send().await.map_err(|error| Failure::of(&error))?;
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
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_store(&self) -> MutexGuard<'_, Option<StoreBody>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
