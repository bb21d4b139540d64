//! What core asks of a store, and what the store answers: requests, standings, grants, places, keep-alives, releases.

use std::{fmt, time::Duration};

use crate::{FencingToken, Label, LockName, LostReason, Mode, OwnerId};

/// 128 random bits that name one attempt to hold one lock.
///
/// Every operation is idempotent in it, so a lost reply is harmless. Who knows it can release the lock, so it is
/// a secret: `Debug` hides it, and it has no `Display`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(u128);

impl RequestId {
    /// The greatest in their order.
    pub(crate) const LAST: Self = Self(u128::MAX);

    /// A fresh one from the operating system's random source.
    #[must_use]
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        fill(&mut bytes);
        Self::from_bytes(bytes)
    }

    /// The 16 bytes that a store keeps.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// The id that a store kept as these bytes.
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

pub(crate) fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    fill(&mut bytes);
    u64::from_ne_bytes(bytes)
}

#[expect(
    clippy::expect_used,
    reason = "without a random source no id is safe, and no later step can mend that"
)]
fn fill(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the operating system's random source answers");
}

/// One attempt to hold one lock: what core hands to a store with every operation.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Request {
    /// The secret name of this attempt.
    pub id: RequestId,
    /// Which lock.
    pub name: LockName,
    /// How it is to be held.
    pub mode: Mode,
    /// How long a grant or a renewal lasts, within the store's [`ttl`](crate::Capabilities::ttl) range.
    pub ttl: Duration,
    /// Whether it waits its turn. If not, a claim that can't be granted at once leaves nothing in the store.
    pub queues: bool,
    /// Whether [`Place::ahead`] is of use. Where counting costs more with each waiter, a store need not do it otherwise.
    pub wants_position: bool,
    /// Who asks, for people and for inspection.
    pub owner: OwnerId,
    /// Why, for people.
    pub label: Option<Label>,
}

impl Request {
    /// The longest a dead waiter may hold up those behind it.
    pub const MAX_PLACE_TTL: Duration = Duration::from_secs(5);

    /// A queueing request with a fresh id, owned by this process.
    #[must_use]
    pub fn new(name: LockName, mode: Mode, ttl: Duration) -> Self {
        Self {
            id: RequestId::random(),
            name,
            mode,
            ttl,
            queues: true,
            wants_position: true,
            owner: OwnerId::process(),
            label: None,
        }
    }

    /// The same with a fresh id: another attempt.
    pub(crate) fn again(&self) -> Self {
        Self { id: RequestId::random(), ..self.clone() }
    }

    /// How long a place in the queue lasts without a fresh claim: the waiter's own short lease.
    #[must_use]
    pub fn place_ttl(&self) -> Duration {
        self.ttl.min(Self::MAX_PLACE_TTL)
    }
}

/// What a claim found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// The lock is held by this request.
    Held(Grant),
    /// Someone is before it. A request that does not [queue](Request::queues) has left nothing behind.
    Queued(Place),
}

/// A lock held: the token and how long it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// Greater than every earlier token of this name.
    pub token: FencingToken,
    /// How long the store keeps the lock for this request, counted from no earlier than the moment the claim was
    /// sent. A claim that finds its own grant again answers with what is left of it.
    pub lease: Duration,
}

impl Grant {
    /// A grant of `lease` with `token`.
    #[must_use]
    pub const fn new(token: FencingToken, lease: Duration) -> Self {
        Self { token, lease }
    }
}

/// A place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// How many conflicting entries stand before this one, where the store can count them.
    pub ahead: Option<u32>,
    /// When it is worth claiming again though nothing was heard: for instance what is left of the lease of who
    /// stands before. Core waits no longer than this, and never longer than [`Place::MAX_RECHECK`].
    pub recheck_after: Duration,
}

impl Place {
    /// The most that a missed wake-up can cost.
    pub const MAX_RECHECK: Duration = Duration::from_secs(1);

    /// A place behind `ahead` entries, to be looked at again after `recheck_after` at the latest.
    #[must_use]
    pub const fn new(ahead: Option<u32>, recheck_after: Duration) -> Self {
        Self { ahead, recheck_after }
    }
}

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// The place may have changed: claim again. Saying so for nothing is allowed.
    Stale,
    /// The store has handed the lock over. The hold counts from the last claim that was sent.
    Granted(Grant),
}

/// The outcome of a keep-alive for one request. A fault that concerns all requests is an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeepAlive {
    /// The request holds the lock, for this long from the moment the keep-alive was sent. If core has it in the queue, the
    /// notification of the grant was missed, and core claims again.
    Held {
        /// How long.
        lease: Duration,
    },
    /// The request is in the queue, and its entry was extended.
    Queued,
    /// The lock is definitely no longer this request's, or was marked as broken: then the request still holds it, is not
    /// extended, and ends with its release or its lease. For a waiter, its entry has gone.
    Lost(LostReason),
    /// The store has found out nothing about this request, and may or may not have extended it: core retries until the deadline.
    Unknown,
}

/// The outcome of a release. A fault is neither: that is an error, and means *unknown*.
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
    fn ids_are_fresh_lead_back_and_stay_secret() {
        let id = RequestId::random();
        assert_ne!(id, RequestId::random());
        assert_eq!(RequestId::from_bytes(id.to_bytes()), id);
        assert_eq!(format!("{id:?}"), "RequestId(secret)");
    }

    #[test]
    fn a_dead_waiter_is_passed_over_soon() {
        let name = LockName::new("n").unwrap();
        let request = |ttl| Request::new(name.clone(), Mode::Exclusive, ttl);
        assert_eq!(request(Duration::from_secs(3600)).place_ttl(), Duration::from_secs(5));
        assert_eq!(request(Duration::from_millis(300)).place_ttl(), Duration::from_millis(300));
    }
}
