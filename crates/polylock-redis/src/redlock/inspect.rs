//! Inspecting the servers, and breaking a lock.

use std::{cmp::Reverse, collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use polylock_core::{
    BreakNotice, BreakOrder, Entry, FencingToken, Inspect, LockName, LockStatus, Mode, Operation, OwnerId,
    Result,
};

use super::{
    backend::RedlockBackend,
    in_time::{expiry, settled},
    node::Node,
    poll::{no_majority, poll},
    scripts::lease_left,
    tally::quorum,
};
use crate::{call::Call, connection::Peer, keys};

/// The time limit for slow servers.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The time limit for a scan of all keys of the servers. Each step of the scan has a time limit of its own.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);

impl RedlockBackend {
    /// Returns the replies of all servers within this time. It is an error if there is no majority of them.
    async fn majority<T, F>(
        &self,
        operation: Operation,
        within: Duration,
        send: impl Fn(usize, Arc<Node>) -> F + Send + Sync,
    ) -> Result<Vec<T>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let nodes = &self.servers.nodes;
        let replies =
            poll(operation, nodes, within, |index, node| Some(send(index, node)), |_, _| false).await;
        if replies.iter().filter(|reply| matches!(reply, Some(Ok(_)))).count() < quorum(nodes.len()) {
            return Err(no_majority(operation, nodes, &replies));
        }
        Ok(replies.into_iter().flatten().flatten().collect())
    }
}

/// One server's state of a lock.
pub(super) struct Status {
    pub(super) holder: Option<Entry>,
    /// The waiters, each with its channel.
    pub(super) waiters: Vec<(String, Entry)>,
}

/// Token, age and time left in us, owner, label, break notice or empty.
type HolderParts = (i64, i64, i64, String, String, String);
/// Channel, age and time left in us, owner, label.
type WaiterParts = (String, i64, i64, String, String);
/// The reply of the script that inspects a lock: at most one holder, and the waiters.
pub(super) type StatusParts = (Vec<HolderParts>, Vec<WaiterParts>);

async fn status(node: &Node, call: Call<'_>) -> Result<Status> {
    let reply = node.link.call(Operation::Inspect, TIMEOUT, call).await.outcome?;
    Ok(read_status(node.link.read(Operation::Inspect, reply)?))
}

/// Decodes one server's state of a lock.
pub(super) fn read_status((holders, waiters): StatusParts) -> Status {
    let micros = |us: i64| Duration::from_micros(u64::try_from(us).unwrap_or(0));
    let entry = |token, age, left, owner: String, label: String| {
        let owner = OwnerId::sanitized(&owner);
        Entry::new(Mode::Exclusive, owner, &label, token, micros(age), left)
    };
    let holder = holders.into_iter().next().map(|(token, age, left, owner, label, notice)| {
        let broken = (!notice.is_empty()).then(|| BreakNotice::from_text(&notice));
        entry(FencingToken::new(token), age, lease_left(micros(left)), owner, label).broken(broken)
    });
    let waiters = waiters
        .into_iter()
        .map(|(channel, age, left, owner, label)| (channel, entry(None, age, micros(left), owner, label)));
    Status { holder, waiters: waiters.collect() }
}

/// Returns the holder that a majority of `count` servers has voted for. The votes of `missing` servers are unknown: a request that has a
/// majority with them counts as the holder, because a break that does not find it would report that there is nothing to break. The mark
/// of a break counts only if a majority has it.
fn elected(votes: Vec<Entry>, missing: usize, count: usize) -> Option<Entry> {
    let mut by_token = HashMap::<_, Vec<Entry>>::new();
    for entry in votes {
        by_token.entry(entry.token).or_default().push(entry);
    }
    // A request with less than a majority is about to withdraw its votes, or its client has died.
    let may_hold = by_token.into_iter().filter(|(_, votes)| votes.len() + missing >= quorum(count));
    let (_, mut votes) = may_hold.max_by_key(|(token, votes)| (votes.len(), *token))?;
    let marks = votes.iter().filter_map(|entry| entry.broken.clone());
    let marked = votes.len() - votes.iter().filter(|entry| entry.broken.is_none()).count();
    let broken = if marked >= quorum(count) { most_frequent(marks) } else { None };
    // It keeps others out for as long as a majority has these votes: a server may have missed a renewal.
    votes.sort_by_key(|entry| Reverse(entry.expires_in));
    votes.into_iter().take(quorum(count)).last().map(|entry| entry.broken(broken))
}

/// Returns the most frequent value. Servers can have different notices if a break that had failed was repeated.
fn most_frequent<T: Eq + std::hash::Hash>(values: impl Iterator<Item = T>) -> Option<T> {
    let mut counts = HashMap::new();
    values.for_each(|value| *counts.entry(value).or_insert(0) += 1);
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(value, _)| value)
}

#[async_trait]
impl Inspect for RedlockBackend {
    async fn inspect(&self, name: &LockName) -> Result<LockStatus> {
        let send = |_, node: Arc<Node>| {
            let (servers, name) = (self.servers.clone(), name.clone());
            async move {
                let call = |_: &Peer| servers.scripts.inspect(&name);
                status(&node, Call::Script(&call)).await
            }
        };
        let (mut votes, mut waiters) = (Vec::new(), HashMap::<_, Entry>::new());
        let (statuses, count) =
            (self.majority(Operation::Inspect, TIMEOUT, send).await?, self.servers.nodes.len());
        let missing = count - statuses.len();
        for status in statuses {
            votes.extend(status.holder);
            for (channel, entry) in status.waiters {
                let longest = waiters.entry(channel).or_insert_with(|| entry.clone());
                if entry.age > longest.age {
                    *longest = entry;
                }
            }
        }
        let holder = elected(votes, missing, count);
        let mut waiters: Vec<Entry> = waiters.into_values().collect();
        waiters.sort_by_key(|entry| Reverse(entry.age));
        Ok(LockStatus::new(name.clone(), holder.into_iter().collect(), waiters))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>> {
        let send = |_, node: Arc<Node>| {
            let (servers, prefix) = (self.servers.clone(), prefix.to_owned());
            async move { servers.scripts.keys.scan_names(&node.link, "r", &prefix).await }
        };
        let names =
            self.majority(Operation::Inspect, LIST_TIMEOUT, send).await?.into_iter().flatten().collect();
        keys::inspect_all(self, names).await
    }

    fn lists_semaphores(&self) -> bool {
        true
    }

    /// Breaks the vote for one number on every server. It has failed unless a majority has taken part: then no majority can have unmarked
    /// votes for that number, now or later, so the hold ends at its next renewal.
    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        let holder =
            self.inspect(name).await?.holders.into_iter().find(|holder| order.is_target(holder.token));
        let Some(number) = holder.as_ref().and_then(|holder| holder.token).map(FencingToken::as_i64) else {
            return Ok(Vec::new());
        };
        let by = expiry(TIMEOUT);
        let send = |_, node: Arc<Node>| {
            let (servers, name, channel) =
                (self.servers.clone(), name.clone(), self.context.break_channel.clone());
            let (notice, force) = (order.notice.to_text(), order.force);
            async move {
                let call = |_: &Peer, expiry| {
                    servers.scripts.break_lock(&name, number, &notice, force, &channel, expiry)
                };
                node.break_lock((by, TIMEOUT), &call).await
            }
        };
        let notices = settled(by, self.majority(Operation::Break, TIMEOUT, send).await).await?;
        let notices: Vec<String> = notices.into_iter().flatten().collect();
        if order.force {
            return Ok(holder.into_iter().collect());
        }
        // Without a notice, the lock was released in the meantime.
        let notice = most_frequent(notices.into_iter()).map(|notice| BreakNotice::from_text(&notice));
        Ok(holder.filter(|_| notice.is_some()).map(|holder| holder.broken(notice)).into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vote(token: i64, notice: Option<&str>) -> Entry {
        let second = Duration::from_secs(1);
        let owner = OwnerId::new("o").unwrap();
        Entry::new(Mode::Exclusive, owner, "", FencingToken::new(token), second, second)
            .broken(notice.map(BreakNotice::from_text))
    }

    #[test]
    fn a_hold_lasts_as_long_as_the_votes_of_a_majority() {
        let left = |lefts: &[u64], missing| {
            let with_lease = |left: &u64| {
                let mut vote = vote(7, None);
                vote.expires_in = Duration::from_secs(*left);
                vote
            };
            elected(lefts.iter().map(with_lease).collect(), missing, 3)
                .map(|holder| holder.expires_in.as_secs())
        };
        assert_eq!(left(&[9, 1, 8], 0), Some(8));
        assert_eq!((left(&[9, 1], 1), left(&[9], 2), left(&[9], 1)), (Some(1), Some(9), Some(9)));
    }

    #[test]
    fn a_holder_has_a_majority_and_is_broken_by_a_majority() {
        assert_eq!(elected(vec![vote(7, None), vote(8, None)], 0, 3), None);
        let token = |votes: Vec<Entry>| elected(votes, 1, 3).and_then(|holder| holder.token);
        assert_eq!(
            token(vec![vote(7, None)]),
            FencingToken::new(7),
            "the server without a reply may have the other vote"
        );
        assert_eq!(
            token(vec![vote(7, None), vote(8, None)]),
            FencingToken::new(8),
            "the later one is more likely"
        );
        assert_eq!(token(vec![vote(7, None), vote(8, None), vote(7, None)]), FencingToken::new(7));
        assert_eq!(elected(vec![vote(7, None)], 1, 5), None, "two are no majority of five");
        let holder = |marks: [Option<&str>; 4]| {
            let votes = marks.map(|mark| vote(7, mark));
            elected(votes.into(), 1, 5).unwrap().broken.and_then(|notice| notice.by).map(|by| by.to_string())
        };
        assert_eq!(holder([Some("a"), Some("a"), None, None]), None);
        assert_eq!(holder([Some("a"), Some("b"), Some("b"), None]).as_deref(), Some("b"));
    }
}
