//! The requests, and the planted bugs.

use polylock_core::Mode;

pub(super) const CLIENTS: usize = 3;
/// The modes of the requests.
pub(super) const MODES: [Mode; CLIENTS] = [Mode::Exclusive, Mode::Shared, Mode::Shared];
/// The process of each request.
pub(super) const PROCESS: [usize; CLIENTS] = [0, 1, 1];

/// A planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// The lease of a grant counts from the arrival of its notification.
    LeaseFromNotification,
    /// A notification is accepted whatever position it was issued for.
    StaleNotification,
    /// The late reply to the keep-alive of a waiter ends its hold.
    LateReplyEndsHold,
    /// A waiter that has died stays in the queue.
    DeadWaiterStays,
    /// A claim is executed however late it is delivered.
    ClaimNeverExpires,
    /// A waiter overtakes those that it conflicts with.
    ReaderOvertakes,
    /// Redis: a release does not make the server refuse a claim that is still valid.
    ReleaseLeavesNoNote,
    /// SQL: a release is not repeated once no copy of a claim is valid.
    ReleaseNotRepeated,
    /// SQL: a claim is compared with the time at which it was sent.
    ClockBeforeRegion,
    /// SQL: the token is drawn before the operations on the lock are serialised.
    TokenBeforeRegion,
}
