//! Errors, classified by their remedy.

use std::{fmt, time::Duration};

use crate::{BreakNotice, ConfigError, InvalidName, LockName, Mode, OwnerId, duration};

/// A result with polylock's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error, classified by its remedy.
///
/// `Display` shows only this error, in one line. Its cause, such as a driver's error, is the [`source`](std::error::Error::source).
/// Neither ever shows a secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another request holds the lock, and the caller did not want to wait or has waited long enough. This is no fault.
    #[error("lock {name} not acquired: {reason}")]
    NotAcquired {
        /// The name of the lock.
        name: LockName,
        /// The reason: busy, or timed out.
        reason: NotAcquired,
    },
    /// The lock was held and is lost: stop the work that it protected.
    #[error("lock {name} lost: {reason}")]
    Lost {
        /// The name of the lock.
        name: LockName,
        /// The reason for the loss.
        reason: LostReason,
    },
    /// The store could not be reached, or did not reply properly.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The store does not support this.
    #[error("{backend} does not support {capability}: choose another store")]
    Unsupported {
        /// The name of the store.
        backend: &'static str,
        /// The missing capability.
        capability: &'static str,
    },
    /// The owner already holds this lock in a weaker mode: a wait for itself would never end.
    #[error(
        "{owner} holds lock {name} as {held} and can't re-enter it as {wanted}: release it first, or acquire the \
         stronger mode at once"
    )]
    Reentry {
        /// The name of the lock.
        name: LockName,
        /// The owner.
        owner: OwnerId,
        /// The mode of the hold.
        held: Mode,
        /// The requested mode.
        wanted: Mode,
    },
    /// A wait would never end, because the lock is needed by the request that it waits for. Nothing has changed.
    #[error("lock {name}: deadlock: {cycle}")]
    Deadlock {
        /// The name of the lock that was requested.
        name: LockName,
        /// The requests that wait for each other, and the remedy.
        cycle: String,
    },
    /// The text is not a valid lock name.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),
    /// The TTL is outside the range of this store.
    #[error(
        "a TTL of {} is out of range: {backend} accepts {} to {}", duration::format(*ttl), duration::format(*min), duration::format(*max)
    )]
    InvalidTtl {
        /// The name of the store.
        backend: &'static str,
        /// The requested TTL.
        ttl: Duration,
        /// The shortest TTL of the store.
        min: Duration,
        /// The longest TTL of the store.
        max: Duration,
    },
    /// The locks were shut down with [`Locks::shutdown`](crate::Locks::shutdown).
    #[error("the locks of this program were shut down: open the store again to acquire more")]
    ShutDown,
    /// A call of [`blocking`](crate::blocking) was made in an async task, which it would stop.
    #[error(
        "a blocking call in an async task would stop its runtime: await the async API of polylock instead, or make the \
         call in tokio::task::spawn_blocking"
    )]
    AsyncContext,
    /// A setting is invalid; the message names its key.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl Error {
    /// Returns true if a retry may succeed: the store is unavailable for the moment.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(
            self,
            Self::Unavailable(unavailable) if matches!(unavailable.fault, Fault::Temporary | Fault::Revoked)
        )
    }

    /// Returns the time after which the store will be available, if this is a temporary error and the store has stated it.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Unavailable(unavailable) if self.is_temporary() => unavailable.retry_after,
            _ => None,
        }
    }

    /// Returns true if the only reason is that another request held the lock.
    #[must_use]
    pub const fn is_not_acquired(&self) -> bool {
        matches!(self, Self::NotAcquired { .. })
    }

    /// Returns this error with its causes, in one line. It never shows a secret.
    ///
    /// A cause is omitted if the text before it ends with the same words, and so are all lines of a cause but the first.
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

    /// Returns this error, marked if the store [rejects the credentials themselves](Unavailable::rejects_credentials).
    #[must_use]
    pub fn rejecting_credentials(mut self, rejected: bool) -> Self {
        if let Self::Unavailable(unavailable) = &mut self {
            unavailable.rejects_credentials = rejected;
        }
        self
    }

    /// Returns the reason for the loss, if this is [`Self::Lost`].
    #[must_use]
    pub const fn lost(&self) -> Option<&LostReason> {
        if let Self::Lost { reason, .. } = self { Some(reason) } else { None }
    }
}

/// Returns the first line of a cause, without further lines such as statements to be run by an operator.
fn one_line(text: &str) -> String {
    match text.split_once('\n') {
        None => text.to_owned(),
        // The line only announces those after it.
        Some((first, _)) if first.trim_end().ends_with(':') => String::new(),
        Some((first, _)) => first.trim_end().to_owned(),
    }
}

/// The reason for a failed acquisition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotAcquired {
    /// Another request holds the lock, and the caller did not want to wait.
    #[error("held by another request")]
    Busy,
    /// Other requests held the lock for the whole time that the caller wanted to wait.
    #[error("still held by another request after a wait of {waited:.1?}")]
    TimedOut {
        /// The time waited.
        waited: Duration,
    },
}

/// The reason for the end of a hold that was not released.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// No renewal was acknowledged before the deadline, so the store may have granted the lock to another request.
    #[error("no renewal was acknowledged before the deadline")]
    DeadlineReached,
    /// The store reports that this request no longer holds the lock: the lease expired, or the lock was broken.
    #[error("the store no longer has the hold: its lease expired, or it was broken")]
    Gone,
    /// The lock was broken, for example with [`Locks::break_lock`](crate::Locks::break_lock). Unless force was used, no other
    /// request is granted the lock before this guard is released or dropped, or its lease has expired.
    #[error("{0}")]
    Broken(BreakNotice),
    /// The session or connection that carried the hold ended.
    #[error("the session of the hold has ended")]
    SessionEnded,
    /// The task that renews the lock has failed, for example because its [`Clock`](crate::Clock) panicked.
    #[error("the task that renews the lock has failed")]
    WatchdogFailed,
    /// The hold has lasted for its [`max_hold`](crate::Lock::max_hold). No other request is granted the lock before this guard is released
    /// or dropped, or its lease has expired.
    #[error("the hold has lasted for its longest time, max_hold")]
    MaxHold,
    /// This process has shut its locks down with [`Locks::shutdown`](crate::Locks::shutdown), which has released the lock.
    #[error("the locks of this program were shut down")]
    ShutDown,
}

impl LostReason {
    /// Every value of [`kind`](Self::kind) that metrics count as a loss. A shutdown counts as a release.
    pub const KINDS: [&'static str; 6] = ["deadline", "gone", "broken", "session", "watchdog", "max_hold"];

    /// Returns the reason as one word: one of [`KINDS`](Self::KINDS), or `shutdown`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::DeadlineReached => "deadline",
            Self::Gone => "gone",
            Self::Broken(_) => "broken",
            Self::SessionEnded => "session",
            Self::WatchdogFailed => "watchdog",
            Self::MaxHold => "max_hold",
            Self::ShutDown => "shutdown",
        }
    }
}

/// The store could not be reached, or did not reply properly.
#[derive(Debug, thiserror::Error)]
#[error("{backend} could not {operation}: {fault}")]
pub struct Unavailable {
    /// The name of the store.
    pub backend: &'static str,
    /// The operation that failed.
    pub operation: Operation,
    /// The kind of fault.
    pub fault: Fault,
    /// The driver's own error. It must hold no secret.
    pub source: Box<dyn std::error::Error + Send + Sync>,
    /// The time before which the store is not available, stated by the store itself: a delay, not an outage. An acquisition retries
    /// within the caller's wait limit. `None` if the store does not state it.
    pub retry_after: Option<Duration>,
    /// True if the store rejects the credentials themselves, and not for want of a right: that may end, for example when a new password has
    /// reached all servers.
    pub rejects_credentials: bool,
}

impl Unavailable {
    /// Creates the error for a fault of `backend` in `operation`.
    #[must_use]
    pub fn new(
        backend: &'static str,
        operation: Operation,
        fault: Fault,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self {
            backend,
            operation,
            fault,
            source: source.into(),
            retry_after: None,
            rejects_credentials: false,
        }
    }

    /// Returns the same error with the time after which the store will be available.
    #[must_use]
    pub const fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }
}

/// The kind of a fault, by its remedy.
///
/// A request that waits, a release, and a request with [an outage](crate::Lock::outage) wait for the end of a fault that is `Temporary` or
/// `Revoked`, for as long as that outage may last. So does opening the store; an outage of 0 makes it fail at once. Others fail with the
/// first reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The store is unavailable for the moment: core retries, within the caller's limits.
    #[error("temporarily unreachable or busy")]
    Temporary,
    /// The operation failed permanently: a retry does not help before something is changed.
    #[error("permanent failure; a retry will not help")]
    Permanent,
    /// The store rejects the credentials.
    #[error("access denied; check user, password and rights")]
    Denied,
    /// The store rejects the credentials that it has accepted before, for example while a password is replaced: core retries, within the
    /// caller's limits. Core reports this instead of [`Self::Denied`] for rejected credentials, once a request of this program was accepted.
    #[error("access denied, which was granted before; check user, password and rights")]
    Revoked,
}

/// An operation on a store, as it appears in errors and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Opening the store.
    Connect,
    /// Joining the queue or acquiring the lock.
    Claim,
    /// Waiting for a change of the queue position.
    Wait,
    /// Extending a lease.
    Renew,
    /// Changing the mode of a hold.
    Convert,
    /// Releasing a lock or withdrawing a request.
    Release,
    /// Reading the holders and waiters.
    Inspect,
    /// Breaking a lock.
    Break,
    /// Reading or writing the record of a job.
    Record,
}

impl Operation {
    /// Every operation, in the order above.
    pub const ALL: [Self; 9] = [
        Self::Connect,
        Self::Claim,
        Self::Wait,
        Self::Renew,
        Self::Convert,
        Self::Release,
        Self::Inspect,
        Self::Break,
        Self::Record,
    ];

    /// Returns the name of the operation.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Claim => "claim",
            Self::Wait => "wait",
            Self::Renew => "renew",
            Self::Convert => "convert",
            Self::Release => "release",
            Self::Inspect => "inspect",
            Self::Break => "break",
            Self::Record => "record",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
