//! The single session of a store: opened when it is needed, and replaced when it has ended.
//!
//! The driver keeps a session alive across connections, and eventually reports its end. The store does not depend on that report: a hold
//! is valid for two thirds of the session timeout after the last answered request was sent, and no longer (see `Session::lease`).

use std::{
    collections::HashSet,
    fmt,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared, join, join_all},
};
use polylock_core::{
    Clock, ConfigError, Error, Fault, HoldAlerts, Moment, Operation, Result, SystemClock, failure::At,
};
use tokio::net::TcpStream;
use zookeeper_client::{
    CheckWriteError, Client, Connector, CreateMode, Error as Failure, MultiReadResult, Stat,
};

use crate::{
    NAME,
    breaks::{self, Breaks},
    cleanup,
    config::{AuthScheme, Config},
    creation::Node,
    directory::{Directories, Directory},
    error::{Outcome, diagnose, outcome},
    nodes::{self, Child, Guid},
    tls,
};

/// The longest silence of a server before the driver tries another. It is shorter for short sessions.
const MAX_SILENCE: Duration = Duration::from_secs(2);

/// The time reserved, at the end of the connect timeout, for finding out the reason why no server is usable.
const DIAGNOSIS_TIME: Duration = Duration::from_millis(300);

/// The pause after a temporary failure.
const PAUSE: Duration = Duration::from_millis(50);

/// The shortest and the longest timeout of an operation.
const OPERATION_TIMEOUTS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// The cause of a failed operation or of a missing session.
#[derive(Debug, Clone)]
pub(crate) enum Cause {
    /// An error of the driver.
    Driver(Failure),
    /// No reply within this time.
    TimedOut(Duration),
    /// No session; the text lists the reason for each server.
    Unreachable(String),
    /// An error that this store detected itself.
    Detected(Fault, String),
}

impl Cause {
    fn at(self, operation: Operation, endpoint: &str) -> Error {
        let at = At { backend: NAME, operation, endpoint };
        match self {
            Self::Driver(error) => {
                let (fault, advice) = diagnose(&error, operation);
                at.failed(fault, advice.map(str::to_owned), error)
            }
            Self::TimedOut(time) => at.advise(
                Fault::Temporary,
                format!("no reply within {time:.1?}: the servers are busy or can't be reached"),
            ),
            Self::Unreachable(reasons) => at.advise(Fault::Temporary, reasons),
            Self::Detected(fault, advice) => at.advise(fault, advice),
        }
    }
}

impl From<Failure> for Cause {
    fn from(error: Failure) -> Self {
        Self::Driver(error)
    }
}

/// Opens sessions, and keeps the current one.
pub(crate) struct Sessions {
    pub(crate) config: Config,
    /// Notified of breaks of holds in any session.
    pub(crate) alerts: Arc<HoldAlerts>,
    connector: Connector,
    /// The servers and the root without secrets, for errors and logs.
    endpoint: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    current: Option<Arc<Session>>,
    /// The attempt to open a session that is in progress, shared by all callers.
    opening: Option<Opening>,
}

type Opening = Shared<BoxFuture<'static, Result<Arc<Session>, Cause>>>;

/// A session of the ensemble.
pub(crate) struct Session {
    pub(crate) client: Client,
    /// The timeout that the servers granted.
    pub(crate) timeout: Duration,
    /// The path of the node that announces breaks.
    pub(crate) breaks: String,
    /// The guid with the half that the nodes of this session share.
    guid: Guid,
    /// The locks in which the session has nodes.
    pub(crate) directories: Arc<Directories>,
    /// The requests that have a node in the session, or may have one.
    requests: Mutex<HashSet<Guid>>,
}

/// The registration of a request that has a node in a session, or may have one. Dropping it removes the registration.
pub(crate) struct Registration {
    session: Arc<Session>,
    pub(crate) guid: Guid,
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registration({})", self.guid)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.session.requests().remove(&self.guid);
    }
}

/// The outcome of the deletion of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Removal {
    /// The node was deleted, by this deletion as far as is known.
    Done,
    /// The node did not exist.
    Absent,
    /// The session had ended, and its nodes with it.
    SessionEnded,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl Sessions {
    pub(crate) fn new(config: Config) -> Result<Arc<Self>, ConfigError> {
        let (connector, endpoint) = (connector(&config)?, config.endpoint());
        let (alerts, state) = (Arc::default(), Mutex::default());
        Ok(Arc::new(Self { config, alerts, connector, endpoint, state }))
    }

    /// Returns the current session, or opens a new one if there is none or it has ended.
    ///
    /// # Errors
    /// The reason why no session could be opened. All callers that waited for the same attempt receive the same error.
    ///
    /// # Cancel safety
    /// Cancel-safe: the attempt continues with the next call.
    pub(crate) async fn current(&self) -> Result<Arc<Session>, Cause> {
        let opening = {
            let mut state = self.state();
            if let Some(session) = state.current.as_ref().filter(|session| !session.has_ended()) {
                return Ok(session.clone());
            }
            state.current = None;
            let start = || {
                // It runs in a task of its own, so that a cancelled caller does not leave it half done.
                let opening = open(self.config.clone(), self.connector.clone(), self.alerts.clone());
                let opening = tokio::spawn(opening);
                opening.map(|opened| opened.unwrap_or_else(|error| Err(task_failed(&error)))).boxed().shared()
            };
            state.opening.get_or_insert_with(start).clone()
        };
        let opened = opening.clone().await;
        let mut state = self.state();
        if state.opening.as_ref().is_some_and(|other| other.ptr_eq(&opening)) {
            state.opening = None;
            state.current = opened.as_ref().ok().cloned();
        }
        opened
    }

    /// Returns the error of a failed `operation`.
    pub(crate) fn failed(&self, operation: Operation, cause: impl Into<Cause>) -> Error {
        cause.into().at(operation, &self.endpoint)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn task_failed(error: &tokio::task::JoinError) -> Cause {
    Cause::Detected(Fault::Temporary, format!("the library's thread has ended: {error}"))
}

fn connector(config: &Config) -> Result<Connector, ConfigError> {
    let mut connector = Client::connector()
        .with_session_timeout(config.session_timeout)
        // This leaves time to reach another server before the lease has run out.
        .with_connection_timeout((config.session_timeout / 4).min(MAX_SILENCE))
        .with_fail_eagerly();
    match (&config.credentials, config.auth) {
        (Some((user, password)), AuthScheme::Digest) => {
            connector = connector.with_auth("digest", format!("{user}:{password}").as_bytes());
        }
        #[cfg(feature = "sasl")]
        (Some((user, password)), AuthScheme::SaslDigestMd5) => {
            use zookeeper_client::SaslOptions;
            connector = connector.with_sasl(SaslOptions::digest_md5(user.clone(), password.clone()));
        }
        _ => {}
    }
    if config.encrypted { tls::encrypt(connector, &config.certificates) } else { Ok(connector) }
}

async fn open(config: Config, connector: Connector, alerts: Arc<HoldAlerts>) -> Result<Arc<Session>, Cause> {
    let scheme = if config.encrypted { "tcp+tls" } else { "tcp" };
    let servers: Vec<_> = config.servers.iter().map(|server| format!("{scheme}://{server}")).collect();
    let servers = servers.join(",");
    let began = SystemClock.now();
    let deadline = began + config.connect_timeout;
    let diagnosis_time = DIAGNOSIS_TIME.min(config.connect_timeout / 3);
    let mut connecting = pin!(connector.connect(&servers));
    let connect_deadline = began + (config.connect_timeout - diagnosis_time);
    let (connected, reasons) = match SystemClock.before(connect_deadline, &mut connecting).await {
        Some(connected) => (connected, None),
        // Both run at once, so that the caller does not wait beyond the deadline for the reasons.
        None => {
            let both =
                join(SystemClock.before(deadline, connecting), diagnose_servers(&config, deadline)).await;
            (both.0.unwrap_or(Err(Failure::Timeout)), Some(both.1))
        }
    };
    let client = match connected {
        Ok(client) => client,
        Err(error @ (Failure::AuthFailed | Failure::BadArguments(_))) => return Err(error.into()),
        Err(_) => {
            let reasons = match reasons {
                Some(reasons) => reasons,
                None => diagnose_servers(&config, SystemClock.now() + diagnosis_time).await,
            };
            let took = SystemClock.now().since(began);
            return Err(Cause::Unreachable(format!("no session after {took:.1?} ({reasons})")));
        }
    };
    let timeout = client.session_timeout();
    if timeout < config.session_timeout {
        tracing::warn!(asked = ?config.session_timeout, given = ?timeout, "the servers granted a shorter session timeout: see maxSessionTimeout");
    }
    let (breaks, guid, requests) = (breaks::node(&config), Guid::random(), Mutex::default());
    let directories = Arc::<Directories>::default();
    let mut states = client.state_watcher();
    let session =
        Arc::new(Session { client, timeout, breaks, guid, directories: directories.clone(), requests });
    tokio::spawn(breaks::watch(Arc::downgrade(&session), alerts));
    tokio::spawn(cleanup::run(Arc::downgrade(&session), directories.clone()));
    tokio::spawn(async move {
        // The last state is a terminated one, whichever side ends the session.
        while !states.changed().await.is_terminated() {}
        directories.clear();
    });
    Ok(session)
}

/// Returns the reason why each server is unusable, as far as it is known by the deadline.
async fn diagnose_servers(config: &Config, deadline: Moment) -> String {
    let reasons = config.servers.iter().map(async |server| {
        let reason = match SystemClock.before(deadline, TcpStream::connect(server)).await {
            Some(Ok(stream)) => match tls_error(config, server, stream, deadline).await {
                Some(reason) => {
                    let check = "check the names in its certificate, polylock.tls_ca and polylock.tls_cert";
                    format!("no encrypted connection: {reason}: {check}")
                }
                None => "reachable, but opens no session: does the ensemble have a majority?".to_owned(),
            },
            Some(Err(error)) => error.to_string(),
            None => "no reply".to_owned(),
        };
        format!("{server}: {reason}")
    });
    join_all(reasons).await.join("; ")
}

/// Returns the error of a TLS handshake with a reachable server, if the configuration requires encryption.
async fn tls_error(config: &Config, server: &str, stream: TcpStream, deadline: Moment) -> Option<String> {
    if !config.encrypted {
        return None;
    }
    let stream = stream.into_std().ok()?;
    stream.set_nonblocking(false).ok()?;
    // A timeout of zero would mean no timeout.
    let timeout = deadline.since(SystemClock.now()).max(Duration::from_millis(1));
    stream.set_read_timeout(Some(timeout)).ok()?;
    stream.set_write_timeout(Some(timeout)).ok()?;
    let (files, server) = (config.certificates.clone(), server.to_owned());
    let handshake = tokio::task::spawn_blocking(move || tls::handshake(&files, &server, stream));
    let result = SystemClock.before(deadline, handshake).await?;
    result.ok()?.err().map(|error| error.to_string())
}

impl Session {
    /// Returns the validity of a hold after an answered request was sent.
    ///
    /// The servers end a session no sooner than its timeout after its last packet. A server reports its sessions to the leader every half
    /// tick, so if that server dies, the leader may be behind by up to a quarter of the shortest session. The remainder covers clocks
    /// that run at different rates.
    pub(crate) fn lease(&self) -> Duration {
        self.timeout * 2 / 3
    }

    /// Returns the timeout of an operation.
    pub(crate) fn operation_timeout(&self) -> Duration {
        Self::operation_timeout_of(self.timeout)
    }

    /// Returns the timeout of an operation in a session with this timeout.
    pub(crate) fn operation_timeout_of(timeout: Duration) -> Duration {
        (timeout / 4).clamp(OPERATION_TIMEOUTS.0, OPERATION_TIMEOUTS.1)
    }

    /// Returns true if the driver has reported the end of the session. The session may have ended without a report.
    pub(crate) fn has_ended(&self) -> bool {
        self.client.state().is_terminated()
    }

    /// Returns true if a node with this ephemeral owner belongs to this session.
    pub(crate) fn owns(&self, owner: i64) -> bool {
        owner == self.client.session_id().0
    }

    /// Registers a request before its node is created, and assigns its guid.
    pub(crate) fn register(self: &Arc<Self>) -> Registration {
        let guid = Guid::of_session(self.guid);
        self.requests().insert(guid);
        Registration { session: self.clone(), guid }
    }

    /// Returns true if a request has a node of this guid in this session, or may have one.
    pub(crate) fn is_registered(&self, guid: Guid) -> bool {
        self.requests().contains(&guid)
    }

    /// Applies a list of the children of `directory`.
    pub(crate) fn listed(self: &Arc<Self>, directory: &Directory, number: u64, children: Vec<String>) {
        let requests = nodes::requests(children);
        self.delete_orphans(&directory.path, &requests);
        directory.apply(number, &requests);
    }

    /// Deletes the orphans among these requests of the lock of `directory`: nodes of this session that belong to no request of this
    /// process. Only this session can delete them, and it would keep them alive.
    ///
    /// A request is registered from before its create is sent until its node is known to be gone. So no node that is being created or
    /// deleted is mistaken for an orphan, in any order of the replies.
    pub(crate) fn delete_orphans(self: &Arc<Self>, directory: &str, requests: &[Child]) {
        let orphans =
            requests.iter().filter(|one| one.guid.is_of_session(self.guid) && !self.is_registered(one.guid));
        let orphans: Vec<_> = orphans.map(|one| format!("{directory}/{}", one.name)).collect();
        if orphans.is_empty() {
            return;
        }
        let session = self.clone();
        tokio::spawn(async move {
            for node in orphans {
                // The node may be gone by now, and another client may have created a node of that name.
                let stat = session.client.check_stat(&node).await.ok().flatten();
                if stat.is_some_and(|stat| session.owns(stat.ephemeral_owner)) {
                    tracing::warn!(node, "deleting a node of this session that no request uses");
                    session.delete(&node).await;
                }
            }
        });
    }

    fn requests(&self) -> MutexGuard<'_, HashSet<Guid>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the newest breaks, as this session sees them.
    pub(crate) async fn breaks(&self) -> Result<Breaks, Failure> {
        let seen = none_if_missing(self.client.get_data(&self.breaks).await)?;
        Ok(seen.map(|(data, _)| Breaks::parse(&data)).unwrap_or_default())
    }

    /// Deletes a node of this session, with retries until the node is gone or the session has ended.
    pub(crate) async fn delete(&self, path: &str) -> Removal {
        let (mut is_logged, mut may_be_deleted) = (false, false);
        loop {
            let error = match self.client.delete(path, None).await {
                Ok(()) => return Removal::Done,
                Err(error) => error,
            };
            let removal = match outcome(&error) {
                Outcome::Ended => Some(Removal::SessionEnded),
                Outcome::Refused if error == Failure::NoNode => Some(Removal::Absent),
                Outcome::Refused => {
                    if !std::mem::replace(&mut is_logged, true) {
                        tracing::warn!(
                            node = path,
                            error = &error as &dyn std::error::Error,
                            "a node of a lock can't be deleted: retrying until the session ends",
                        );
                    }
                    None
                }
                Outcome::Unknown => {
                    may_be_deleted = true;
                    None
                }
            };
            match removal {
                // An attempt with a lost reply may have deleted it.
                Some(_) if may_be_deleted => return Removal::Done,
                Some(removal) => return removal,
                None => pause().await,
            }
        }
    }

    /// Reads these nodes of this session, in one request if the servers support it (ZooKeeper 3.6 or later). Returns the result of each
    /// read in the order of `nodes`.
    pub(crate) async fn read(&self, nodes: &[&Node]) -> Vec<Result<(Vec<u8>, Stat), Failure>> {
        let read_each = async || join_all(nodes.iter().map(|node| self.client.get_data(&node.path()))).await;
        if nodes.len() < 2 {
            return read_each().await;
        }
        let mut reader = self.client.new_multi_reader();
        if nodes.iter().any(|node| reader.add_get_data(&node.path()).is_err()) {
            return read_each().await;
        }
        match reader.commit().await {
            Ok(read) if read.len() == nodes.len() => read.into_iter().map(multi_read_result).collect(),
            Ok(_) => read_each().await,
            Err(error) if outcome(&error) == Outcome::Refused => read_each().await,
            Err(error) => nodes.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// Returns the current children of `path`: they include all changes that were committed before the call.
    pub(crate) async fn children_now(&self, path: &str) -> Result<Vec<String>, Failure> {
        // Sent in this order on one connection: the server answers the list after it has caught up with the leader.
        let (sync, children) = (self.client.sync(path), self.client.list_children(path));
        let (sync, children) = futures_util::join!(sync, children);
        sync?;
        none_if_missing(children).map(Option::unwrap_or_default)
    }

    /// Returns the children of `path`, read after every earlier request of this session has either been carried out or never will be.
    ///
    /// A transaction that changes nothing precedes the list on the same connection: it is answered when a majority has committed it.
    pub(crate) async fn children_after_commit(
        &self,
        config: &Config,
        path: &str,
    ) -> Result<Vec<String>, Failure> {
        let commit = self.client.new_check_writer(&config.root, None)?.commit();
        let (commit, children) = futures_util::join!(commit, self.client.list_children(path));
        match commit {
            // A failed check is a committed transaction, too.
            Ok(_) | Err(CheckWriteError::CheckFailed { source: Failure::NoNode }) => {}
            Err(error) => return Err(error.into()),
        }
        none_if_missing(children).map(Option::unwrap_or_default)
    }

    /// Creates the persistent root node and its parents if they are missing.
    pub(crate) async fn make_root(&self, config: &Config) -> Result<(), Failure> {
        if self.client.check_stat(&config.root).await?.is_none() {
            self.client
                .mkdir(&config.root, &CreateMode::Persistent.with_acls(config.access().acls()))
                .await?;
        }
        Ok(())
    }
}

fn multi_read_result(read: MultiReadResult) -> Result<(Vec<u8>, Stat), Failure> {
    match read {
        MultiReadResult::Data { data, stat } => Ok((data, stat)),
        MultiReadResult::Error { err } => Err(err),
        other => Err(Failure::UnexpectedError(format!("{other:?}"))),
    }
}

/// Maps the error of a missing node to `None`.
pub(crate) fn none_if_missing<T>(answer: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(Failure::NoNode) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Waits before the retry of a failed operation.
pub(crate) async fn pause() {
    SystemClock.sleep_until(SystemClock.now() + PAUSE).await;
}
