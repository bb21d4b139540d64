//! Looking into the ensemble, and breaking locks.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use futures_util::future::try_join_all;
use polylock_core::{
    BreakOrder, Clock, Entry, FencingToken, Inspect, LockName, LockStatus, Operation, Request, Result,
    SystemClock, queue,
};
use zookeeper_client::Stat;

use crate::{
    backend::Ensemble,
    nodes::{self, Child, Particulars},
    session::{Session, none_if_missing},
};

/// How long people wait for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A request that is there, and whether it holds the lock.
struct Found {
    path: String,
    entry: Entry,
    holds: bool,
}

impl Ensemble {
    async fn look(&self, operation: Operation, session: &Session, name: &LockName) -> Result<Vec<Found>> {
        let directory = nodes::directory(&self.sessions.config.root, name);
        let deadline = SystemClock.now() + PATIENCE;
        let children = self.answer(operation, deadline, session.children_now(&directory)).await?;
        let requests = nodes::requests(children);
        let standpoints = nodes::standpoints(&requests);
        let holds = |at: u64, child: &Child| queue::blockers(&standpoints, at, child.mode).next().is_none();
        let looks = requests.iter().zip(0_u64..).map(|(child, at)| {
            let (path, holds) = (format!("{directory}/{}", child.name), holds(at, child));
            async move {
                let found = none_if_missing(session.client.get_data(&path).await)?;
                // It has gone meanwhile, or it is a stranger's that looks like one of ours.
                let entry = found.and_then(|(data, stat)| entry(child, holds, &data, &stat));
                Ok::<_, zookeeper_client::Error>(entry.map(|entry| Found { path, entry, holds }))
            }
        });
        let found = self.answer(operation, deadline, try_join_all(looks)).await?;
        Ok(found.into_iter().flatten().collect())
    }

    async fn status(&self, session: &Session, name: &LockName) -> Result<LockStatus> {
        let found = self.look(Operation::Inspect, session, name).await?;
        let (mut holders, waiters): (Vec<_>, Vec<_>) = found.into_iter().partition(|found| found.holds);
        holders.sort_by_key(|found| found.entry.token);
        let entries = |found: Vec<Found>| found.into_iter().map(|found| found.entry).collect();
        Ok(LockStatus::new(name.clone(), entries(holders), entries(waiters)))
    }
}

fn entry(child: &Child, holds: bool, data: &[u8], stat: &Stat) -> Option<Entry> {
    let Particulars { owner, label, ttl } = Particulars::parse(data)?;
    // Until its own process takes it away. If that has died, its session's end does.
    let (token, expires_in) = match holds {
        true => (Some(FencingToken::new(stat.czxid)?), ttl),
        false => (None, ttl.min(Request::MAX_PLACE_TTL)),
    };
    Some(Entry::new(child.mode, owner, &label, token, age(stat), expires_in))
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
        self.status(&session, name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>> {
        let session = self.session(Operation::Inspect).await?;
        let deadline = SystemClock.now() + PATIENCE;
        let children = session.children_now(&self.sessions.config.root);
        let children = self.answer(Operation::Inspect, deadline, children).await?;
        let mut names: Vec<_> = children.iter().filter_map(|child| nodes::lock(child)).collect();
        names.retain(|name| name.as_str().starts_with(prefix));
        names.sort();
        let locks = try_join_all(names.iter().map(|name| self.status(&session, name))).await?;
        Ok(locks.into_iter().filter(|lock| !lock.is_free()).collect())
    }

    async fn break_lock(&self, name: &LockName, _: &BreakOrder) -> Result<Vec<Entry>> {
        let operation = Operation::Break;
        let session = self.session(operation).await?;
        let mut holders = self.look(operation, &session, name).await?;
        holders.retain(|found| found.holds);
        let deadline = SystemClock.now() + PATIENCE;
        let delete = async |found: Found| {
            none_if_missing(session.client.delete(&found.path, None).await)?;
            Ok::<_, zookeeper_client::Error>(found.entry)
        };
        let broken = try_join_all(holders.into_iter().map(delete));
        self.answer(operation, deadline, broken).await
    }
}
