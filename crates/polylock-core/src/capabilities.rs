//! What a store can do, so that nobody is promised more.

use std::{ops::RangeInclusive, time::Duration};

use crate::Mode;

/// What a store can do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The store's name, as in errors, metrics and the child's environment: the scheme of its URL.
    pub backend: &'static str,
    /// Which modes it grants.
    pub modes: Modes,
    /// In which order it grants.
    pub order: Order,
    /// How a waiter learns that it is its turn.
    pub wake: WakeUp,
    /// What its fencing tokens rest on.
    pub fencing: Fencing,
    /// What a hold lives in.
    pub carrier: Carrier,
    /// Who can reach it.
    pub reach: Reach,
    /// The lease times it gives, both ends included.
    pub ttl: RangeInclusive<Duration>,
    /// How the entry of a waiter stays alive.
    pub queue_lease: QueueLease,
    /// How many requests one [`keep_alive`](crate::Backend::keep_alive) may name: 256 by default.
    pub keep_alive_batch: usize,
    /// How many claims may be under way at once: 64 by default. The others wait in order of arrival, so that renewals and releases
    /// never wait behind all of them.
    pub claims_at_once: usize,
    /// Who takes the first step of an operation. It makes no difference but in time.
    pub first_step: FirstStep,
}

impl Capabilities {
    /// A store with all six modes, granted in order of arrival with durable tokens, polled by other processes;
    /// the author changes what differs.
    #[must_use]
    pub const fn new(backend: &'static str, ttl: RangeInclusive<Duration>) -> Self {
        Self {
            backend,
            modes: Modes::AllSix,
            order: Order::Arrival,
            wake: WakeUp::Polled,
            fencing: Fencing::Durable,
            carrier: Carrier::Entry,
            reach: Reach::Processes,
            ttl,
            queue_lease: QueueLease::Entry,
            keep_alive_batch: 256,
            claims_at_once: 64,
            first_step: FirstStep::Caller,
        }
    }

    /// The lease time in the store's range that is next to this one.
    #[must_use]
    pub fn nearest_ttl(&self, ttl: Duration) -> Duration {
        ttl.clamp(*self.ttl.start(), *self.ttl.end())
    }
}

/// Which modes a store grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Modes {
    /// All six.
    AllSix,
    /// [`Mode::Exclusive`] and [`Mode::Shared`].
    ExclusiveAndShared,
    /// [`Mode::Exclusive`] alone.
    ExclusiveOnly,
}

impl Modes {
    /// Whether `mode` is among them.
    #[must_use]
    pub const fn contains(self, mode: Mode) -> bool {
        match self {
            Self::AllSix => true,
            Self::ExclusiveAndShared => matches!(mode, Mode::Exclusive | Mode::Shared),
            Self::ExclusiveOnly => matches!(mode, Mode::Exclusive),
        }
    }

    /// The words for the modes that are not among them.
    pub(crate) const fn others(self) -> &'static str {
        match self {
            Self::AllSix => "a seventh lock mode",
            Self::ExclusiveAndShared => "any lock mode but exclusive and shared",
            Self::ExclusiveOnly => "any lock mode but exclusive",
        }
    }
}

/// In which order a store grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Order {
    /// First come, first served: granted if and only if no earlier live entry conflicts.
    Arrival,
    /// Whoever asks first after a release; a little luck is needed.
    Unordered,
}

/// How a waiter in another process learns that it is its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WakeUp {
    /// The store tells it.
    Pushed,
    /// One adaptive poller per process asks.
    Polled,
}

/// What a store's fencing tokens rest on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fencing {
    /// A durable commit: tokens go on growing after a restart of the store.
    Durable,
    /// The store's memory: tokens grow for as long as it runs.
    WhileRunning,
    /// None: tokens may repeat.
    Absent,
}

/// What a hold lives in, and whatever waits to become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Carrier {
    /// An entry in the store. Whoever knows the request can claim, renew and release it again on any connection, and it
    /// outlives a connection that breaks.
    Entry,
    /// The connection or session in which it was claimed. It ends with it, so a holder that dies frees the lock at once; and no
    /// other connection knows of the request.
    Connection,
}

/// How the entry of a waiter stays alive in the queue of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueueLease {
    /// Each entry has a lease of its own, which [`keep_alive`](crate::Backend::keep_alive) with its request extends.
    Entry,
    /// All entries of one open [`Store`](crate::Store) share a lease, which every [`keep_alive`](crate::Backend::keep_alive)
    /// extends, also one that names no request.
    Shared,
    /// There is nothing to be extended: the entries live in a session that the store keeps alive itself, or there are none.
    Absent,
}

/// Who can reach a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reach {
    /// The tasks of one process.
    Process,
    /// Processes of one machine.
    Processes,
    /// Programs on many machines.
    Machines,
}

/// Who takes the first step of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FirstStep {
    /// The caller, so that the request is on its way before the library's thread has woken up: for a store whose operations
    /// write to their connection themselves, or end at once.
    Caller,
    /// The library's thread: for a store whose connection is driven by a task of its own there. A step of the caller would
    /// only wake the thread for one thing after the other.
    Thread,
}
