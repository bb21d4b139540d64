//! What can go wrong, by what the caller can do about it.

use std::{fmt, time::Duration};

use crate::{BreakNotice, InvalidName, LockName, Mode, OwnerId, duration};

/// A result with polylock's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong, by what the caller can do about it.
///
/// `Display` tells this error's own part in one line; the cause below it, a driver's error for instance, is in
/// [`source`](std::error::Error::source). Neither ever shows a secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lock is held by another, and the caller would not wait or has waited long enough. No fault.
    #[error("lock {name} not acquired: {reason}")]
    NotAcquired {
        /// Which lock.
        name: LockName,
        /// Busy, or waited in vain.
        reason: NotAcquired,
    },
    /// The lock was held and is no more: stop what it protected.
    #[error("lock {name} lost: {reason}")]
    Lost {
        /// Which lock.
        name: LockName,
        /// What ended the hold.
        reason: LostReason,
    },
    /// The store could not be asked, or did not answer properly.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The store can't do this at all.
    #[error("{backend} does not support {capability}: choose another store, or do without")]
    Unsupported {
        /// Which store.
        backend: &'static str,
        /// What it lacks.
        capability: &'static str,
    },
    /// The owner already holds this lock in a weaker mode: waiting for itself would last for ever.
    #[error(
        "{owner} holds lock {name} as {held} and can't re-enter it as {wanted}: release it first, or take the \
         stronger mode at once"
    )]
    Reentry {
        /// Which lock.
        name: LockName,
        /// Who holds it.
        owner: OwnerId,
        /// How it is held.
        held: Mode,
        /// How it was asked for.
        wanted: Mode,
    },
    /// Not the name of a lock.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),
    /// A lease time that this store can't give.
    #[error(
        "a TTL of {} is out of range: {backend} gives {} to {}", duration::format(*ttl), duration::format(*min), duration::format(*max)
    )]
    InvalidTtl {
        /// Which store.
        backend: &'static str,
        /// What was asked for.
        ttl: Duration,
        /// The shortest it gives.
        min: Duration,
        /// The longest it gives.
        max: Duration,
    },
    /// A setting that makes no sense; the message names its key.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl Error {
    /// Whether trying the same again may help: the store is away for the moment.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Unavailable(unavailable) if unavailable.fault == Fault::Temporary)
    }

    /// The time after which the store will be available, if this is a temporary error and the store knows it.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Unavailable(unavailable) if self.is_temporary() => unavailable.retry_after,
            _ => None,
        }
    }

    /// Whether the lock was simply held by another.
    #[must_use]
    pub const fn is_not_acquired(&self) -> bool {
        matches!(self, Self::NotAcquired { .. })
    }

    /// This error with its causes, in one line. It never shows a secret.
    ///
    /// A cause that says what the text before it says is left out, and so are the further lines of a long one.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut message = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            let text = one_line(&error.to_string());
            if !text.is_empty() && !message.ends_with(&text) {
                message = format!("{message}: {text}");
            }
            cause = error.source();
        }
        message
    }

    /// Why the lock was lost, if that is what happened.
    #[must_use]
    pub const fn lost(&self) -> Option<&LostReason> {
        if let Self::Lost { reason, .. } = self { Some(reason) } else { None }
    }
}

/// A cause without what makes it long, such as the statements that somebody is to run.
fn one_line(text: &str) -> String {
    match text.split_once('\n') {
        None => text.to_owned(),
        // Announces the other lines, and says nothing by itself.
        Some((first, _)) if first.trim_end().ends_with(':') => String::new(),
        Some((first, _)) => first.trim_end().to_owned(),
    }
}

/// Why a lock was not acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotAcquired {
    /// Held by another, and the caller would not wait.
    #[error("held by another")]
    Busy,
    /// Held by others for all the time the caller would wait.
    #[error("still held by another after a wait of {waited:.1?}")]
    TimedOut {
        /// How long it waited.
        waited: Duration,
    },
}

/// What ended a hold that was not released.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// No renewal was acknowledged before the deadline, so the store may have given the lock away.
    #[error("no renewal was acknowledged before the deadline")]
    DeadlineReached,
    /// The store says that this request no longer holds it: it expired there, or someone broke it.
    #[error("the store no longer has it: it expired there or was broken")]
    Gone,
    /// It was broken, with [`Locks::break_lock`](crate::Locks::break_lock) for instance. Unless force was used, nobody else
    /// is granted the lock before this guard is released or dropped, or its lease has expired.
    #[error("{0}")]
    Broken(BreakNotice),
    /// The session or connection that carried the lock ended.
    #[error("the session that carried it ended")]
    SessionEnded,
    /// The task that renews it has failed, for instance because the [`Clock`](crate::Clock) it was given panicked.
    #[error("the task that renews it has failed")]
    WatchdogFailed,
}

impl LostReason {
    /// Every value of [`kind`](Self::kind).
    pub const KINDS: [&'static str; 5] = ["deadline", "gone", "broken", "session", "watchdog"];

    /// One word for it, as in metrics: `deadline`, `gone`, `broken`, `session` or `watchdog`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::DeadlineReached => "deadline",
            Self::Gone => "gone",
            Self::Broken(_) => "broken",
            Self::SessionEnded => "session",
            Self::WatchdogFailed => "watchdog",
        }
    }
}

/// The store could not be asked, or did not answer properly.
#[derive(Debug, thiserror::Error)]
#[error("{backend} could not {operation}: {fault}")]
pub struct Unavailable {
    /// Which store.
    pub backend: &'static str,
    /// What it was to do.
    pub operation: Operation,
    /// What kind of fault it is.
    pub fault: Fault,
    /// The driver's own error. It must hold no secret.
    pub source: Box<dyn std::error::Error + Send + Sync>,
    /// The store is not available before this time has passed, as it knows itself: a delay, not an outage. An acquisition keeps
    /// trying within the caller's wait limit. `None` if the store cannot tell.
    pub retry_after: Option<Duration>,
}

impl Unavailable {
    /// A fault of `backend` in `operation`.
    #[must_use]
    pub fn new(
        backend: &'static str,
        operation: Operation,
        fault: Fault,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { backend, operation, fault, source: source.into(), retry_after: None }
    }

    /// The same error, with the time after which the store will be available.
    #[must_use]
    pub const fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }
}

/// What kind of fault, by what helps against it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// Away for the moment: core tries again by itself, within the time it has.
    #[error("unreachable or busy for the moment")]
    Temporary,
    /// It will not help to try again before something is changed.
    #[error("failed for good; trying again will not help")]
    Permanent,
    /// The store refuses these credentials.
    #[error("access denied; check user, password and rights")]
    Denied,
}

/// An operation on a store, as it appears in errors and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Opening the store.
    Connect,
    /// Joining the queue or taking the lock.
    Claim,
    /// Waiting for a place to change.
    Wait,
    /// Extending a lease.
    Renew,
    /// Releasing or withdrawing.
    Release,
    /// Looking who holds and who waits.
    Inspect,
    /// Breaking a lock.
    Break,
}

impl Operation {
    /// Every operation, in the order above.
    pub const ALL: [Self; 7] =
        [Self::Connect, Self::Claim, Self::Wait, Self::Renew, Self::Release, Self::Inspect, Self::Break];

    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Claim => "claim",
            Self::Wait => "wait",
            Self::Renew => "renew",
            Self::Release => "release",
            Self::Inspect => "inspect",
            Self::Break => "break",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A setting that makes no sense.
///
/// The problem is told without the value where the value may hold a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct ConfigError {
    /// Which setting.
    pub key: String,
    /// What is wrong with it, and what to write instead.
    pub problem: String,
}

impl ConfigError {
    /// `key` is wrong because of `problem`.
    #[must_use]
    pub fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { key: key.into(), problem: problem.into() }
    }
}
