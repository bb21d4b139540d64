//! A session of the ensemble, and the operations on its nodes.
//!
//! The driver keeps a session alive across connections, and eventually reports its end. The store does not depend on that report: a hold
//! is valid while the servers certainly keep the session (see [`lifetime`](crate::lifetime)), and no longer.

use std::{
    collections::HashSet,
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures_util::future::join_all;
use polylock_core::{Clock, Executor, Moment, SystemClock, sync::lock};
use zookeeper_client::{CheckWriteError, Error as Failure, MultiReadResult, Stat};

use crate::{
    client::{CheckWriter, Client, CreateMode},
    config::Config,
    directory::{Directories, Directory},
    error::{Outcome, outcome},
    lifetime::Lifetime,
    nodes::{self, Child, Guid},
};

/// The pause after a temporary failure.
const PAUSE: Duration = Duration::from_millis(50);

/// The shortest and the longest timeout of an operation.
const OPERATION_TIMEOUTS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// A session of the ensemble.
pub(crate) struct Session {
    pub(crate) client: Client,
    /// The timeout that the servers granted.
    pub(crate) timeout: Duration,
    /// The path of the node that announces breaks.
    pub(crate) breaks: String,
    /// The time until which the servers keep the session.
    pub(crate) lifetime: Lifetime,
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

impl Session {
    /// Returns the session of a driver's client, which was requested at `sent`. `breaks` is the path of the node that announces breaks.
    pub(crate) fn new(client: Client, breaks: String, sent: Moment) -> Self {
        let timeout = client.session_timeout();
        Self {
            timeout,
            client,
            breaks,
            lifetime: Lifetime::new(timeout, sent),
            guid: Guid::random(),
            directories: Arc::default(),
            requests: Mutex::default(),
        }
    }

    /// Returns the lease of a hold whose claim or renewal began at `began`: `ttl`, or less if the session does not certainly last for that.
    ///
    /// # Errors
    /// If a transaction is needed, and fails.
    pub(crate) async fn lease_from(&self, began: Moment, ttl: Duration) -> Result<Duration, Failure> {
        let ttl = ttl.min(self.lifetime.longest_lease());
        let known = || self.lifetime.until().since(began).min(ttl);
        if known() < ttl {
            self.commit().await?;
        }
        // The last sync was answered before an outage, or replies are late.
        if known() < ttl {
            self.sync().await?;
            self.commit().await?;
        }
        Ok(known())
    }

    /// Sends a transaction that changes nothing, before this returns. The future completes when a majority has committed it.
    fn commit(&self) -> impl Future<Output = Result<(), Failure>> {
        let sent = SystemClock.now();
        let commit = self.client.new_check_writer(&self.breaks, None).map(CheckWriter::commit);
        async move {
            match commit?.await {
                // A failed check is a committed transaction, too.
                Ok(_) | Err(CheckWriteError::CheckFailed { source: Failure::NoNode }) => {}
                Err(error) => return Err(error.into()),
            }
            self.lifetime.committed(sent);
            Ok(())
        }
    }

    /// Waits until the server has caught up with the leader.
    pub(crate) async fn sync(&self) -> Result<(), Failure> {
        let sent = SystemClock.now();
        self.client.sync(&self.breaks).await?;
        self.lifetime.synced(sent);
        Ok(())
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
        Executor::current().spawn(async move {
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
        lock(&self.requests)
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

    /// Reads these nodes, in one request if the servers support it (ZooKeeper 3.6 or later). Returns the result of each read in the order
    /// of `paths`.
    pub(crate) async fn read(&self, paths: &[String]) -> Vec<Result<(Vec<u8>, Stat), Failure>> {
        let read_each = async || join_all(paths.iter().map(|path| self.client.get_data(path))).await;
        if paths.len() < 2 {
            return read_each().await;
        }
        let mut reader = self.client.new_multi_reader();
        if paths.iter().any(|path| reader.add_get_data(path).is_err()) {
            return read_each().await;
        }
        match reader.commit().await {
            Ok(read) if read.len() == paths.len() => read.into_iter().map(multi_read_result).collect(),
            Ok(_) => read_each().await,
            Err(error) if outcome(&error) == Outcome::Refused => read_each().await,
            Err(error) => paths.iter().map(|_| Err(error.clone())).collect(),
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
    pub(crate) async fn children_after_commit(&self, path: &str) -> Result<Vec<String>, Failure> {
        let (commit, children) = (self.commit(), self.client.list_children(path));
        let (commit, children) = futures_util::join!(commit, children);
        commit?;
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
