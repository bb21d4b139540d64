//! The delay of votes, and the planted bugs.

/// The time for which the votes of a server that has lost its memory do not count, in ticks.
pub(super) const VOTE_DELAY: u8 = 1;

/// A planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A withdrawal removes the vote for a later number.
    LiveVoteIsWithdrawn,
    /// A server accepts a number after its withdrawal.
    WithdrawnNumberIsAccepted,
    /// A server accepts a number twice.
    NumbersRepeat,
    /// The votes of a server that has lost its memory count at once.
    NoVoteDelay,
    /// The votes of a server that was started with a clock ahead count at once.
    ClockAheadIsTrusted,
    /// The votes of a server with a file that is older than they are count at once.
    OldFileIsTrusted,
    /// The votes of a server with a copy of another one's data count at once.
    CopyIsTrusted,
    /// The deadline counts from the replies.
    DeadlineFromReply,
    /// A withdrawal that was not executed counts as acknowledged.
    MissingReplyAcknowledges,
    /// A vote that is given again is not recorded.
    RestoredVoteIsNotRecorded,
    /// A failed proposal is not withdrawn.
    FailedProposalStays,
    /// A release without a reply is forgotten when the next one finds nothing.
    LostReleaseIsForgotten,
}
