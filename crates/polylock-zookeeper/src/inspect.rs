//! Inspecting and listing locks.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, future, stream};
use polylock_core::{
    BreakOrder, Clock, Entry, FencingToken, Inspect, LockName, LockStatus, Moment, Operation, OwnerId,
    Request, Result, SystemClock, queue,
};
use zookeeper_client::Stat;

use crate::{
    backend::ZooKeeperBackend,
    nodes::{self, Child, NodeData},
    session::{Session, none_if_missing},
};

/// The time limit of an interactive operation.
pub(crate) const INTERACTIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// The number of requests of one lock that are read at a time.
const MAX_READS: usize = 64;
/// The number of locks of a list that are inspected at a time.
const MAX_LOCKS: usize = 16;

/// The node of a request. `is_held` is true if the request holds the lock.
pub(crate) struct FoundRequest {
    pub(crate) child: Child,
    pub(crate) path: String,
    pub(crate) data: Vec<u8>,
    pub(crate) version: i32,
    /// True if the data are those of a request of this version or an older one.
    pub(crate) has_known_data: bool,
    pub(crate) entry: Entry,
    is_held: bool,
}

impl ZooKeeperBackend {
    /// Returns the current requests of a lock.
    async fn requests(
        &self,
        operation: Operation,
        session: &Session,
        name: &LockName,
    ) -> Result<Vec<FoundRequest>> {
        let directory = nodes::directory(&self.sessions.config.root, name);
        let deadline = SystemClock.now() + INTERACTIVE_TIMEOUT;
        let children = self.by_deadline(operation, deadline, session.children_now(&directory)).await?;
        self.read(operation, session, &directory, children, deadline).await
    }

    /// Reads the requests among these children of a lock's node.
    async fn read(
        &self,
        operation: Operation,
        session: &Session,
        directory: &str,
        children: Vec<String>,
        deadline: Moment,
    ) -> Result<Vec<FoundRequest>> {
        let requests = nodes::requests(children);
        let queue_entries = nodes::queue_entries(&requests);
        let is_held =
            |at: u64, child: &Child| queue::blockers(&queue_entries, at, child.mode).next().is_none();
        let reads = requests.iter().zip(0_u64..).map(|(child, at)| {
            let (path, is_held) = (format!("{directory}/{}", child.name), is_held(at, child));
            async move {
                let Some((data, stat)) = none_if_missing(session.client.get_data(&path).await)? else {
                    return Ok::<_, zookeeper_client::Error>(None);
                };
                let parsed = NodeData::parse(&data);
                let has_known_data = parsed.is_some();
                let entry = entry(child, is_held, parsed, &stat);
                let (child, version) = (child.clone(), stat.version);
                Ok(entry.map(|entry| FoundRequest {
                    child,
                    path,
                    data,
                    version,
                    has_known_data,
                    entry,
                    is_held,
                }))
            }
        });
        let reads: Vec<_> = reads.collect();
        let found = stream::iter(reads).buffered(MAX_READS).try_filter_map(future::ok).try_collect();
        self.by_deadline(operation, deadline, found).await
    }

    /// Returns the current holders of `name`.
    pub(crate) async fn holders(&self, session: &Session, name: &LockName) -> Result<Vec<FoundRequest>> {
        let mut found = self.requests(Operation::Break, session, name).await?;
        found.retain(|found| found.is_held);
        Ok(found)
    }

    /// Returns the status of a lock as this session sees it.
    async fn status_in_list(&self, session: &Session, name: LockName) -> Result<LockStatus> {
        let directory = nodes::directory(&self.sessions.config.root, &name);
        let deadline = SystemClock.now() + INTERACTIVE_TIMEOUT;
        let children = async { none_if_missing(session.client.list_children(&directory).await) };
        let children = self.by_deadline(Operation::Inspect, deadline, children).await?.unwrap_or_default();
        let found = self.read(Operation::Inspect, session, &directory, children, deadline).await?;
        Ok(status(name, found))
    }
}

fn status(name: LockName, found: Vec<FoundRequest>) -> LockStatus {
    let (mut holders, waiters): (Vec<_>, Vec<_>) = found.into_iter().partition(|found| found.is_held);
    holders.sort_by_key(|found| found.entry.token);
    let entries = |found: Vec<FoundRequest>| found.into_iter().map(|found| found.entry).collect();
    LockStatus::new(name, entries(holders), entries(waiters))
}

/// Returns the entry of a request for display. A node with the name of a request but other data excludes other requests all the same; its
/// entry comes from its name and from the servers' `Stat`.
fn entry(child: &Child, is_held: bool, data: Option<NodeData>, stat: &Stat) -> Option<Entry> {
    let data = match data {
        Some(data) => data,
        None => NodeData {
            owner: OwnerId::new("unknown").ok()?,
            label: "the data of its node are from another program or a newer version".to_owned(),
            lease: Duration::ZERO,
            broken: None,
        },
    };
    let NodeData { owner, label, lease, broken } = data;
    // The holder's own process deletes the node at that time. If that process has died, the end of its session does.
    let (token, expires_in) = match is_held {
        true => (Some(FencingToken::new(stat.czxid)?), lease),
        false => (None, lease.min(Request::MAX_QUEUE_LEASE)),
    };
    Some(Entry::new(child.mode, owner, &label, token, age(stat), expires_in).broken(broken))
}

/// Returns the age of a node. The servers do not send their current time, so it is computed from this machine's clock, and is for display
/// only.
#[expect(clippy::disallowed_methods, reason = "shown to people, decides nothing")]
fn age(stat: &Stat) -> Duration {
    let created = Duration::from_millis(u64::try_from(stat.ctime).unwrap_or(0));
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(created)
}

#[async_trait]
impl Inspect for ZooKeeperBackend {
    async fn inspect(&self, name: &LockName) -> Result<LockStatus> {
        let session = self.session(Operation::Inspect).await?;
        Ok(status(name.clone(), self.requests(Operation::Inspect, &session, name).await?))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>> {
        let session = self.session(Operation::Inspect).await?;
        let deadline = SystemClock.now() + INTERACTIVE_TIMEOUT;
        // Later reads of the session are no older, so the locks themselves need no `sync`.
        let children = session.children_now(&self.sessions.config.root);
        let children = self.by_deadline(Operation::Inspect, deadline, children).await?;
        let mut names: Vec<_> = children.iter().filter_map(|child| nodes::lock(child)).collect();
        names.retain(|name| name.as_str().starts_with(prefix));
        names.sort();
        let session = &*session;
        let locks = stream::iter(names)
            .map(async move |name| self.status_in_list(session, name).await)
            .buffered(MAX_LOCKS);
        locks.try_filter(|lock| future::ready(!lock.is_free())).try_collect().await
    }

    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        self.break_holds(name, order).await
    }
}
