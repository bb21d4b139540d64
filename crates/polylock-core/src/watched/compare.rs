//! The changes between two states of a lock.
//!
//! A hold is identified by its token. A store shows no identity of a waiter, so waiters are matched by mode, owner, label and the time at
//! which they have begun to wait. Waiters that agree in all of these can't be told apart, and their changes are the same, too.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use super::{ChangeKind, WatchedLock};
use crate::{Entry, LockStatus, Mode, Moment, OwnerId};

/// The greatest difference between two readings of the time at which a waiter has begun to wait: delays of replies, and times in whole
/// seconds.
const SAME_START: Duration = Duration::from_millis(1500);

/// Returns the changes from `before` to `after`, which was read at `read_at`, in their likely order.
pub(crate) fn compare(before: &WatchedLock, after: &LockStatus, read_at: Moment) -> Vec<(ChangeKind, Entry)> {
    let old = &before.status;
    let since = read_at.since(before.read_at);
    let find = |holders: &[Entry], token| holders.iter().position(|holder| holder.token == token);
    let mut changes = Vec::new();
    for holder in &old.holders {
        if find(&after.holders, holder.token).is_none() {
            let kind = if holder.expires_in <= since { ChangeKind::Expired } else { ChangeKind::Ended };
            changes.push((kind, holder.after(since)));
        }
    }
    let (mut left, joined) = unmatched(&old.waiters, &after.waiters, since);
    for holder in &after.holders {
        if find(&old.holders, holder.token).is_some() {
            continue;
        }
        let waiter = left.iter().position(|at| key(&old.waiters[*at]) == key(holder));
        let waited = waiter.map(|at| {
            let waiter = &old.waiters[left.remove(at)];
            // Until the grant, as far as the store shows its time.
            waiter.age + since.saturating_sub(holder.age)
        });
        changes.push((ChangeKind::Granted { waited }, holder.clone()));
    }
    for holder in &after.holders {
        let known = find(&old.holders, holder.token).map(|at| &old.holders[at]);
        if holder.broken.is_some() && known.is_none_or(|known| known.broken.is_none()) {
            changes.push((ChangeKind::Broken, holder.clone()));
        }
    }
    changes.extend(left.into_iter().map(|at| (ChangeKind::Left, old.waiters[at].after(since))));
    changes.extend(
        joined.into_iter().map(|at| (ChangeKind::Queued { position: at + 1 }, after.waiters[at].clone())),
    );
    changes
}

/// Returns the indices of the waiters in `old` without an equal one in `new`, which was read `since` later, and vice versa.
fn unmatched(old: &[Entry], new: &[Entry], since: Duration) -> (Vec<usize>, Vec<usize>) {
    let mut alike: HashMap<_, VecDeque<usize>> = HashMap::new();
    for (at, waiter) in new.iter().enumerate() {
        alike.entry(key(waiter)).or_default().push_back(at);
    }
    let (mut left, mut joined) = (Vec::new(), Vec::new());
    for (at, waiter) in old.iter().enumerate() {
        let age = waiter.age + since;
        let candidates = alike.entry(key(waiter)).or_default();
        // A queue is in the order of its ages, the greatest first.
        while let Some(older) = candidates.front().filter(|candidate| new[**candidate].age > age + SAME_START)
        {
            joined.push(*older);
            candidates.pop_front();
        }
        match candidates.front() {
            Some(same) if new[*same].age + SAME_START >= age => drop(candidates.pop_front()),
            _ => left.push(at),
        }
    }
    joined.extend(alike.into_values().flatten());
    joined.sort_unstable();
    (left, joined)
}

fn key(entry: &Entry) -> (Mode, &OwnerId, &str) {
    (entry.mode, &entry.owner, &entry.label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BreakNotice, FencingToken, LockName};

    const SECOND: Duration = Duration::from_secs(1);

    fn entry(owner: &str, token: Option<i64>, age: u32) -> Entry {
        let token = token.and_then(FencingToken::new);
        Entry::new(Mode::Exclusive, OwnerId::new(owner).unwrap(), "", token, age * SECOND, 20 * SECOND)
    }

    fn status(holders: Vec<Entry>, waiters: Vec<Entry>) -> LockStatus {
        LockStatus::new(LockName::new("n").unwrap(), holders, waiters)
    }

    /// Returns the changes between two readings with this many seconds in between, as text.
    fn changes(before: LockStatus, after: &LockStatus, seconds: u32) -> Vec<String> {
        let began = Moment::from_nanos(5);
        let found = compare(&WatchedLock::new(before, began, None), after, began + seconds * SECOND);
        let text = |(kind, entry): (ChangeKind, Entry)| {
            let detail = match kind {
                ChangeKind::Queued { position } => format!(" {position}"),
                ChangeKind::Granted { waited: Some(waited) } => format!(" {}", waited.as_secs()),
                _ => String::new(),
            };
            format!("{} {}{detail}", kind.as_str(), entry.owner)
        };
        found.into_iter().map(text).collect()
    }

    #[test]
    fn equal_states_have_no_changes() {
        let before = status(vec![entry("a", Some(1), 3)], vec![entry("b", None, 2), entry("c", None, 0)]);
        let after = status(vec![entry("a", Some(1), 4)], vec![entry("b", None, 3), entry("c", None, 1)]);
        assert_eq!(changes(before, &after, 1), [""; 0]);
    }

    #[test]
    fn a_hand_over_is_an_end_and_a_grant_to_the_waiter() {
        let before = status(vec![entry("a", Some(1), 3)], vec![entry("b", None, 7), entry("c", None, 1)]);
        let after = status(vec![entry("b", Some(2), 0)], vec![entry("c", None, 2), entry("d", None, 0)]);
        assert_eq!(changes(before, &after, 1), ["ended a", "granted b 8", "queued d 2"]);
    }

    #[test]
    fn a_hold_of_the_same_owner_with_another_token_is_a_new_grant() {
        let (before, after) =
            (status(vec![entry("a", Some(1), 3)], vec![]), status(vec![entry("a", Some(2), 0)], vec![]));
        assert_eq!(changes(before, &after, 1), ["ended a", "granted a"]);
    }

    #[test]
    fn a_hold_that_is_gone_after_its_lease_has_expired() {
        let before = || status(vec![entry("a", Some(1), 3)], vec![]);
        let free = status(vec![], vec![]);
        assert_eq!(changes(before(), &free, 19), ["ended a"]);
        assert_eq!(changes(before(), &free, 20), ["expired a"]);
    }

    #[test]
    fn waiters_leave_and_return() {
        let waiters = |names: &[(&str, u32)]| {
            status(vec![], names.iter().map(|(name, age)| entry(name, None, *age)).collect())
        };
        // The same owner at another time is another waiter, and the queue keeps its order.
        let after = waiters(&[("b", 9), ("a", 1), ("b", 0)]);
        assert_eq!(
            changes(waiters(&[("a", 9), ("b", 8), ("c", 7)]), &after, 1),
            ["left a", "left c", "queued a 2", "queued b 3"]
        );
    }

    #[test]
    fn a_break_is_reported_once() {
        let broken = || entry("a", Some(1), 3).broken(Some(BreakNotice::default()));
        let before = status(vec![entry("a", Some(1), 3)], vec![]);
        assert_eq!(changes(before, &status(vec![broken()], vec![]), 1), ["broken a"]);
        assert_eq!(changes(status(vec![broken()], vec![]), &status(vec![broken()], vec![]), 0), [""; 0]);
        // A grant that was broken before it was read.
        assert_eq!(
            changes(status(vec![], vec![]), &status(vec![broken()], vec![]), 1),
            ["granted a", "broken a"]
        );
    }
}
