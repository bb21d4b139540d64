//! The conversation between the coordinator and its four processes: one line of JSON for each operation, and one for its outcome.

use std::time::Duration;

use polylock_core::Mode;
use serde::{Deserialize, Serialize};

/// An operation of one process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Command {
    /// Its number, which the reply repeats.
    pub id: u64,
    /// The connection on which it is carried out: each schedule has one to itself in every process.
    pub lane: usize,
    /// What to do.
    pub action: Action,
}

/// What a process does. A guard stays in the process, under a name of its own.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Action {
    /// Acquires a lock.
    Acquire {
        /// The name of the lock.
        name: String,
        /// The owner of the request, by which inspection shows it.
        owner: String,
        /// True for a shared hold.
        shared: bool,
        /// The lease; that of the store if `None`.
        ttl: Option<Duration>,
        /// The time limit for waiting; `None` for a try.
        wait: Option<Duration>,
        /// The name of the guard.
        guard: String,
    },
    /// Returns the handle of a hold.
    Handle {
        /// The guard, which keeps the hold.
        guard: String,
    },
    /// Turns a hold into its handle.
    IntoHandle {
        /// The guard, which ends.
        guard: String,
    },
    /// Adopts a hold.
    Adopt {
        /// The text of its handle.
        handle: String,
        /// The lease; that of the handle if `None`.
        ttl: Option<Duration>,
        /// The name of the new guard.
        guard: String,
    },
    /// Changes the mode of a hold to shared.
    Downgrade {
        /// The guard.
        guard: String,
    },
    /// Changes the mode of a hold to exclusive.
    Upgrade {
        /// The guard.
        guard: String,
        /// The time limit for waiting.
        wait: Duration,
    },
    /// Ends a hold.
    End {
        /// The guard.
        guard: String,
        /// How it ends.
        way: Way,
    },
    /// Inspects a lock.
    Look {
        /// The name of the lock.
        name: String,
    },
    /// Breaks the hold with a token.
    Break {
        /// The name of the lock.
        name: String,
        /// The token.
        token: u64,
        /// True if the hold is removed at once.
        force: bool,
        /// The reason, by which the holder's notice is recognised.
        reason: String,
    },
    /// Returns what a guard has recorded, and forgets it.
    Log {
        /// The guard.
        guard: String,
    },
}

/// How a guard ends its hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// A release that is waited for.
    Release,
    /// A drop, which releases in the background.
    Drop,
    /// A release after this time.
    After(Duration),
    /// The lease expires.
    Leave,
}

/// The outcome of an operation, with the times by the clock of the machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Reply {
    /// The number of the operation.
    pub id: u64,
    /// Read before the operation, in nanoseconds.
    pub invoked: u64,
    /// Read after it.
    pub returned: u64,
    /// The outcome.
    pub outcome: Outcome,
}

/// The outcome of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The lock is held: after an acquisition, an adoption or a conversion.
    Held {
        /// The token.
        token: u64,
        /// True if the hold is shared.
        shared: bool,
        /// The deadline, in nanoseconds.
        deadline: u64,
    },
    /// Another request is in the way.
    Refused,
    /// The handle of the hold.
    Handle {
        /// Its text.
        text: String,
        /// The lease that the last renewal gave.
        ttl: Duration,
    },
    /// It was carried out.
    Done,
    /// The entries of a lock.
    Shown(Vec<Shown>),
    /// The tokens of the holds that a break has marked or removed.
    Broken(Vec<u64>),
    /// What a guard has recorded.
    Log(Log),
    /// The hold is lost.
    Lost(Loss),
    /// There is no guard of this name: an earlier operation has failed.
    Absent,
    /// The store has no such operation.
    Unsupported,
    /// Any other error.
    Failed {
        /// True if the store was not available.
        temporary: bool,
        /// Its text.
        text: String,
    },
}

/// An entry that inspection has shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// The owner of the request.
    pub owner: String,
    /// The token of a holder.
    pub token: Option<u64>,
    /// The rest of the lease.
    pub expires_in: Duration,
    /// True if the hold is marked by a break.
    pub broken: bool,
}

/// The end of a hold, as its guard reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// The time, in nanoseconds.
    pub at: u64,
    /// The [kind](polylock::LostReason::kind) of the reason.
    pub kind: String,
    /// The reason of the notice of a break.
    pub notice: Option<String>,
}

/// What a guard has recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Log {
    /// For each renewal, the time at which it was known, and the deadline that it gave, in nanoseconds.
    pub renewals: Vec<(u64, u64)>,
    /// The loss.
    pub lost: Option<Loss>,
}

/// Returns the mode of a hold.
#[must_use]
pub const fn mode(shared: bool) -> Mode {
    if shared { Mode::Shared } else { Mode::Exclusive }
}
