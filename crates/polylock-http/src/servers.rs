//! The servers in front of the store, of which one is used until it fails.

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use polylock_core::{
    Clock, ConfigError, Error, Moment, Operation, Request, Result, SystemClock, io, requests::RequestTable,
    sync::lock, time_limit,
};
use polylock_protocol::{ClaimBody, ClaimReply, RequestBody, ServerTime, StoreBody, WakeReply, paths};
use serde::{Serialize, de::DeserializeOwned};

use crate::{NAME, config::Config, connection::Connection, error::Failure, server::Server, tls};

/// The longest time that a server gets while there is another one.
const SHARE: Duration = Duration::from_millis(700);

/// The time between two pings of a server with an open request, and the time within which it must reply: then all waits on it end.
const PINGS: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(2));

/// The number of attempts of a claim that a server finds too late.
const LATE: u32 = 3;

/// The pause before the next attempt of an operation whose last message, without a reply, may still arrive.
const PAUSE: Duration = Duration::from_millis(50);

/// The pause before a release is repeated on a server with an unanswered claim.
const RELEASE_PAUSE: Duration = Duration::from_millis(200);

/// The servers.
#[derive(Debug)]
pub(crate) struct Servers {
    all: Vec<Arc<Server>>,
    /// True if the connections belong to the runtime of a caller.
    of_caller: bool,
    shared: Arc<Shared>,
    pub(crate) store: StoreBody,
    pub(crate) operation_timeout: Duration,
}

/// The state of all connections of a store.
#[derive(Debug)]
struct Shared {
    current: AtomicUsize,
    /// The servers that may still carry out a claim of a request.
    unanswered: Mutex<RequestTable<Vec<Unanswered>>>,
    /// The server that has queued each waiting request, at its last claim. Only that server is notified of the grant.
    queued: Mutex<RequestTable<usize>>,
    /// The servers, on the connections of the store itself.
    servers: Vec<Arc<Server>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Unanswered {
    server: usize,
    /// One that a caller has dropped may arrive after one of the store itself.
    of_caller: bool,
    /// The time until which the server may carry the claim out.
    until: Moment,
}

/// Returns the servers on new connections, which are opened at the first request of each.
pub(crate) fn servers(config: &Config) -> Result<Vec<Arc<Server>>> {
    let client = client(config)?;
    let server = |name: &String| {
        let config_of_new = config.clone();
        let connection = Connection::new(client.clone(), Arc::new(move || self::client(&config_of_new)));
        Arc::new(Server::new(connection, config, name))
    };
    Ok(config.servers.iter().map(server).collect())
}

/// Returns a client without a connection.
pub(crate) fn client(config: &Config) -> Result<reqwest::Client, ConfigError> {
    let client = reqwest::Client::builder()
        .connect_timeout(config.operation_timeout.min(SHARE * 2))
        .redirect(reqwest::redirect::Policy::none())
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PINGS.0)
        .http2_keep_alive_timeout(PINGS.1);
    let client = tls::configure(client, config)?.build();
    client.map_err(|error| ConfigError::new("store", format!("can't create the HTTP client: {error}")))
}

impl Servers {
    /// Connects to the first server that replies. Core repeats this while the store may be unavailable.
    pub(crate) async fn connect(config: &Config) -> Result<Self> {
        config.check()?;
        let all = servers(config)?;
        let deadline = SystemClock.now() + config.connect_timeout;
        let mut last = None;
        for (at, server) in all.iter().enumerate() {
            let others = u32::try_from(all.len() - at).unwrap_or(u32::MAX);
            let share = deadline.since(SystemClock.now()) / others;
            match server.store(share.min(config.operation_timeout)).await {
                Ok(store) => {
                    let shared = Arc::new(Shared {
                        current: AtomicUsize::new(at),
                        unanswered: Mutex::default(),
                        queued: Mutex::default(),
                        servers: all.clone(),
                    });
                    let operation_timeout = config.operation_timeout;
                    return Ok(Self { all, of_caller: false, shared, store, operation_timeout });
                }
                Err(failure) => last = Some(failure.at(Operation::Connect, &server.base)),
            }
        }
        Err(last.unwrap_or_else(|| unreachable!("a URL has at least one server")))
    }

    /// Returns the same servers on connections that belong to the current runtime, one of which is open.
    pub(crate) fn for_caller(&self, config: Config) -> impl Future<Output = Result<Self>> + Send + 'static {
        let (shared, store, operation_timeout) =
            (self.shared.clone(), self.store.clone(), self.operation_timeout);
        async move {
            let servers = Self { all: servers(&config)?, of_caller: true, shared, store, operation_timeout };
            let server = servers.current();
            let opened = server.store(operation_timeout).await;
            opened.map_err(|failure| failure.at(Operation::Connect, &server.base))?;
            Ok(servers)
        }
    }

    /// Returns the server that is used now.
    pub(crate) fn current(&self) -> Arc<Server> {
        self.all[self.shared.current.load(Ordering::SeqCst)].clone()
    }

    /// Sends `body` to a server, and to another one if that fails, within `limit`. The operation may be carried out twice, and late.
    pub(crate) async fn send<B: Serialize + Sync, T: DeserializeOwned>(
        &self,
        operation: Operation,
        path: &str,
        body: &B,
        limit: Duration,
    ) -> Result<T> {
        self.send_counted(operation, path, body, limit).await.map(|(reply, _)| reply)
    }

    /// Sends `body` as [`send`](Self::send) does. The second value is true if an earlier attempt may have been carried out.
    pub(crate) async fn send_counted<B: Serialize + Sync, T: DeserializeOwned>(
        &self,
        operation: Operation,
        path: &str,
        body: &B,
        limit: Duration,
    ) -> Result<(T, bool)> {
        let mut attempts = self.attempts(operation, limit);
        let mut is_repeated = false;
        while let Some((at, share)) = attempts.next() {
            match self.all[at].post(path, body, share).await {
                Ok(reply) => return Ok((attempts.succeeded(reply), is_repeated)),
                Err(failure) => {
                    is_repeated |= failure.is_unanswered();
                    attempts.failed(failure)?;
                }
            }
        }
        Err(attempts.exhausted())
    }

    /// Sends `body` as [`send`](Self::send) does. The second value is true if an earlier attempt may have been carried out.
    ///
    /// No server carries it out after this has returned an error: each message names its expiry. While one without a reply may still arrive,
    /// because its connection has ended, the operation is repeated.
    pub(crate) async fn send_in_time<B: Serialize + Sync, T: DeserializeOwned>(
        &self,
        operation: Operation,
        path: &str,
        body: &B,
        limit: Duration,
    ) -> Result<(T, bool)> {
        let deadline = SystemClock.now() + time_limit::within(limit);
        let (mut is_repeated, mut expiry) = (false, None);
        loop {
            let mut attempts = self.attempts(operation, deadline.since(SystemClock.now()));
            let error = loop {
                let Some((at, share)) = attempts.next() else { break attempts.exhausted() };
                let (reply, expires) = self.post_in_time(at, path, body, share).await;
                match reply {
                    Ok(reply) => return Ok((attempts.succeeded(reply), is_repeated)),
                    Err(failure) => {
                        if failure.is_unanswered() {
                            (is_repeated, expiry) = (true, expiry.max(expires));
                        }
                        if let Err(error) = attempts.failed(failure) {
                            break error;
                        }
                    }
                }
            };
            let Some(expiry) = expiry.filter(|expiry| *expiry > SystemClock.now()) else { return Err(error) };
            let next = SystemClock.now() + PAUSE;
            if !error.is_temporary() || next >= deadline {
                SystemClock.sleep_until(expiry).await;
                return Err(error);
            }
            SystemClock.sleep_until(next).await;
        }
    }

    /// Sends a wait to the server in use, which carries it out once, unless it restarts. Returns `None` if another server has queued the request:
    /// this one is not notified of its grant.
    pub(crate) async fn wait(&self, request: &Request, limit: Duration) -> Result<Option<WakeReply>> {
        let current = self.shared.current.load(Ordering::SeqCst);
        if lock(&self.shared.queued).get(&request.id).is_some_and(|queued| *queued != current) {
            return Ok(None);
        }
        let server = &self.all[current];
        let reply = server.post(paths::WAIT, &RequestBody::from(request), limit).await;
        let reply = reply.map_err(|failure| failure.at(Operation::Wait, &server.base))?;
        if matches!(reply, WakeReply::Granted(_)) {
            self.forget_queued(request);
        }
        Ok(Some(reply))
    }

    fn attempts(&self, operation: Operation, limit: Duration) -> Attempts<'_> {
        let begin = self.shared.current.load(Ordering::SeqCst);
        Attempts { servers: self, operation, deadline: SystemClock.now() + limit, begin, step: 0, last: None }
    }

    fn use_instead(&self, old: usize, new: usize) {
        let current = &self.shared.current;
        let changed = current.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if changed && old != new {
            tracing::info!(server = %self.all[new].base, instead = %self.all[old].base, "using another server");
        }
    }

    /// Claims on a server that has the expected store.
    pub(crate) async fn claim(&self, request: &Request) -> Result<ClaimReply> {
        let limit = self.operation_timeout.min(request.ttl).min(time_limit::LONGEST);
        let mut attempts = self.attempts(Operation::Claim, time_limit::within(limit));
        while let Some((at, share)) = attempts.next() {
            match self.claim_on(at, request, share).await {
                Ok(reply) => {
                    self.note_queued(request, at, &reply);
                    return Ok(attempts.succeeded(reply));
                }
                Err(failure) => attempts.failed(failure)?,
            }
        }
        Err(attempts.exhausted())
    }

    /// Claims on one server, again if it finds the claim too late: its clock may have been set.
    async fn claim_on(&self, at: usize, request: &Request, limit: Duration) -> Result<ClaimReply, Failure> {
        let server = &self.all[at];
        for _ in 0..LATE {
            let expires = self.expiry(server, limit).await?;
            let claim = ClaimBody { request: request.into(), expires };
            // Before the request is sent: this future may be dropped.
            let until = SystemClock.now() + limit;
            self.note_unanswered(request, Unanswered { server: at, of_caller: self.of_caller, until });
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

    /// Returns the time by the clock of `server` at which an operation expires that is sent now and abandoned after `limit`.
    async fn expiry(&self, server: &Server, limit: Duration) -> Result<ServerTime, Failure> {
        if !server.store(limit).await?.may_be(&self.store) {
            return Err(Failure::Invalid("the store behind it is not that of the other servers".to_owned()));
        }
        server.expiry(limit).ok_or_else(|| Failure::Invalid("its replies have no clock".to_owned()))
    }

    /// Sends `body` to one server, again if that finds it too late: its clock may have been set. Returns the time after which the last message
    /// has no effect; `None` if none was sent.
    async fn post_in_time<B: Serialize + Sync, T: DeserializeOwned>(
        &self,
        at: usize,
        path: &str,
        body: &B,
        limit: Duration,
    ) -> (Result<T, Failure>, Option<Moment>) {
        let server = &self.all[at];
        let mut sent_until = None;
        for _ in 0..LATE {
            let expires = match self.expiry(server, limit).await {
                Ok(expires) => expires,
                Err(failure) => return (Err(failure), sent_until),
            };
            sent_until = Some(SystemClock.now() + limit);
            match server.post_by(path, body, limit, Some(expires)).await {
                Err(Failure::Refused(problem)) if problem.word() == polylock_protocol::LATE => {}
                reply => return (reply, sent_until),
            }
        }
        let cause = "the server finds every message too late: its clock jumps".to_owned();
        (Err(Failure::Unanswered(cause)), sent_until)
    }

    fn note_queued(&self, request: &Request, server: usize, reply: &ClaimReply) {
        if matches!(reply, ClaimReply::Queued(_)) && request.queues {
            let now = SystemClock.now();
            *lock(&self.shared.queued).update(request.id, now, request.obsolete_at(now), || server) = server;
        } else {
            self.forget_queued(request);
        }
    }

    /// Forgets the server that has queued a request, which waits no more.
    pub(crate) fn forget_queued(&self, request: &Request) {
        lock(&self.shared.queued).remove(&request.id);
    }

    /// Returns the number of requests that a server has queued.
    #[cfg(test)]
    pub(crate) fn queued(&self) -> usize {
        lock(&self.shared.queued).len()
    }

    fn note_unanswered(&self, request: &Request, new: Unanswered) {
        let now = SystemClock.now();
        let mut table = self.shared.lock_unanswered();
        let servers = table.update(request.id, now, new.until, Vec::new);
        servers.retain(|old| (old.server, old.of_caller) != (new.server, new.of_caller));
        servers.push(new);
    }

    fn forget_unanswered(&self, request: &Request, server: usize) {
        let mut table = self.shared.lock_unanswered();
        if let Some(servers) = table.get_mut(&request.id) {
            servers.retain(|old| (old.server, old.of_caller) != (server, self.of_caller));
            if servers.is_empty() {
                table.remove(&request.id);
            }
        }
    }

    /// Sends a release of a request to the servers that may still carry out a claim of it, in the background. A claim that was carried out
    /// although its server is not reachable until it has expired is then released on any server.
    pub(crate) fn release_unanswered(&self, request: &Request) {
        let unanswered = self.shared.lock_unanswered().remove(&request.id).unwrap_or_default();
        for Unanswered { server, until, .. } in unanswered {
            let (shared, body, end) = (self.shared.clone(), RequestBody::from(request), until + request.ttl);
            let releasing = io::run(NAME, async move {
                let mut at = server;
                while SystemClock.now() < end {
                    if SystemClock.now() >= until {
                        at = (at + 1) % shared.servers.len();
                    }
                    let server = &shared.servers[at];
                    let released =
                        server.post::<_, serde::de::IgnoredAny>(paths::RELEASE, &body, SHARE).await;
                    if released.is_ok() {
                        break;
                    }
                    SystemClock.sleep_until(SystemClock.now() + RELEASE_PAUSE).await;
                }
            });
            // The first poll begins it on the thread of the store: the runtime of a caller may end at any time.
            releasing.now_or_never();
        }
    }

    /// Returns the number of requests with claims that a server may still carry out.
    pub(crate) fn unanswered(&self) -> usize {
        self.shared.lock_unanswered().len()
    }
}

impl Shared {
    fn lock_unanswered(&self) -> MutexGuard<'_, RequestTable<Vec<Unanswered>>> {
        lock(&self.unanswered)
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
