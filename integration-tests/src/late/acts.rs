//! What the four processes do, and what a store can do.

use std::{ops::RangeInclusive, time::Duration};

use super::message::Way;

/// The process that carries an operation out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// It acquires the lock first.
    Holder,
    /// It adopts that hold.
    Adopter,
    /// It inspects and breaks the lock.
    Breaker,
    /// It acquires the lock next.
    Next,
}

/// All roles, in the order of their numbers.
pub const ROLES: [Role; 4] = [Role::Holder, Role::Adopter, Role::Breaker, Role::Next];

/// What a store can do.
#[derive(Debug, Clone)]
pub struct Can {
    /// It grants shared locks.
    pub shared: bool,
    /// Its holds have handles.
    pub handles: bool,
    /// The range of its leases; `None` if all are those of the session.
    pub ttl: Option<RangeInclusive<Duration>>,
    /// It grants in order of arrival.
    pub is_fifo: bool,
    /// The number of servers to which each process has a connection.
    pub servers: usize,
    /// A majority of its servers decides.
    pub is_quorum: bool,
    /// Each lock is in both servers.
    pub is_both: bool,
}

/// An operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Acquires the lock.
    Acquire {
        /// The lease; that of the session if `None`.
        ttl: Option<Duration>,
        /// True for a shared hold.
        shared: bool,
        /// The time limit for waiting; `None` for a try.
        wait: Option<Duration>,
    },
    /// Makes a handle of the hold, and keeps it.
    Handle,
    /// Turns the hold into its handle.
    IntoHandle,
    /// Adopts the hold.
    Adopt {
        /// The lease; that of the handle if `None`.
        ttl: Option<Duration>,
    },
    /// Converts the hold to shared.
    Downgrade,
    /// Converts the hold to exclusive.
    Upgrade,
    /// Reads the lock, and remembers the holder for a break.
    Look,
    /// Breaks the holder that was read last, who may have gone.
    Break {
        /// True if the hold is removed at once.
        force: bool,
    },
    /// Does nothing for a while; the guards are renewed.
    Rest(Duration),
    /// Ends the hold.
    End(Way),
    /// The next holder begins.
    Begin,
}

/// An operation of a process, after a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The process.
    pub role: Role,
    /// The operation.
    pub act: Act,
    /// The pause before it.
    pub after: Duration,
}

/// The time at which the withheld message is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// When its time has passed.
    Time,
    /// Before this step, or when its time has passed.
    Step(usize),
    /// When the next holder has the lock, or when its time has passed.
    NextHolds,
    /// After all steps.
    End,
}
