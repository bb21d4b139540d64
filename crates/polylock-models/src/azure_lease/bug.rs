//! The requests, and the planted bugs.

pub(super) const REQUESTS: usize = 3;
/// The process of each request.
pub(super) const PROCESS: [usize; REQUESTS] = [0, 1, 0];

/// A planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// The deadline of a hold counts from the reply.
    DeadlineFromReply,
    /// A cooperative break ends the lease at once.
    BreakEndsLease,
    /// The cached token is used though another process has written since.
    StaleToken,
    /// A grant is written whatever the ETag of the blob.
    NoCondition,
    /// A lease that an unanswered acquisition may obtain is not released.
    NoCleanUp,
    /// The clean-up ends with the time, without a release after it.
    CleanUpEndsEarly,
    /// An acquisition arrives later than the clean-up lasts.
    VeryLate,
    /// A refused acquisition ends the request's lease though another copy is on its way.
    RefusalForgetsCopy,
    /// Another copy of an acquisition that has succeeded is not recorded.
    SuccessForgetsCopy,
    /// The refusal of the second copy of a release counts.
    SecondReplyCounts,
    /// A break by force does not take the lease away from its former holder.
    NoRevocation,
}
