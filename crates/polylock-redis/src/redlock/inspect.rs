//! Looking into the nodes, and breaking a lock.

use std::{cmp::Reverse, collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use polylock_core::{
    BreakOrder, Entry, FencingToken, Inspect, LockName, LockStatus, Mode, Operation, OwnerId, Result,
};

use super::{
    backend::Redlock,
    node::Node,
    poll::{poll, quorum, too_few},
};
use crate::{keys, link::Question};

/// How long people wait for those nodes that are slow.
const PATIENCE: Duration = Duration::from_secs(1);

impl Redlock {
    /// What all nodes say, of which there must be a majority.
    async fn hear<T, F>(&self, operation: Operation, ask: impl Fn(usize, Arc<Node>) -> F) -> Result<Vec<T>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let answers = poll(operation, &self.nodes, PATIENCE, ask, |_| false).await;
        if answers.iter().filter(|answer| matches!(answer, Some(Ok(_)))).count() < quorum(self.nodes.len()) {
            return Err(too_few(operation, &self.nodes, answers));
        }
        Ok(answers.into_iter().flatten().flatten().collect())
    }
}

/// What a node tells of a lock.
struct Told {
    holder: Option<Entry>,
    /// By their channels.
    waiters: Vec<(String, Entry)>,
}

/// Who has the vote of `node`, and who waits for it.
async fn told(node: &Node, question: Question<'_>) -> Result<Told> {
    type Holder = (i64, i64, i64, String, String);
    type Waiter = (String, i64, i64, String, String);
    let answer = node.link.ask(Operation::Inspect, PATIENCE, question).await.outcome?;
    let (holders, waiters): (Vec<Holder>, Vec<Waiter>) = node.link.read(Operation::Inspect, answer)?;
    let micros = |us: i64| Duration::from_micros(u64::try_from(us).unwrap_or(0));
    let entry = |token, age, left, owner: String, label: String| {
        let owner = OwnerId::sanitized(&owner);
        Entry::new(Mode::Exclusive, owner, &label, token, micros(age), micros(left))
    };
    let holder = holders
        .into_iter()
        .next()
        .map(|(token, age, left, owner, label)| entry(FencingToken::new(token), age, left, owner, label));
    let waiters = waiters
        .into_iter()
        .map(|(channel, age, left, owner, label)| (channel, entry(None, age, left, owner, label)));
    Ok(Told { holder, waiters: waiters.collect() })
}

#[async_trait]
impl Inspect for Redlock {
    async fn inspect(&self, name: &LockName) -> Result<LockStatus> {
        let ask = |_, node: Arc<Node>| {
            let (scripts, name) = (self.scripts.clone(), name.clone());
            async move { told(&node, Question::Script(&scripts.inspect(&name))).await }
        };
        let (mut votes, mut waiters) = (HashMap::<_, Vec<Entry>>::new(), HashMap::<_, Entry>::new());
        for told in self.hear(Operation::Inspect, ask).await? {
            if let Some(entry) = told.holder {
                votes.entry(entry.token).or_default().push(entry);
            }
            for (channel, entry) in told.waiters {
                let longest = waiters.entry(channel).or_insert_with(|| entry.clone());
                if entry.age > longest.age {
                    *longest = entry;
                }
            }
        }
        // Who has less than a majority is about to take back its votes, or has died.
        let holders = votes.into_values().find(|votes| votes.len() >= quorum(self.nodes.len()));
        let holder = holders.into_iter().flatten().min_by_key(|entry| entry.expires_in);
        let mut waiters: Vec<Entry> = waiters.into_values().collect();
        waiters.sort_by_key(|entry| Reverse(entry.age));
        Ok(LockStatus::new(name.clone(), holder.into_iter().collect(), waiters))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>> {
        let ask = |_, node: Arc<Node>| {
            let (scripts, prefix) = (self.scripts.clone(), prefix.to_owned());
            async move { scripts.keys.in_use(&node.link, "r", &prefix).await }
        };
        let names = self.hear(Operation::Inspect, ask).await?.into_iter().flatten().collect();
        keys::in_use_of(self, &names).await
    }

    async fn break_lock(&self, name: &LockName, _: &BreakOrder) -> Result<Vec<Entry>> {
        let holders = self.inspect(name).await?.holders;
        let ask = |_, node: Arc<Node>| {
            let (scripts, name) = (self.scripts.clone(), name.clone());
            async move { node.tell(Operation::Break, PATIENCE, &scripts.break_lock(&name)).await }
        };
        self.hear(Operation::Break, ask).await?;
        Ok(holders)
    }
}
