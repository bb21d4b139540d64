//! The state of watched locks, and the events between two states.

mod compare;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{Entry, LockName, LockStatus, Moment, Outage};
pub(crate) use compare::compare;

/// The state of the locks that a [`Watch`](crate::Watch) watches, as the store has reported it.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct WatchState {
    /// The locks in use, by name.
    pub locks: BTreeMap<LockName, Arc<WatchedLock>>,
    /// The time of the last read that has succeeded, by the clock of this machine.
    pub read_at: Moment,
    /// The outage of the store, if it can't be read now: then `locks` has the state before. It ends by itself, so its `until` is
    /// [`Moment::NEVER`].
    pub outage: Option<Outage>,
}

/// One lock of a [`WatchState`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WatchedLock {
    /// The holders and waiters. Their times are those at `read_at`.
    pub status: LockStatus,
    /// The time at which the status was read, by the clock of this machine.
    pub read_at: Moment,
    /// For each holder, the renewals that this watch has seen.
    pub renewals: Vec<Renewals>,
}

/// The renewals of a hold, as far as a watch has seen them between its reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renewals {
    /// The longest remaining lease that was read: the length of the lease, if the hold was renewed since the watch began.
    pub lease: Duration,
    /// The shortest remaining lease at a renewal, exact to the time between two reads; `None` before the first renewal. It shrinks long
    /// before the hold is lost. A store that does not return the remaining time of a lease (ZooKeeper, Azure Blob Storage) shows no renewals.
    pub slack: Option<Duration>,
}

/// The least extension that counts as a renewal: the times of a reply are not exact.
const LEAST_EXTENSION: Duration = Duration::from_millis(300);

impl WatchedLock {
    /// Returns a status that was read at `read_at`, after the state `before` of the same lock.
    #[must_use]
    pub fn new(status: LockStatus, read_at: Moment, before: Option<&Self>) -> Self {
        let since = before.map_or(Duration::ZERO, |before| read_at.since(before.read_at));
        let renewals = |holder: &Entry| {
            let first = Renewals { lease: holder.expires_in, slack: None };
            let Some((known, before)) = before.and_then(|before| before.renewals_of(holder)) else {
                return first;
            };
            let left = known.expires_in.saturating_sub(since);
            let is_renewed = !since.is_zero()
                && known.expires_in != holder.expires_in
                && holder.expires_in > left + LEAST_EXTENSION;
            let slack = is_renewed.then_some(left).into_iter().chain(before.slack).min();
            Renewals { lease: before.lease.max(holder.expires_in), slack }
        };
        let renewals = status.holders.iter().map(renewals).collect();
        Self { status, read_at, renewals }
    }

    /// Returns the same lock at `now`: the ages have grown, and the remaining leases have shrunk. A holder without a renewal since
    /// `read_at` has a lease of zero at its end.
    #[must_use]
    pub fn at(&self, now: Moment) -> LockStatus {
        let (mut status, since) = (self.status.clone(), now.since(self.read_at));
        for entry in status.holders.iter_mut().chain(&mut status.waiters) {
            *entry = entry.after(since);
        }
        status
    }

    fn renewals_of(&self, holder: &Entry) -> Option<(&Entry, &Renewals)> {
        let mut known = self.status.holders.iter().zip(&self.renewals);
        known.find(|(known, _)| known.token == holder.token)
    }
}

/// A change of one lock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// The kind of the change.
    pub kind: ChangeKind,
    /// The holder or the waiter. One that has ended or left is shown as it was read last, with the age at the read that has not found it.
    pub entry: Entry,
    /// The lock after this change and all others that were read with it.
    pub lock: Arc<WatchedLock>,
}

impl Change {
    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &LockName {
        &self.lock.status.name
    }
}

/// The kind of a [`Change`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChangeKind {
    /// A request has joined the queue, at this position, counted from 1.
    Queued {
        /// The position among the waiters.
        position: usize,
    },
    /// A request was granted the lock.
    Granted {
        /// The time that it had waited, if it was seen in the queue.
        waited: Option<Duration>,
    },
    /// A waiter has left the queue and does not hold the lock: its request was withdrawn or has expired, or it was granted the lock and has
    /// released it between two reads.
    Left,
    /// A holder was requested to stop: [`Entry::broken`] has the notice. It keeps the lock until it has released it.
    Broken,
    /// A hold has ended before the end of its lease. Its holder has released it; or the lock was broken by force, or the session of the
    /// holder has ended, which no store reports.
    Ended,
    /// A hold has ended with its lease, which was not renewed: the holder has died, has lost its connection, or has left the lock to
    /// expire. A store that does not return the remaining time of a lease (ZooKeeper, Azure Blob Storage) reports [`Ended`](Self::Ended).
    Expired,
}

impl ChangeKind {
    /// Returns the kind as one word, as in the output of `polylock watch`: `queued`, `granted`, `left`, `broken`, `ended` or `expired`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued { .. } => "queued",
            Self::Granted { .. } => "granted",
            Self::Left => "left",
            Self::Broken => "broken",
            Self::Ended => "ended",
            Self::Expired => "expired",
        }
    }
}

/// An event of a [`Watch`](crate::Watch).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum WatchEvent {
    /// A lock has changed.
    Changed(Change),
    /// The store can't be read.
    Unavailable(Outage),
    /// The store can be read again. The changes during the outage follow, as far as the states before and after it differ.
    Available,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FencingToken, Mode, OwnerId};

    #[test]
    fn the_slack_is_the_shortest_rest_of_a_lease_at_a_renewal() {
        let mut lock: Option<WatchedLock> = None;
        let slack_after = |lock: &mut Option<WatchedLock>, at: u64, left: u64| {
            let (owner, token) = (OwnerId::new("a").unwrap(), FencingToken::new(1));
            let (age, left) = (Duration::from_secs(at), Duration::from_secs(left));
            let holder = Entry::new(Mode::Exclusive, owner, "", token, age, left);
            let status = LockStatus::new(LockName::new("n").unwrap(), vec![holder], Vec::new());
            let next = WatchedLock::new(status, Moment::default() + age, lock.as_ref());
            let seen = next.renewals[0];
            *lock = Some(next);
            (seen.lease.as_secs(), seen.slack.map(|slack| slack.as_secs()))
        };
        assert_eq!(slack_after(&mut lock, 0, 25), (25, None));
        assert_eq!(slack_after(&mut lock, 4, 21), (25, None), "it has only shrunk");
        assert_eq!(slack_after(&mut lock, 6, 29), (29, Some(19)));
        assert_eq!(slack_after(&mut lock, 16, 28), (29, Some(19)), "29 s shrink to 19 s");
        assert_eq!(slack_after(&mut lock, 30, 30), (30, Some(14)));
        assert_eq!(slack_after(&mut lock, 40, 30), (30, Some(14)), "a store that shows no rest of a lease");
    }
}
