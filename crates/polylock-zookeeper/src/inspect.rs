//! Looking into the ensemble, and breaking locks.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, future, stream};
use polylock_core::{
    BreakOrder, Clock, Entry, FencingToken, Inspect, LockName, LockStatus, Moment, Operation, OwnerId,
    Request, Result, SystemClock, queue,
};
use zookeeper_client::Stat;

use crate::{
    backend::Ensemble,
    nodes::{self, Child, NodeData},
    session::{Session, none_if_missing},
};

/// The time limit of an operation that a person waits for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// How many requests of one lock are read at a time.
const READS: usize = 64;
/// How many locks of a list are inspected at a time.
const LOCKS: usize = 16;

/// A request that is there, and whether it holds the lock.
pub(crate) struct Found {
    pub(crate) child: Child,
    pub(crate) path: String,
    pub(crate) data: Vec<u8>,
    pub(crate) version: i32,
    /// Whether the data are those of a request of this version or an older one.
    pub(crate) is_ours: bool,
    pub(crate) entry: Entry,
    holds: bool,
}

impl Ensemble {
    /// The requests of a lock, as they are now.
    async fn look(&self, operation: Operation, session: &Session, name: &LockName) -> Result<Vec<Found>> {
        let directory = nodes::directory(&self.sessions.config.root, name);
        let deadline = SystemClock.now() + PATIENCE;
        let children = self.answer(operation, deadline, session.children_now(&directory)).await?;
        self.read(operation, session, &directory, children, deadline).await
    }

    /// The requests of a lock that has these nodes.
    async fn read(
        &self,
        operation: Operation,
        session: &Session,
        directory: &str,
        children: Vec<String>,
        deadline: Moment,
    ) -> Result<Vec<Found>> {
        let requests = nodes::requests(children);
        let standpoints = nodes::standpoints(&requests);
        let holds = |at: u64, child: &Child| queue::blockers(&standpoints, at, child.mode).next().is_none();
        let reads = requests.iter().zip(0_u64..).map(|(child, at)| {
            let (path, holds) = (format!("{directory}/{}", child.name), holds(at, child));
            async move {
                let Some((data, stat)) = none_if_missing(session.client.get_data(&path).await)? else {
                    return Ok::<_, zookeeper_client::Error>(None);
                };
                let parsed = NodeData::parse(&data);
                let is_ours = parsed.is_some();
                let entry = entry(child, holds, parsed, &stat);
                let (child, version) = (child.clone(), stat.version);
                Ok(entry.map(|entry| Found { child, path, data, version, is_ours, entry, holds }))
            }
        });
        let reads: Vec<_> = reads.collect();
        let found = stream::iter(reads).buffered(READS).try_filter_map(future::ok).try_collect();
        self.answer(operation, deadline, found).await
    }

    /// Those who hold `name` now.
    pub(crate) async fn holders(&self, session: &Session, name: &LockName) -> Result<Vec<Found>> {
        let mut found = self.look(Operation::Break, session, name).await?;
        found.retain(|found| found.holds);
        Ok(found)
    }

    /// A lock, as this session sees it.
    async fn listed(&self, session: &Session, name: LockName) -> Result<LockStatus> {
        let directory = nodes::directory(&self.sessions.config.root, &name);
        let deadline = SystemClock.now() + PATIENCE;
        let children = async { none_if_missing(session.client.list_children(&directory).await) };
        let children = self.answer(Operation::Inspect, deadline, children).await?.unwrap_or_default();
        let found = self.read(Operation::Inspect, session, &directory, children, deadline).await?;
        Ok(status(name, found))
    }
}

fn status(name: LockName, found: Vec<Found>) -> LockStatus {
    let (mut holders, waiters): (Vec<_>, Vec<_>) = found.into_iter().partition(|found| found.holds);
    holders.sort_by_key(|found| found.entry.token);
    let entries = |found: Vec<Found>| found.into_iter().map(|found| found.entry).collect();
    LockStatus::new(name, entries(holders), entries(waiters))
}

/// What people see of a request. Of a node that only has the name of one it is what its name and the servers say: it keeps others
/// out all the same.
fn entry(child: &Child, holds: bool, data: Option<NodeData>, stat: &Stat) -> Option<Entry> {
    let data = match data {
        Some(data) => data,
        None => NodeData {
            owner: OwnerId::new("unknown").ok()?,
            label: "the data of its node are not polylock's, or are a newer version's".to_owned(),
            lease: Duration::ZERO,
            broken: None,
        },
    };
    let NodeData { owner, label, lease, broken } = data;
    // Until its own process takes it away. If that has died, its session's end does.
    let (token, expires_in) = match holds {
        true => (Some(FencingToken::new(stat.czxid)?), lease),
        false => (None, lease.min(Request::MAX_PLACE_TTL)),
    };
    Some(Entry::new(child.mode, owner, &label, token, age(stat), expires_in).broken(broken))
}

/// How long a node has been there. The servers do not tell what time it is for them, so this machine's clock is compared with
/// theirs: it is for people.
#[expect(clippy::disallowed_methods, reason = "shown to people, decides nothing")]
fn age(stat: &Stat) -> Duration {
    let made = Duration::from_millis(u64::try_from(stat.ctime).unwrap_or(0));
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(made)
}

#[async_trait]
impl Inspect for Ensemble {
    async fn inspect(&self, name: &LockName) -> Result<LockStatus> {
        let session = self.session(Operation::Inspect).await?;
        Ok(status(name.clone(), self.look(Operation::Inspect, &session, name).await?))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>> {
        let session = self.session(Operation::Inspect).await?;
        let deadline = SystemClock.now() + PATIENCE;
        // What the session reads after this is no older, so the locks themselves need no `sync`.
        let children = session.children_now(&self.sessions.config.root);
        let children = self.answer(Operation::Inspect, deadline, children).await?;
        let mut names: Vec<_> = children.iter().filter_map(|child| nodes::lock(child)).collect();
        names.retain(|name| name.as_str().starts_with(prefix));
        names.sort();
        let session = &*session;
        let locks =
            stream::iter(names).map(async move |name| self.listed(session, name).await).buffered(LOCKS);
        locks.try_filter(|lock| future::ready(!lock.is_free())).try_collect().await
    }

    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        self.break_holds(name, order).await
    }
}
