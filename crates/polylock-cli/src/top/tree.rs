//! The tree of owners that wait for each other.

use std::collections::{BTreeMap, BTreeSet};

use polylock::{Entry, LockStatus};

use crate::output::seconds;

/// A waiter, and the lock that it waits for.
type Wait<'a> = (&'a LockStatus, &'a Entry);

/// Returns the lines of the tree: each owner that holds a lock with waiters, below it the waiters, and below them those that wait for
/// them. An owner may be a process with several tasks, so a cycle is not always a deadlock.
pub(super) fn lines<'a>(locks: impl Iterator<Item = &'a LockStatus>) -> Vec<String> {
    let mut waits: BTreeMap<&str, Vec<Wait<'_>>> = BTreeMap::new();
    let mut waiting = BTreeSet::new();
    let mut owners: BTreeMap<&str, &Entry> = BTreeMap::new();
    for lock in locks.filter(|lock| !lock.waiters.is_empty()) {
        waiting.extend(lock.waiters.iter().map(|waiter| waiter.owner.as_str()));
        for holder in &lock.holders {
            owners.entry(holder.owner.as_str()).or_insert(holder);
            let blocked = lock.waiters.iter().map(|waiter| (lock, waiter));
            waits.entry(holder.owner.as_str()).or_default().extend(blocked);
        }
    }
    let mut tree = Tree { waits, lines: Vec::new(), seen: BTreeSet::new() };
    // The owners that wait for nobody first; those that are left then are in cycles.
    for root in owners.keys().filter(|owner| !waiting.contains(**owner)) {
        tree.root(owners[root]);
    }
    for (owner, entry) in &owners {
        if !tree.seen.contains(owner) {
            tree.root(entry);
        }
    }
    tree.lines
}

struct Tree<'a> {
    /// The waits for each owner.
    waits: BTreeMap<&'a str, Vec<Wait<'a>>>,
    lines: Vec<String>,
    /// The owners with lines.
    seen: BTreeSet<&'a str>,
}

impl<'a> Tree<'a> {
    fn root(&mut self, holder: &'a Entry) {
        self.lines.push(crate::output::owner_and_label(holder));
        self.below(holder.owner.as_str(), "");
    }

    /// Adds the lines of those that wait for `owner`, once.
    fn below(&mut self, owner: &'a str, indent: &str) {
        if !self.seen.insert(owner) {
            return;
        }
        let waits = self.waits.get(owner).cloned().unwrap_or_default();
        for (at, (lock, waiter)) in waits.iter().enumerate() {
            let is_last = at + 1 == waits.len();
            let (branch, more) = if is_last { ("└ ", "  ") } else { ("├ ", "│ ") };
            let next = waiter.owner.as_str();
            let again =
                if self.seen.contains(next) && self.waits.contains_key(next) { ", see above" } else { "" };
            self.lines.push(format!(
                "{indent}{branch}{}: {}, {}, for {}{again}",
                lock.name,
                crate::output::owner_and_label(waiter),
                waiter.mode,
                seconds(waiter.age)
            ));
            self.below_waiter(next, &format!("{indent}{more}"));
        }
    }

    fn below_waiter(&mut self, owner: &'a str, indent: &str) {
        if self.waits.contains_key(owner) {
            self.below(owner, indent);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use polylock::{FencingToken, LockName, Mode, OwnerId};

    use super::*;

    fn lock(name: &str, holders: &[&str], waiters: &[&str]) -> LockStatus {
        let entry = |owner: &&str, token| {
            let (owner, second) = (OwnerId::new(owner).unwrap(), Duration::from_secs(1));
            Entry::new(Mode::Exclusive, owner, "", token, second, second)
        };
        LockStatus::new(
            LockName::new(name).unwrap(),
            holders.iter().map(|owner| entry(owner, FencingToken::new(1))).collect(),
            waiters.iter().map(|owner| entry(owner, None)).collect(),
        )
    }

    #[test]
    fn waiters_are_below_the_owners_that_they_wait_for() {
        let locks = [
            lock("l", &["a"], &["b", "c"]),
            lock("m", &["b"], &["d"]),
            lock("n", &["c", "e"], &["f"]),
            lock("free", &["g"], &[]),
        ];
        assert_eq!(
            lines(locks.iter()),
            [
                "a",
                "├ l: b, EX, for 1s",
                "│ └ m: d, EX, for 1s",
                "└ l: c, EX, for 1s",
                "  └ n: f, EX, for 1s",
                "e",
                "└ n: f, EX, for 1s",
            ]
        );
    }

    #[test]
    fn a_cycle_ends_where_it_began() {
        let locks = [lock("l", &["a"], &["b"]), lock("m", &["b"], &["a"])];
        assert_eq!(lines(locks.iter()), ["a", "└ l: b, EX, for 1s", "  └ m: a, EX, for 1s, see above"]);
        let own = [lock("l", &["a"], &["a"])];
        assert_eq!(lines(own.iter()), ["a", "└ l: a, EX, for 1s, see above"]);
    }
}
