//! The servers in front of the store, of which one is used until it fails.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use polylock_core::{Clock, Error, Moment, Operation, Request, Result, SystemClock, requests::RequestTable};
use polylock_protocol::{ClaimBody, ClaimReply, RequestBody, StoreBody, paths};
use serde::{Serialize, de::DeserializeOwned};

use crate::{config::Config, error::Failure, server::Server, tls};

/// The longest time that a server gets while there is another one.
const SHARE: Duration = Duration::from_millis(700);

/// The time between two pings of a server with an open request, and the time within which it must reply: then all waits on it end.
const PINGS: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(2));

/// The number of attempts of a claim that a server finds too late.
const LATE: u32 = 3;

/// The pause before a release is repeated on a server with an unanswered claim.
const RELEASE_PAUSE: Duration = Duration::from_millis(200);

/// The servers.
#[derive(Debug)]
pub(crate) struct Servers {
    all: Vec<Arc<Server>>,
    current: AtomicUsize,
    pub(crate) store: StoreBody,
    pub(crate) operation_timeout: Duration,
    /// The servers that may still carry out a claim of a request.
    unanswered: Mutex<RequestTable<Vec<Unanswered>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Unanswered {
    server: usize,
    /// The time until which the server may carry the claim out.
    until: Moment,
}

impl Servers {
    /// Connects to the first server that replies. Core repeats this while the store may be unavailable.
    pub(crate) async fn connect(config: &Config) -> Result<Self> {
        config.check()?;
        let client = reqwest::Client::builder()
            .connect_timeout(config.operation_timeout.min(SHARE * 2))
            .redirect(reqwest::redirect::Policy::none())
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PINGS.0)
            .http2_keep_alive_timeout(PINGS.1);
        let client = tls::configure(client, config)?.build().map_err(|error| {
            polylock_core::ConfigError::new("store", format!("can't create the HTTP client: {error}"))
        })?;
        let all: Vec<_> = config
            .servers
            .iter()
            .map(|server| Arc::new(Server::new(client.clone(), config, server)))
            .collect();
        let deadline = SystemClock.now() + config.connect_timeout;
        let mut last = None;
        for (at, server) in all.iter().enumerate() {
            let others = u32::try_from(all.len() - at).unwrap_or(u32::MAX);
            let share = deadline.since(SystemClock.now()) / others;
            match server.store(share.min(config.operation_timeout)).await {
                Ok(store) => {
                    return Ok(Self {
                        current: AtomicUsize::new(at),
                        store,
                        operation_timeout: config.operation_timeout,
                        unanswered: Mutex::default(),
                        all,
                    });
                }
                Err(failure) => last = Some(failure.at(Operation::Connect, &server.base)),
            }
        }
        Err(last.unwrap_or_else(|| unreachable!("a URL has at least one server")))
    }

    /// Returns the server that is used now.
    pub(crate) fn current(&self) -> Arc<Server> {
        self.all[self.current.load(Ordering::SeqCst)].clone()
    }

    /// Sends `body` to a server, and to another one if that fails, within `limit`. The operation may be carried out twice.
    pub(crate) async fn send<B: Serialize + Sync, T: DeserializeOwned>(
        &self,
        operation: Operation,
        path: &str,
        body: &B,
        limit: Duration,
    ) -> Result<T> {
        let mut attempts = self.attempts(operation, limit);
        while let Some((at, share)) = attempts.next() {
            match self.all[at].post(path, body, share).await {
                Ok(reply) => return Ok(attempts.succeeded(reply)),
                Err(failure) => attempts.failed(failure)?,
            }
        }
        Err(attempts.exhausted())
    }

    /// Sends `body` to one server alone. The operation is carried out once, unless the server restarts.
    pub(crate) async fn send_once<B: Serialize + Sync, T: DeserializeOwned>(
        &self,
        operation: Operation,
        path: &str,
        body: &B,
        limit: Duration,
    ) -> Result<T> {
        let server = self.current();
        let reply = server.post(path, body, limit).await;
        reply.map_err(|failure| failure.at(operation, &server.base))
    }

    fn attempts(&self, operation: Operation, limit: Duration) -> Attempts<'_> {
        let begin = self.current.load(Ordering::SeqCst);
        Attempts { servers: self, operation, deadline: SystemClock.now() + limit, begin, step: 0, last: None }
    }

    fn use_instead(&self, old: usize, new: usize) {
        let changed = self.current.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if changed && old != new {
            tracing::info!(server = %self.all[new].base, instead = %self.all[old].base, "using another server");
        }
    }

    /// Claims on a server that has the expected store.
    pub(crate) async fn claim(&self, request: &Request) -> Result<ClaimReply> {
        let mut attempts = self.attempts(Operation::Claim, self.operation_timeout.min(request.ttl));
        while let Some((at, share)) = attempts.next() {
            match self.claim_on(at, request, share).await {
                Ok(reply) => return Ok(attempts.succeeded(reply)),
                Err(failure) => attempts.failed(failure)?,
            }
        }
        Err(attempts.exhausted())
    }

    /// Claims on one server, again if it finds the claim too late: its clock may have been set.
    async fn claim_on(&self, at: usize, request: &Request, limit: Duration) -> Result<ClaimReply, Failure> {
        let server = &self.all[at];
        for _ in 0..LATE {
            if server.store(limit).await? != self.store {
                return Err(Failure::Invalid(
                    "the store behind it is not that of the other servers".to_owned(),
                ));
            }
            let Some(expires) = server.expiry(limit) else {
                return Err(Failure::Invalid("its replies have no clock".to_owned()));
            };
            let claim = ClaimBody { request: request.into(), expires };
            // Before the request is sent: this future may be dropped.
            self.note_unanswered(request, Unanswered { server: at, until: SystemClock.now() + limit });
            let reply: Result<ClaimReply, Failure> = server.post(paths::CLAIM, &claim, limit).await;
            if !reply.as_ref().is_err_and(Failure::is_unanswered) {
                self.forget_unanswered(request, at);
            }
            match reply? {
                ClaimReply::Late => {}
                reply => return Ok(reply),
            }
        }
        Err(Failure::Unanswered("the server finds every claim too late: its clock jumps".to_owned()))
    }

    fn note_unanswered(&self, request: &Request, new: Unanswered) {
        let now = SystemClock.now();
        let mut table = self.unanswered.lock().unwrap_or_else(PoisonError::into_inner);
        let servers = table.update(request.id, now, new.until, Vec::new);
        servers.retain(|old| old.server != new.server);
        servers.push(new);
    }

    fn forget_unanswered(&self, request: &Request, server: usize) {
        let mut table = self.unanswered.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(servers) = table.get_mut(&request.id) {
            servers.retain(|old| old.server != server);
            if servers.is_empty() {
                table.remove(&request.id);
            }
        }
    }

    /// Sends a release of a request to the servers that may still carry out a claim of it, in the background.
    pub(crate) fn release_unanswered(&self, request: &Request) {
        let unanswered = self
            .unanswered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&request.id)
            .unwrap_or_default();
        for Unanswered { server, until } in unanswered {
            let (server, body) = (self.all[server].clone(), RequestBody::from(request));
            tokio::spawn(async move {
                while SystemClock.now() < until {
                    let released =
                        server.post::<_, serde::de::IgnoredAny>(paths::RELEASE, &body, SHARE).await;
                    if released.is_ok() {
                        break;
                    }
                    SystemClock.sleep_until(SystemClock.now() + RELEASE_PAUSE).await;
                }
            });
        }
    }

    /// Returns the number of requests with claims that a server may still carry out.
    pub(crate) fn unanswered(&self) -> usize {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// The attempts of one operation: on the server that is used, and then on the next ones.
struct Attempts<'s> {
    servers: &'s Servers,
    operation: Operation,
    deadline: Moment,
    /// The server of the first attempt.
    begin: usize,
    /// The number of attempts that were begun.
    step: usize,
    last: Option<Error>,
}

impl Attempts<'_> {
    fn server(&self, step: usize) -> usize {
        (self.begin + step) % self.servers.all.len()
    }

    /// Returns the server of the next attempt, and its share of the time.
    fn next(&mut self) -> Option<(usize, Duration)> {
        let left = self.deadline.since(SystemClock.now());
        let others = self.servers.all.len().saturating_sub(self.step);
        if others == 0 || (left.is_zero() && self.last.is_some()) {
            return None;
        }
        self.step += 1;
        let share =
            if others > 1 { (left / u32::try_from(others).unwrap_or(u32::MAX)).min(SHARE) } else { left };
        Some((self.server(self.step - 1), share))
    }

    /// Records that the last attempt has failed.
    ///
    /// # Errors
    /// The error, if another server would fail, too.
    fn failed(&mut self, failure: Failure) -> Result<()> {
        let may_differ = failure.may_differ();
        let error = failure.at(self.operation, &self.servers.all[self.server(self.step - 1)].base);
        if !may_differ {
            return Err(error);
        }
        self.last = Some(error);
        Ok(())
    }

    /// Records that the last attempt has succeeded: the next operations begin with its server.
    fn succeeded<T>(self, reply: T) -> T {
        self.servers.use_instead(self.begin, self.server(self.step - 1));
        reply
    }

    /// Returns the error of the last attempt. The next operation begins with another server.
    fn exhausted(self) -> Error {
        self.servers.use_instead(self.begin, self.server(1));
        self.last.unwrap_or_else(|| unreachable!("there is an attempt"))
    }
}
