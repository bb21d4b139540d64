//! The wait-for graph of owners, and the cycles in it (pure).
//!
//! A waiter waits for every holder of the lock in a conflicting mode, and for every waiter ahead of it in one. So an owner in a cycle waits until
//! another owner in it gives up. A cycle is searched in the status of all locks, which is read one lock after the other, so it may have edges
//! that did not exist at the same time. It is confirmed by a second look that begins after the first one has ended: an edge that both looks show,
//! with the same holder and the same waiter, existed in between.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::Arc,
    time::Duration,
};

use crate::{Entry, LockName, LockStatus, Mode, Moment, OwnerId};

/// A look at all locks of a store.
#[derive(Debug, Clone)]
pub(crate) struct Look {
    pub(crate) began: Moment,
    pub(crate) ended: Moment,
    pub(crate) locks: Arc<Vec<LockStatus>>,
}

/// The wait of an owner for another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) lock: LockName,
    /// The owner of the waiter, its mode, and the time for which it has waited.
    pub(crate) waiter: OwnerId,
    pub(crate) mode: Mode,
    pub(crate) age: Duration,
    /// The owner that it waits for, which holds the lock, or waits ahead of it.
    pub(crate) other: OwnerId,
    pub(crate) other_mode: Mode,
    pub(crate) other_age: Duration,
    pub(crate) is_held: bool,
}

impl Wait {
    fn new(lock: &LockName, waiter: &Entry, other: &Entry) -> Self {
        Self {
            lock: lock.clone(),
            waiter: waiter.owner.clone(),
            mode: waiter.mode,
            age: waiter.age,
            other: other.owner.clone(),
            other_mode: other.mode,
            other_age: other.age,
            is_held: other.token.is_some(),
        }
    }

    /// Returns true if `later`, read `elapsed` later, is this wait: neither of its entries has begun since.
    fn is_continued_by(&self, later: &Self, elapsed: Duration) -> bool {
        (&self.lock, &self.waiter, self.mode, &self.other, self.other_mode)
            == (&later.lock, &later.waiter, later.mode, &later.other, later.other_mode)
            && later.age >= self.age + elapsed / 2
            && (later.other_age >= self.other_age + elapsed / 2 || (later.is_held && !self.is_held))
    }
}

/// Owners that wait for each other in a circle: each wait is for the owner of the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cycle(Vec<Wait>);

impl Cycle {
    /// Finds a shortest cycle through a wait and a hold of `owner`.
    ///
    /// A cycle in which others only wait behind `owner` exists without `owner`, too: they wait for the same holder. So an owner without a hold is in
    /// none, and each waiter of a queue is reached once for each mode. The time is linear in the entries.
    pub(crate) fn find(locks: &[LockStatus], owner: &OwnerId) -> Option<Self> {
        let is_holder = |lock: &LockStatus| lock.holders.iter().any(|holder| holder.owner == *owner);
        if owner.is_process() || !locks.iter().any(is_holder) {
            return None;
        }
        let mut waiting: HashMap<&OwnerId, Vec<(usize, usize)>> = HashMap::new();
        for (number, lock) in locks.iter().enumerate() {
            for (index, waiter) in lock.waiters.iter().enumerate() {
                waiting.entry(&waiter.owner).or_default().push((number, index));
            }
        }
        // Breadth first, with the wait by which each owner was reached.
        let mut reached: HashMap<&OwnerId, Wait> = HashMap::new();
        let mut queue = VecDeque::from([owner]);
        // The number of waiters that were reached from a waiter of this lock and mode.
        let mut seen: HashMap<(usize, Mode), usize> = HashMap::new();
        while let Some(at) = queue.pop_front() {
            for &(number, index) in waiting.get(at).into_iter().flatten() {
                let lock = &locks[number];
                let waiter = &lock.waiters[index];
                let seen = seen.entry((number, waiter.mode)).or_default();
                let ahead = lock.waiters.get(*seen..index).unwrap_or_default();
                *seen = index.max(*seen);
                for other in lock.holders.iter().chain(ahead) {
                    if other.owner == waiter.owner
                        || other.owner.is_process()
                        || !waiter.mode.conflicts_with(other.mode)
                    {
                        continue;
                    }
                    if other.owner == *owner && other.token.is_some() {
                        return Some(Self::back_from(Wait::new(&lock.name, waiter, other), owner, &reached));
                    }
                    if other.owner != *owner && !reached.contains_key(&other.owner) {
                        reached.insert(&other.owner, Wait::new(&lock.name, waiter, other));
                        queue.push_back(&other.owner);
                    }
                }
            }
        }
        None
    }

    fn back_from(last: Wait, owner: &OwnerId, reached: &HashMap<&OwnerId, Wait>) -> Self {
        let mut cycle = vec![last];
        while let Some(wait) =
            cycle.last().filter(|wait| wait.waiter != *owner).and_then(|wait| reached.get(&wait.waiter))
        {
            cycle.push(wait.clone());
        }
        cycle.reverse();
        Self(cycle)
    }

    /// Returns true if every wait of the cycle still exists in `locks`, which were read `elapsed` after those of the first look.
    pub(crate) fn is_confirmed_by(&self, locks: &[LockStatus], elapsed: Duration) -> bool {
        self.0.iter().all(|wait| {
            locks.iter().filter(|lock| lock.name == wait.lock).any(|lock| {
                lock.waiters.iter().enumerate().any(|(index, waiter)| {
                    let mut ahead = lock.holders.iter().chain(&lock.waiters[..index]);
                    ahead.any(|other| wait.is_continued_by(&Wait::new(&lock.name, waiter, other), elapsed))
                })
            })
        })
    }

    /// Returns the owner of the youngest request in the cycle, which is refused.
    pub(crate) fn victim(&self) -> Option<&OwnerId> {
        self.0.iter().min_by_key(|wait| (wait.age, wait.waiter.as_str())).map(|wait| &wait.waiter)
    }
}

impl fmt::Display for Cycle {
    /// Writes the cycle in words.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, wait) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            let relation = if wait.is_held { "held by" } else { "behind" };
            write!(
                f,
                "{separator}{} waits for {} ({}), {relation} {} ({})",
                wait.waiter, wait.lock, wait.mode, wait.other, wait.other_mode
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::FencingToken;

    fn owner(number: usize) -> OwnerId {
        OwnerId::new(format!("owner-{number}")).unwrap()
    }

    fn entry(by: usize, mode: Mode, is_held: bool, age: u64) -> Entry {
        let token = if is_held { FencingToken::new(1) } else { None };
        Entry::new(mode, owner(by), "", token, Duration::from_secs(age), Duration::from_secs(9))
    }

    /// A lock that the first owner holds exclusively, and the others wait for.
    fn lock(name: &str, owners: &[usize]) -> LockStatus {
        let waiters =
            owners[1..].iter().map(|by| entry(*by, Mode::Exclusive, false, 10 - *by as u64)).collect();
        LockStatus::new(
            LockName::new(name).unwrap(),
            vec![entry(owners[0], Mode::Exclusive, true, 50)],
            waiters,
        )
    }

    #[test]
    fn two_owners_that_wait_for_each_other_are_a_cycle() {
        let locks = [lock("a", &[1, 2]), lock("b", &[2, 1]), lock("c", &[3, 1])];
        let cycle = Cycle::find(&locks, &owner(1)).unwrap();
        assert_eq!(
            cycle.to_string(),
            "owner-1 waits for b (EX), held by owner-2 (EX); owner-2 waits for a (EX), held by owner-1 (EX)"
        );
        assert_eq!(cycle.victim(), Some(&owner(2)));
        assert!(Cycle::find(&locks, &owner(2)).is_some());
        assert_eq!(Cycle::find(&locks, &owner(3)), None);
        assert_eq!(Cycle::find(&locks[..1], &owner(2)), None);
    }

    #[test]
    fn a_waiter_ahead_is_waited_for_and_readers_are_not() {
        // 1 holds a; 2 waits for it, ahead of 3; 3 holds b, for which 4 waits; 4 holds c, for which 2 waits.
        let locks = [lock("a", &[1, 2, 3]), lock("b", &[3, 4]), lock("c", &[4, 2])];
        assert!(Cycle::find(&locks, &owner(3)).unwrap().to_string().contains("behind owner-2"));
        assert_eq!(Cycle::find(&locks, &owner(2)), None, "it holds nothing");
        let readers = |holder, waiter| {
            let (holder, waiter) =
                (entry(holder, Mode::Shared, true, 9), entry(waiter, Mode::Shared, false, 9));
            LockStatus::new(LockName::new("r").unwrap(), vec![holder], vec![waiter])
        };
        assert_eq!(Cycle::find(&[readers(1, 2), lock("b", &[2, 1])], &owner(1)), None);
    }

    #[test]
    fn only_the_same_requests_confirm_a_cycle() {
        let second = Duration::from_secs(1);
        let locks = [lock("a", &[1, 2]), lock("b", &[2, 1])];
        let later = |locks: &[LockStatus]| -> Vec<LockStatus> {
            let older = |entries: &[Entry]| entries.iter().map(|entry| entry.after(second)).collect();
            let after = |lock: &LockStatus| {
                LockStatus::new(lock.name.clone(), older(&lock.holders), older(&lock.waiters))
            };
            locks.iter().map(after).collect()
        };
        let cycle = Cycle::find(&locks, &owner(1)).unwrap();
        assert!(cycle.is_confirmed_by(&later(&locks), second));
        assert!(!cycle.is_confirmed_by(&locks, second), "younger than expected: others with the same owners");
        assert!(!cycle.is_confirmed_by(&later(&locks[..1]), second));
        let mut renewed = later(&locks);
        renewed[1].waiters[0].age = Duration::ZERO;
        assert!(!cycle.is_confirmed_by(&renewed, second), "the waiter has left and come back");
    }

    proptest! {
        /// A cycle is found if and only if the owner can reach a waiter for a lock that it holds.
        #[test]
        fn every_cycle_is_found_and_no_other(
            locks in prop::collection::vec(prop::collection::vec(0_usize..6, 1..4), 0..8),
        ) {
            let locks: Vec<LockStatus> =
                locks.iter().enumerate().map(|(index, owners)| lock(&index.to_string(), owners)).collect();
            let mut reaches: HashSet<(OwnerId, OwnerId)> = HashSet::new();
            for lock in &locks {
                let all: Vec<&Entry> = lock.holders.iter().chain(&lock.waiters).collect();
                for (index, waiter) in all.iter().enumerate() {
                    let others = all[..index].iter().filter(|other| other.owner != waiter.owner);
                    reaches.extend(others.map(|other| (waiter.owner.clone(), other.owner.clone())));
                }
            }
            for _ in 0..3 {
                let steps: Vec<_> = reaches.iter().cloned().collect();
                for (from, via) in &steps {
                    reaches.extend(steps.iter().filter(|step| step.0 == *via).map(|step| (from.clone(), step.1.clone())));
                }
            }
            for by in (0..6).map(owner) {
                let cycle = Cycle::find(&locks, &by);
                let is_awaited = |waiter: &Entry| waiter.owner != by && reaches.contains(&(by.clone(), waiter.owner.clone()));
                let mut held = locks.iter().filter(|lock| lock.holders[0].owner == by);
                prop_assert_eq!(cycle.is_some(), held.any(|lock| lock.waiters.iter().any(is_awaited)), "{:?}", locks);
                if let Some(Cycle(waits)) = cycle {
                    prop_assert_eq!(&waits[0].waiter, &by);
                    for (wait, next) in waits.iter().zip(waits.iter().cycle().skip(1)) {
                        prop_assert_eq!(&wait.other, &next.waiter);
                    }
                }
            }
        }
    }
}
