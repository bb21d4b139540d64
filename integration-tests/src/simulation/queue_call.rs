//! The calls of the [queue server](super::queue_server), and its replies.

use std::{fmt, sync::Arc, time::Duration};

use polylock_core::{
    BreakOrder, Conversion, FencingToken, Grant, HoldTerms, LockName, LockStatus, LostReason, Request,
    wakeups::Wakeups,
};

/// The receiver of the notifications for one client.
#[derive(Debug, Clone)]
pub struct Subscriber {
    /// The link to its process.
    pub link: usize,
    /// The life of its process.
    pub life: u64,
    /// The waiters of the process.
    pub wakeups: Arc<Wakeups>,
}

/// A call of the server. Times are in microseconds of its clock.
#[derive(Debug, Clone)]
pub enum Call {
    /// Grants the lock, or enqueues the request.
    Claim {
        /// The request.
        request: Arc<Request>,
        /// The receiver of a later grant.
        subscriber: Subscriber,
        /// The number by which the receiver knows the waiter.
        ticket: u64,
        /// The least time that the server's clock shows when the claim is sent, by the client's estimate.
        earliest_us: i64,
        /// The time from which the claim has no effect.
        expires_us: i64,
        /// The token for the grant, if it was drawn before.
        token: Option<u64>,
    },
    /// Extends holds and queue entries.
    KeepAlive(Vec<Arc<Request>>),
    /// Removes the entry of the request.
    Release {
        /// The request.
        request: Arc<Request>,
        /// The time until which its claims are refused.
        refused_us: i64,
        /// The time from which the release has no effect.
        expires_us: i64,
    },
    /// Ends a hold at a later time.
    Park {
        /// The request.
        request: Arc<Request>,
        /// The token of the hold.
        token: FencingToken,
        /// The time until its end.
        left: Duration,
        /// The time for which claims of the request are refused.
        refused: Duration,
        /// The time from which the call has no effect.
        expires_us: i64,
    },
    /// Changes the mode of a hold.
    Convert(Arc<Request>, Conversion),
    /// Breaks holds.
    Break {
        /// The lock.
        name: LockName,
        /// The holds, and the notice.
        order: BreakOrder,
        /// The time from which the break has no effect.
        expires_us: i64,
    },
    /// Returns the locks with names that begin with this text.
    List(String),
    /// Makes all later tokens greater than this one.
    Raise(FencingToken),
    /// Draws a number: the first call of a client, and a token for the planted bug.
    Draw,
}

/// The reply to a call.
#[derive(Debug, Clone)]
pub enum Reply {
    /// The lock is granted.
    Granted(Grant),
    /// The request is in the queue.
    Queued {
        /// The number of its entry.
        position: u64,
        /// The number of conflicting entries ahead.
        ahead: usize,
        /// The time after which another claim is worthwhile.
        left: Duration,
    },
    /// The call has expired.
    Expired,
    /// The server does not execute the call at present.
    Refused,
    /// The states of the entries.
    Kept(Vec<Kept>),
    /// The hold or the queue entry has ended, or will end.
    Ended,
    /// There is none.
    Lost(LostReason),
    /// The hold has this token now.
    Converted(FencingToken),
    /// The hold had this token before.
    OtherToken(FencingToken),
    /// The locks; for a break, the one with the holders that were broken.
    Locks(Vec<LockStatus>),
    /// A number; for a raise, the last one that was drawn before it.
    Drawn(u64),
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim { request, ticket, .. } => {
                write!(f, "claims {} {} with ticket {ticket}", request.name, request.mode)
            }
            Self::KeepAlive(requests) => write!(f, "keeps {} entries alive", requests.len()),
            Self::Release { request, .. } => write!(f, "releases {} {}", request.name, request.mode),
            Self::Park { request, left, .. } => write!(f, "ends {} in {left:?}", request.name),
            Self::Convert(request, conversion) => write!(f, "converts {} to {}", request.name, conversion.to),
            Self::Break { name, order, .. } => {
                write!(f, "breaks {:?} of {name}, force: {}", order.targets, order.force)
            }
            Self::List(prefix) => write!(f, "lists {prefix}"),
            Self::Raise(to) => write!(f, "raises its tokens to {to}"),
            Self::Draw => f.write_str("draws a number"),
        }
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted(grant) => write!(f, "granted with token {}", grant.token),
            Self::Queued { position, ahead, .. } => write!(f, "queued at {position} behind {ahead}"),
            Self::Expired => f.write_str("expired"),
            Self::Refused => f.write_str("refused"),
            Self::Kept(states) => write!(f, "{states:?}"),
            Self::Ended => f.write_str("ended"),
            Self::Lost(reason) => write!(f, "lost: {reason}"),
            Self::Converted(token) => write!(f, "converted, token {token}"),
            Self::OtherToken(token) => write!(f, "it has token {token}"),
            Self::Locks(locks) => write!(f, "{} locks", locks.len()),
            Self::Drawn(number) => write!(f, "{number}"),
        }
    }
}

/// The state of an entry after a keep-alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    /// It holds the lock for this time, with these terms.
    Held(Duration, HoldTerms),
    /// It is in the queue.
    Queued,
    /// There is no such entry.
    Lost(LostReason),
}
