//! The requests of core to a store, and their outcomes: grants, queue positions, keep-alives, releases.

use std::{fmt, sync::Arc, time::Duration};

use crate::{FencingToken, Label, LockName, LostReason, Mode, Moment, OwnerId, random};

/// A random 128-bit id of one attempt to hold one lock.
///
/// Every operation is idempotent in it, so a lost reply is harmless. The id suffices to release the lock, so it is a secret:
/// `Debug` hides it, and it has no `Display`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(u128);

impl RequestId {
    /// The greatest id.
    pub(crate) const LAST: Self = Self(u128::MAX);

    /// Creates an id from the operating system's random source.
    #[must_use]
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        random::fill(&mut bytes);
        Self::from_bytes(bytes)
    }

    /// Returns the 16 bytes for a store to keep.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// Returns the id that a store has kept as these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestId(secret)")
    }
}

/// One attempt to hold one lock, which core passes to a store with every operation.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Request {
    /// The secret id of this attempt.
    pub id: RequestId,
    /// The name of the lock.
    pub name: LockName,
    /// The mode in which the lock is requested.
    pub mode: Mode,
    /// The lease of a grant or a renewal, within the store's [`ttl`](crate::Capabilities::ttl) range.
    pub ttl: Duration,
    /// True if the request waits in the queue. Otherwise a claim that can't be granted at once leaves nothing in the store.
    pub queues: bool,
    /// True if another process may know the id: by a [handle](crate::HoldHandle), or as another server of a lock service. Then
    ///
    /// * the hold ends with its lease, even in a store that [frees](crate::Capabilities::frees_dead_holders) the locks of processes that have
    ///   ended; a keep-alive with this value changes that, too;
    /// * a release leaves a record in the store that refuses late copies of claims, for [`LONGEST`](crate::time_limit::LONGEST) at least: the
    ///   process that releases the lock does not know which copies the others have sent;
    /// * a release expires with its caller's patience, because another process may have renewed the hold since.
    pub outlives_process: bool,
    /// True if [`QueuePosition::ahead`] is used. Otherwise a store need not count, if counting costs more with each waiter.
    pub wants_position: bool,
    /// The owner of the request, shown by inspection.
    pub owner: OwnerId,
    /// The purpose of the request, shown by inspection.
    pub label: Option<Label>,
}

impl Request {
    /// The longest time that a dead waiter may block those behind it.
    pub const MAX_QUEUE_LEASE: Duration = Duration::from_secs(5);

    /// Creates a request with a fresh id that waits in the queue, owned by this process.
    #[must_use]
    pub fn new(name: LockName, mode: Mode, ttl: Duration) -> Self {
        Self {
            id: RequestId::random(),
            name,
            mode,
            ttl,
            queues: true,
            outlives_process: false,
            wants_position: true,
            owner: OwnerId::process(),
            label: None,
        }
    }

    /// Returns the same request with a fresh id: another attempt.
    pub(crate) fn with_new_id(&self) -> Self {
        Self { id: RequestId::random(), ..self.clone() }
    }

    /// Returns the same request, with an id that another process may know.
    pub(crate) fn known_elsewhere(self: &Arc<Self>) -> Arc<Self> {
        if self.outlives_process {
            return self.clone();
        }
        Arc::new(Self { outlives_process: true, ..Self::clone(self) })
    }

    /// Returns the time that a queue entry lasts without a claim or a keep-alive: the waiter's own short lease.
    #[must_use]
    pub fn queue_lease(&self) -> Duration {
        self.ttl.min(Self::MAX_QUEUE_LEASE)
    }

    /// Returns the time from which a record of this request, last changed at `now`, is obsolete: its lease has expired, and core has
    /// stopped trying to release it.
    #[must_use]
    pub fn obsolete_at(&self, now: Moment) -> Moment {
        now + 2 * self.ttl + Duration::from_secs(1)
    }
}

/// The outcome of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// The request holds the lock.
    Granted(Grant),
    /// Another request is ahead of this one. A request that does not [queue](Request::queues) has left no entry.
    Queued(QueuePosition),
}

/// A grant of a lock: its token and its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// The fencing token, greater than every earlier token of this name.
    pub token: FencingToken,
    /// The time for which the store keeps the lock for this request, counted from no earlier than the moment the claim was sent. A
    /// claim that finds its own grant again returns the remaining time.
    pub lease: Duration,
}

impl Grant {
    /// Creates a grant of `lease` with `token`.
    #[must_use]
    pub const fn new(token: FencingToken, lease: Duration) -> Self {
        Self { token, lease }
    }
}

/// A position in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuePosition {
    /// The number of conflicting entries ahead of this one, if the store can count them.
    pub ahead: Option<u32>,
    /// The time after which it is worth claiming again without a notification: for example the remaining lease of the entry ahead.
    /// The first waiter of a process claims again after this time, and after [`QueuePosition::MAX_RECHECK`] at the latest.
    pub recheck_after: Duration,
    /// True if a copy of this claim that has no reply may still be executed and be granted. Core then releases the request even if
    /// it does not [queue](Request::queues).
    pub may_be_granted_late: bool,
    /// The number of the queue entry, which is greater than the numbers of all entries of the lock before it; `None` if the store has
    /// none. The waiter of a process with the smallest number checks the lock for all, so a store in which only the first waiter of the
    /// queue finds that it is granted the lock must return it: the entry of a waiter may expire, and then be created again behind others.
    pub number: Option<u64>,
}

impl QueuePosition {
    /// The longest delay that a missed wake-up can cause.
    pub const MAX_RECHECK: Duration = Duration::from_secs(1);

    /// Creates a position behind `ahead` entries, to be checked again after `recheck_after` at the latest.
    #[must_use]
    pub const fn new(ahead: Option<u32>, recheck_after: Duration) -> Self {
        Self { ahead, recheck_after, may_be_granted_late: false, number: None }
    }

    /// Returns the same position with this value of [`may_be_granted_late`](#structfield.may_be_granted_late).
    #[must_use]
    pub const fn may_be_granted_late(self, may_be_granted_late: bool) -> Self {
        Self { may_be_granted_late, ..self }
    }

    /// Returns the same position with this [`number`](#structfield.number).
    #[must_use]
    pub const fn number(self, number: Option<u64>) -> Self {
        Self { number, ..self }
    }
}

/// The result of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// The queue position may have changed: claim again. A spurious result is allowed.
    Stale,
    /// The store has granted the lock. The lease counts from the last claim or keep-alive that found the request in the queue.
    Granted(Grant),
}

/// The parts of a hold that a conversion changes, as the store has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldTerms {
    /// The fencing token.
    pub token: FencingToken,
    /// The mode; of a hold that waits for an upgrade, the mode before it.
    pub mode: Mode,
}

impl HoldTerms {
    /// Creates the terms of a hold.
    #[must_use]
    pub const fn new(token: FencingToken, mode: Mode) -> Self {
        Self { token, mode }
    }
}

/// The outcome of a keep-alive for one request. A fault that concerns all requests is an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeepAlive {
    /// The request holds the lock. If it waits in core's view, the notification of the grant was missed, and core claims again.
    Held {
        /// The time for which the store keeps the lock, counted from the moment the keep-alive was sent: at least [`Request::ttl`], and
        /// longer if another process has extended the hold.
        lease: Duration,
        /// The terms of the hold; `None` if no other process can change them, because the store has no conversions, or because its
        /// holds end with their session.
        terms: Option<HoldTerms>,
    },
    /// The request is in the queue, and its entry was extended.
    Queued,
    /// The request definitely no longer holds the lock, or its hold was marked as broken: then it still holds the lock, is not
    /// extended, and ends with its release or its lease. For a waiter, its entry has gone.
    Lost(LostReason),
    /// The store has determined nothing about this request, and may or may not have extended it: core retries until the deadline.
    Unknown,
}

/// The outcome of a release. A fault is an error, and means *unknown*.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Release {
    /// An entry of the request, a hold or a queue entry, was removed; or the store cannot exclude that an earlier attempt of
    /// the same call removed it.
    Released,
    /// The store had no entry of the request: a hold had ended before, for this reason.
    Lost(LostReason),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_convert_back_and_stay_secret() {
        let id = RequestId::random();
        assert_ne!(id, RequestId::random());
        assert_eq!(RequestId::from_bytes(id.to_bytes()), id);
        assert_eq!(format!("{id:?}"), "RequestId(secret)");
    }

    #[test]
    fn the_queue_lease_is_at_most_five_seconds() {
        let name = LockName::new("n").unwrap();
        let request = |ttl| Request::new(name.clone(), Mode::Exclusive, ttl);
        assert_eq!(request(Duration::from_secs(3600)).queue_lease(), Duration::from_secs(5));
        assert_eq!(request(Duration::from_millis(300)).queue_lease(), Duration::from_millis(300));
    }
}
