//! The one session that carries all locks of a store: made when it is needed, and a new one when it has ended.
//!
//! The driver keeps a session alive over connections that break, and tells it for ended by itself at last. Nothing here
//! waits for that word: a lock is held for two thirds of the session's time-out after the last request that was answered
//! had been sent, and no longer (see `Session::lease`).

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
    config::{Config, Proof},
    directory::{Directories, Directory},
    error::{Outcome, diagnose, outcome},
    janitor,
    making::Node,
    nodes::{self, Child, Guid},
    tls,
};

/// The longest that a server may be silent until another is tried. Less where sessions are short.
const SILENCE: Duration = Duration::from_secs(2);

/// How long servers may take to say why they can't be used, when none could: the end of the time for connecting.
const REASON: Duration = Duration::from_millis(300);

/// How long something that failed for the moment is left alone.
const PAUSE: Duration = Duration::from_millis(50);

/// Until when an operation waits for the servers, at the least and at the most.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// Why there is no session, or an operation failed.
#[derive(Debug, Clone)]
pub(crate) enum Trouble {
    /// What the driver says.
    Driver(Failure),
    /// No answer in this time.
    Silent(Duration),
    /// No session, because of this.
    Unreachable(String),
    /// Something of our own.
    Ours(Fault, String),
}

impl Trouble {
    fn at(self, operation: Operation, place: &str) -> Error {
        let at = At { backend: NAME, operation, place };
        match self {
            Self::Driver(error) => {
                let (fault, advice) = diagnose(&error, operation);
                at.failed(fault, advice.map(str::to_owned), error)
            }
            Self::Silent(time) => at.ours(Fault::Temporary, format!("no answer in {time:.1?}")),
            Self::Unreachable(reasons) => at.ours(Fault::Temporary, reasons),
            Self::Ours(fault, advice) => at.ours(fault, advice),
        }
    }
}

impl From<Failure> for Trouble {
    fn from(error: Failure) -> Self {
        Self::Driver(error)
    }
}

/// How sessions are made, and the one that is in use.
pub(crate) struct Sessions {
    pub(crate) config: Config,
    /// Notified of breaks, in whatever session a hold is.
    pub(crate) alerts: Arc<HoldAlerts>,
    connector: Connector,
    /// For errors and logs, without secrets.
    place: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    current: Option<Arc<Session>>,
    /// The try that is under way, shared by all who need it.
    opening: Option<Opening>,
}

type Opening = Shared<BoxFuture<'static, Result<Arc<Session>, Trouble>>>;

/// A session of the ensemble.
pub(crate) struct Session {
    pub(crate) client: Client,
    /// What the servers gave.
    pub(crate) timeout: Duration,
    /// The node that tells of breaks.
    pub(crate) breaks: String,
    /// What the guids of its nodes have in common.
    guid: Guid,
    /// The locks that they are in.
    pub(crate) directories: Arc<Directories>,
    /// The requests that have a node in it, or may have one.
    requests: Mutex<HashSet<Guid>>,
}

/// The registration of a request that has a node in a session, or may have one. Dropping it removes it.
pub(crate) struct Known {
    session: Arc<Session>,
    pub(crate) guid: Guid,
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Known({})", self.guid)
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        self.session.requests().remove(&self.guid);
    }
}

/// How a node was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Removal {
    /// By this deletion, as far as is known.
    Done,
    /// It was not there.
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
        f.debug_struct("Sessions").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Sessions {
    pub(crate) fn new(config: Config) -> Result<Arc<Self>, ConfigError> {
        let (connector, place) = (connector(&config)?, config.place());
        let (alerts, state) = (Arc::default(), Mutex::default());
        Ok(Arc::new(Self { config, alerts, connector, place, state }))
    }

    /// The session in use; a new one if there is none, or it has ended.
    ///
    /// # Errors
    /// Why none can be had. All who waited for the same try are told the same.
    ///
    /// # Cancel safety
    /// Yes: the try goes on when somebody asks again.
    pub(crate) async fn current(&self) -> Result<Arc<Session>, Trouble> {
        let opening = {
            let mut state = self.state();
            if let Some(session) = state.current.as_ref().filter(|session| !session.is_over()) {
                return Ok(session.clone());
            }
            state.current = None;
            let begin = || {
                // On a task of its own, so that it is not left half-way by whoever gives up.
                let opening = open(self.config.clone(), self.connector.clone(), self.alerts.clone());
                let opening = tokio::spawn(opening);
                opening.map(|opened| opened.unwrap_or_else(|cut| Err(cut_off(&cut)))).boxed().shared()
            };
            state.opening.get_or_insert_with(begin).clone()
        };
        let opened = opening.clone().await;
        let mut state = self.state();
        if state.opening.as_ref().is_some_and(|other| other.ptr_eq(&opening)) {
            state.opening = None;
            state.current = opened.as_ref().ok().cloned();
        }
        opened
    }

    /// `operation` failed for this reason.
    pub(crate) fn failed(&self, operation: Operation, trouble: impl Into<Trouble>) -> Error {
        trouble.into().at(operation, &self.place)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn cut_off(cut: &tokio::task::JoinError) -> Trouble {
    Trouble::Ours(Fault::Temporary, format!("the library's thread has ended: {cut}"))
}

fn connector(config: &Config) -> Result<Connector, ConfigError> {
    let mut connector = Client::connector()
        .with_session_timeout(config.session_timeout)
        // There must be time for another server before the lease has run out.
        .with_connection_timeout((config.session_timeout / 4).min(SILENCE))
        .with_fail_eagerly();
    match (&config.credentials, config.proof) {
        (Some((user, password)), Proof::Digest) => {
            connector = connector.with_auth("digest", format!("{user}:{password}").as_bytes());
        }
        #[cfg(feature = "sasl")]
        (Some((user, password)), Proof::SaslDigestMd5) => {
            use zookeeper_client::SaslOptions;
            connector = connector.with_sasl(SaslOptions::digest_md5(user.clone(), password.clone()));
        }
        _ => {}
    }
    if config.encrypted { tls::encrypt(connector, &config.certificates) } else { Ok(connector) }
}

async fn open(
    config: Config,
    connector: Connector,
    alerts: Arc<HoldAlerts>,
) -> Result<Arc<Session>, Trouble> {
    let scheme = if config.encrypted { "tcp+tls" } else { "tcp" };
    let servers: Vec<_> = config.servers.iter().map(|server| format!("{scheme}://{server}")).collect();
    let servers = servers.join(",");
    let began = SystemClock.now();
    let deadline = began + config.connect_timeout;
    let time_for_reasons = REASON.min(config.connect_timeout / 3);
    let mut connecting = pin!(connector.connect(&servers));
    let soon = began + (config.connect_timeout - time_for_reasons);
    let (connected, reasons) = match SystemClock.before(soon, &mut connecting).await {
        Some(connected) => (connected, None),
        // Both at once: whoever asked is not to wait beyond the deadline for reasons.
        None => {
            let both = join(SystemClock.before(deadline, connecting), reasons(&config, deadline)).await;
            (both.0.unwrap_or(Err(Failure::Timeout)), Some(both.1))
        }
    };
    let client = match connected {
        Ok(client) => client,
        Err(error @ (Failure::AuthFailed | Failure::BadArguments(_))) => return Err(error.into()),
        Err(_) => {
            let reasons = match reasons {
                Some(reasons) => reasons,
                None => self::reasons(&config, SystemClock.now() + time_for_reasons).await,
            };
            let took = SystemClock.now().since(began);
            return Err(Trouble::Unreachable(format!("no session after {took:.1?} ({reasons})")));
        }
    };
    let timeout = client.session_timeout();
    if timeout < config.session_timeout {
        tracing::warn!(asked = ?config.session_timeout, given = ?timeout, "the servers give shorter sessions: see maxSessionTimeout");
    }
    let (breaks, guid, requests) = (breaks::node(&config), Guid::random(), Mutex::default());
    let directories = Arc::<Directories>::default();
    let mut states = client.state_watcher();
    let session =
        Arc::new(Session { client, timeout, breaks, guid, directories: directories.clone(), requests });
    tokio::spawn(breaks::follow(Arc::downgrade(&session), alerts));
    tokio::spawn(janitor::run(Arc::downgrade(&session), directories.clone()));
    tokio::spawn(async move {
        // The last state is one of these, whoever ends the session.
        while !states.changed().await.is_terminated() {}
        directories.end();
    });
    Ok(session)
}

/// Why no server can be used, as far as that is known by the deadline.
async fn reasons(config: &Config, deadline: Moment) -> String {
    let reasons = config.servers.iter().map(async |server| {
        let reason = match SystemClock.before(deadline, TcpStream::connect(server)).await {
            Some(Ok(stream)) => match unencrypted(config, server, stream, deadline).await {
                Some(reason) => {
                    let check = "check the names in its certificate, polylock.tls_ca and polylock.tls_cert";
                    format!("no encrypted connection: {reason}: {check}")
                }
                None => "answers, and opens no session: does the ensemble have a majority?".to_owned(),
            },
            Some(Err(error)) => error.to_string(),
            None => "no answer".to_owned(),
        };
        format!("{server}: {reason}")
    });
    join_all(reasons).await.join("; ")
}

/// Why there is no encrypted connection to a server that could be reached, if there should be one.
async fn unencrypted(config: &Config, server: &str, stream: TcpStream, deadline: Moment) -> Option<String> {
    if !config.encrypted {
        return None;
    }
    let stream = stream.into_std().ok()?;
    stream.set_nonblocking(false).ok()?;
    // A time of zero would be for ever.
    let patience = deadline.since(SystemClock.now()).max(Duration::from_millis(1));
    stream.set_read_timeout(Some(patience)).ok()?;
    stream.set_write_timeout(Some(patience)).ok()?;
    let (files, server) = (config.certificates.clone(), server.to_owned());
    let shaking = tokio::task::spawn_blocking(move || tls::shake_hands(&files, &server, stream));
    let shaken = SystemClock.before(deadline, shaking).await?;
    shaken.ok()?.err().map(|error| error.to_string())
}

impl Session {
    /// For how long a lock is held after the sending of a request that was answered.
    ///
    /// The servers end a session no sooner than its time-out after they have heard of it. What a server hears it tells the
    /// leader every half tick, so if that server dies the leader may be behind by up to a quarter of the shortest session
    /// there is; the rest is for clocks that do not run alike.
    pub(crate) fn lease(&self) -> Duration {
        self.timeout * 2 / 3
    }

    /// How long an operation waits for the servers.
    pub(crate) fn patience(&self) -> Duration {
        Self::patience_of(self.timeout)
    }

    /// The same of a session with this time-out.
    pub(crate) fn patience_of(timeout: Duration) -> Duration {
        (timeout / 4).clamp(PATIENCE.0, PATIENCE.1)
    }

    /// Whether it has ended for sure. It may have ended otherwise, too.
    pub(crate) fn is_over(&self) -> bool {
        self.client.state().is_terminated()
    }

    /// Whether a node with this owner is one of this session.
    pub(crate) fn owns(&self, owner: i64) -> bool {
        owner == self.client.session_id().0
    }

    /// Registers a request whose node is about to be created, and gives it its guid.
    pub(crate) fn registers(self: &Arc<Self>) -> Known {
        let guid = Guid::of_session(self.guid);
        self.requests().insert(guid);
        Known { session: self.clone(), guid }
    }

    /// Whether a request has a node of this guid in this session, or may have one.
    pub(crate) fn knows(&self, guid: Guid) -> bool {
        self.requests().contains(&guid)
    }

    /// Applies a list of the children of `directory`.
    pub(crate) fn listed(self: &Arc<Self>, directory: &Directory, number: u64, children: Vec<String>) {
        let requests = nodes::requests(children);
        self.delete_orphans(&directory.path, &requests);
        directory.apply(number, &requests);
    }

    /// Deletes those of these requests, of the lock of `directory`, that are nodes of this session and of no request of this
    /// process: nobody else would, and the session keeps them.
    ///
    /// A request is registered from before its create is sent until its node is known to be gone. So no node that is being
    /// created or deleted is taken for an orphan, whatever the order of the replies.
    pub(crate) fn delete_orphans(self: &Arc<Self>, directory: &str, requests: &[Child]) {
        let orphans =
            requests.iter().filter(|one| one.guid.is_of_session(self.guid) && !self.knows(one.guid));
        let orphans: Vec<_> = orphans.map(|one| format!("{directory}/{}", one.name)).collect();
        if orphans.is_empty() {
            return;
        }
        let session = self.clone();
        tokio::spawn(async move {
            for node in orphans {
                // One that is gone by now is none, and anybody may have made one of that name.
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

    /// The breaks that were announced last, as this session sees them.
    pub(crate) async fn breaks(&self) -> Result<Breaks, Failure> {
        let seen = none_if_missing(self.client.get_data(&self.breaks).await)?;
        Ok(seen.map(|(data, _)| Breaks::parse(&data)).unwrap_or_default())
    }

    /// Deletes a node of this session, again and again until it is gone or the session has ended, and its nodes with it.
    pub(crate) async fn delete(&self, path: &str) -> Removal {
        let (mut told, mut may_be_done) = (false, false);
        loop {
            let error = match self.client.delete(path, None).await {
                Ok(()) => return Removal::Done,
                Err(error) => error,
            };
            let removal = match outcome(&error) {
                Outcome::Ended => Some(Removal::SessionEnded),
                Outcome::Refused if error == Failure::NoNode => Some(Removal::Absent),
                Outcome::Refused => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(
                            node = path,
                            error = &error as &dyn std::error::Error,
                            "a node of a lock can't be deleted, trying again until its session ends",
                        );
                    }
                    None
                }
                Outcome::Unknown => {
                    may_be_done = true;
                    None
                }
            };
            match removal {
                // An attempt whose reply was lost may have deleted it.
                Some(_) if may_be_done => return Removal::Done,
                Some(removal) => return removal,
                None => pause().await,
            }
        }
    }

    /// Reads these nodes of this session, in one request if the servers can (from ZooKeeper 3.6 on). What each read came to, in their
    /// order.
    pub(crate) async fn read(&self, nodes: &[&Node]) -> Vec<Result<(Vec<u8>, Stat), Failure>> {
        let one_by_one = async || join_all(nodes.iter().map(|node| self.client.get_data(&node.path()))).await;
        if nodes.len() < 2 {
            return one_by_one().await;
        }
        let mut reader = self.client.new_multi_reader();
        if nodes.iter().any(|node| reader.add_get_data(&node.path()).is_err()) {
            return one_by_one().await;
        }
        match reader.commit().await {
            Ok(read) if read.len() == nodes.len() => read.into_iter().map(one_of_many).collect(),
            Ok(_) => one_by_one().await,
            Err(error) if outcome(&error) == Outcome::Refused => one_by_one().await,
            Err(error) => nodes.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// The children of `path`, as they are for everybody when this is asked.
    pub(crate) async fn children_now(&self, path: &str) -> Result<Vec<String>, Failure> {
        // In this order on one connection: the server answers the second when it has caught up with the leader.
        let (sync, children) = (self.client.sync(path), self.client.list_children(path));
        let (sync, children) = futures_util::join!(sync, children);
        sync?;
        none_if_missing(children).map(Option::unwrap_or_default)
    }

    /// The children of `path` after everything that this session has sent before has been carried out, or will never be.
    ///
    /// A transaction that changes nothing goes before the list, on the same connection: it is answered when a majority has
    /// committed it.
    pub(crate) async fn children_after_commit(
        &self,
        config: &Config,
        path: &str,
    ) -> Result<Vec<String>, Failure> {
        let commit = self.client.new_check_writer(&config.root, None)?.commit();
        let (commit, children) = futures_util::join!(commit, self.client.list_children(path));
        match commit {
            // A check that fails is a transaction, too.
            Ok(_) | Err(CheckWriteError::CheckFailed { source: Failure::NoNode }) => {}
            Err(error) => return Err(error.into()),
        }
        none_if_missing(children).map(Option::unwrap_or_default)
    }

    /// Makes a node that lasts, and those above it, unless they are there.
    pub(crate) async fn make_root(&self, config: &Config) -> Result<(), Failure> {
        if self.client.check_stat(&config.root).await?.is_none() {
            self.client
                .mkdir(&config.root, &CreateMode::Persistent.with_acls(config.access().acls()))
                .await?;
        }
        Ok(())
    }
}

fn one_of_many(read: MultiReadResult) -> Result<(Vec<u8>, Stat), Failure> {
    match read {
        MultiReadResult::Data { data, stat } => Ok((data, stat)),
        MultiReadResult::Error { err } => Err(err),
        other => Err(Failure::UnexpectedError(format!("{other:?}"))),
    }
}

/// None for a node that is not there.
pub(crate) fn none_if_missing<T>(answer: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(Failure::NoNode) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Leaves alone for a moment what has just failed.
pub(crate) async fn pause() {
    SystemClock.sleep_until(SystemClock.now() + PAUSE).await;
}
