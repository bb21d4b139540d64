//! The leader, as other processes see it.

use crate::{Entry, FencingToken, Moment, Outage, OwnerId, Watch, WatchState};

/// A leader, as the store has reported it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The owner of the candidate.
    pub owner: OwnerId,
    /// The label of the candidate; empty if it has none.
    pub label: String,
    /// The token of the term; `None` on a store without fencing tokens.
    pub token: Option<FencingToken>,
    /// The begin of the term, by the clock of this machine.
    pub since: Moment,
}

/// The state of an election.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Leadership {
    /// A candidate leads.
    Held(Leader),
    /// No candidate leads.
    Vacant,
    /// The store can't be read, so the leader is unknown.
    Unknown(Outage),
}

impl Leadership {
    fn of(state: &WatchState) -> Self {
        if let Some(outage) = &state.outage {
            return Self::Unknown(outage.clone());
        }
        let held = state.locks.values().find_map(|lock| Some((lock, lock.status.holders.first()?)));
        held.map_or(Self::Vacant, |(lock, holder)| Self::Held(Leader::new(holder, lock.read_at)))
    }

    /// Returns the leader, if there is one and it is known.
    #[must_use]
    pub const fn leader(&self) -> Option<&Leader> {
        if let Self::Held(leader) = self { Some(leader) } else { None }
    }

    /// Returns true if both are the same term, or both are vacant, or both are unknown.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Held(one), Self::Held(other)) => {
                (one.token, &one.owner, &one.label) == (other.token, &other.owner, &other.label)
            }
            (Self::Vacant, Self::Vacant) | (Self::Unknown(_), Self::Unknown(_)) => true,
            _ => false,
        }
    }
}

impl Leader {
    fn new(holder: &Entry, read_at: Moment) -> Self {
        Self {
            owner: holder.owner.clone(),
            label: holder.label.clone(),
            token: holder.token,
            since: read_at - holder.age,
        }
    }
}

/// The leader of an election and its changes, from [`Election::observe`](crate::Election::observe).
///
/// It is a [`Watch`] of the lock of the election, and costs the store as much: less than one waiter. A term that begins and ends between
/// two reads is not shown.
///
/// ```
/// use polylock_core::{Leadership, Locks, memory};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locks = Locks::new(memory::connect());
/// let mut watch = locks.election("scheduler").observe().await?;
/// assert_eq!(watch.current(), &Leadership::Vacant);
/// let term = locks.election("scheduler").label("host-a").campaign().await?;
/// let leader = watch.changed().await.leader().expect("a candidate leads");
/// assert_eq!((leader.label.as_str(), leader.token), ("host-a", Some(term.fencing_token())));
/// # Ok::<(), polylock_core::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct LeaderWatch {
    watch: Watch,
    current: Leadership,
}

impl LeaderWatch {
    pub(super) fn new(watch: Watch) -> Self {
        let current = Leadership::of(watch.state());
        Self { watch, current }
    }

    /// Returns the state that the last read has shown.
    #[must_use]
    pub const fn current(&self) -> &Leadership {
        &self.current
    }

    /// Waits until another candidate leads, no candidate leads, or the store can't be read, and returns that state.
    ///
    /// # Cancel safety
    /// Dropping the future loses no change.
    pub async fn changed(&mut self) -> &Leadership {
        loop {
            self.watch.refresh().await;
            let found = Leadership::of(self.watch.state());
            if !found.is_same(&self.current) {
                self.current = found;
                return &self.current;
            }
        }
    }
}
