//! The capabilities of a store, so that no caller is promised more.

use std::{ops::RangeInclusive, time::Duration};

use crate::Mode;

/// The capabilities of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The store's name in errors, metrics and the environment of a child process: the scheme of its URL.
    pub backend: &'static str,
    /// The modes that it grants.
    pub modes: Modes,
    /// The order in which it grants.
    pub order: Order,
    /// The means by which a waiter is notified of its turn.
    pub notifications: Notifications,
    /// The durability of its fencing tokens.
    pub fencing: Fencing,
    /// The carrier of a hold.
    pub hold_lifetime: HoldLifetime,
    /// True if the store may free a lock before its lease ends, because the process that holds it has ended for certain.
    pub frees_dead_holders: bool,
    /// The scope in which it can be reached.
    pub scope: Scope,
    /// The range of its TTLs, both ends included.
    pub ttl: RangeInclusive<Duration>,
    /// The means by which the entry of a waiter is kept alive.
    pub queue_lease: QueueLease,
    /// The greatest number of requests in one [`keep_alive`](crate::Backend::keep_alive): 256 by default.
    pub keep_alive_batch: usize,
    /// The greatest number of claims in flight: 64 by default. The others wait in order of arrival, so that renewals and releases
    /// never wait behind all of them.
    pub claims_at_once: usize,
    /// The thread that polls an operation first. It affects latency only.
    pub first_step: FirstStep,
}

impl Capabilities {
    /// Creates the capabilities of a store with all six modes, granted in order of arrival with durable tokens, and polled by other
    /// processes. The author changes the fields that differ.
    #[must_use]
    pub const fn new(backend: &'static str, ttl: RangeInclusive<Duration>) -> Self {
        Self {
            backend,
            modes: Modes::AllSix,
            order: Order::Fifo,
            notifications: Notifications::Polled,
            fencing: Fencing::Durable,
            hold_lifetime: HoldLifetime::Lease,
            frees_dead_holders: false,
            scope: Scope::Host,
            ttl,
            queue_lease: QueueLease::Entry,
            keep_alive_batch: 256,
            claims_at_once: 64,
            first_step: FirstStep::Caller,
        }
    }

    /// Returns the TTL in the store's range that is nearest to this one.
    #[must_use]
    pub fn nearest_ttl(&self, ttl: Duration) -> Duration {
        ttl.clamp(*self.ttl.start(), *self.ttl.end())
    }
}

/// The modes that a store grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Modes {
    /// All six modes.
    AllSix,
    /// [`Mode::Exclusive`] and [`Mode::Shared`].
    ExclusiveAndShared,
    /// [`Mode::Exclusive`] alone.
    ExclusiveOnly,
}

impl Modes {
    /// Returns true if the store grants `mode`.
    #[must_use]
    pub const fn contains(self, mode: Mode) -> bool {
        match self {
            Self::AllSix => true,
            Self::ExclusiveAndShared => matches!(mode, Mode::Exclusive | Mode::Shared),
            Self::ExclusiveOnly => matches!(mode, Mode::Exclusive),
        }
    }

    /// Returns a description of the modes that the store does not grant.
    pub(crate) const fn unsupported(self) -> &'static str {
        match self {
            Self::AllSix => "a seventh lock mode",
            Self::ExclusiveAndShared => "any lock mode but exclusive and shared",
            Self::ExclusiveOnly => "any lock mode but exclusive",
        }
    }
}

/// The order in which a store grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Order {
    /// First come, first served: a request is granted if and only if no earlier live entry conflicts.
    Fifo,
    /// No order: the first request to arrive after a release is granted.
    Unordered,
}

/// The means by which a waiter in another process is notified of its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Notifications {
    /// The store pushes a notification.
    Pushed,
    /// One adaptive poller per process queries the store.
    Polled,
}

/// The durability of a store's fencing tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fencing {
    /// Tokens are committed durably: they keep growing after a restart of the store.
    Durable,
    /// Tokens are kept in the store's memory: they grow as long as the store runs.
    WhileRunning,
    /// Tokens may repeat.
    Absent,
}

/// The carrier of a hold, and of a queue entry that waits to become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HoldLifetime {
    /// An entry in the store. With the request, it can be claimed, renewed and released again on any connection, and it outlives a
    /// connection that breaks.
    Lease,
    /// The connection or session in which it was claimed. The hold ends with it, so a holder that dies frees the lock at once, and
    /// no other connection can use the request.
    Session,
}

/// The means by which the entry of a waiter is kept alive in the queue of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueueLease {
    /// Each entry has its own lease, which a [`keep_alive`](crate::Backend::keep_alive) with its request extends.
    Entry,
    /// All entries of one open [`Store`](crate::Store) share a lease, which every [`keep_alive`](crate::Backend::keep_alive)
    /// extends, even one without requests.
    Shared,
    /// No lease is extended: the entries live in a session that the store keeps alive itself, or there are no entries.
    Absent,
}

/// The scope in which a store can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scope {
    /// The tasks of one process.
    Process,
    /// The processes of one machine.
    Host,
    /// Programs on many machines.
    Network,
}

/// The thread that polls an operation first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FirstStep {
    /// The caller's thread, so that the request is sent before the library's thread has woken up. It suits a store with operations
    /// that write to their connection themselves, or end at once.
    Caller,
    /// The library's thread. It suits a store with a connection that is driven by a separate task on that thread: a poll by the
    /// caller would only wake the thread for one thing after the other.
    Thread,
}
