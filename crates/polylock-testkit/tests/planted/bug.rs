//! The bugs that a store may have.

/// The bug of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// No bug: the control group.
    None,
    /// Every request is granted at once.
    GrantsEveryRequest,
    /// Names are compared without regard to case and outer spaces.
    FoldsNames,
    /// Long names are truncated to 254 bytes.
    TruncatesNames,
    /// All names are one lock.
    OneLockForAll,
    /// Every grant has the same token.
    ConstantToken,
    /// A raise of the tokens is acknowledged, but not carried out.
    NeverRaises,
    /// The first request after a release gets the lock.
    NoQueue,
    /// A waiter that claims again goes to the end of the queue.
    ForgetsPositions,
    /// A holder that claims again gets a new grant.
    GrantsAgain,
    /// Every claim is a request of its own, so a lost reply leaves an entry.
    DuplicatesClaims,
    /// Waiters are never notified.
    NeverNotifies,
    /// Waiters are never notified, and queue positions have no numbers.
    OmitsNumbers,
    /// A release is acknowledged, but not carried out.
    ForgetsReleases,
    /// A waiter can't withdraw.
    NeverWithdraws,
    /// A release releases the lock of any holder.
    ReleasesAnyHolder,
    /// A renewal of a missing entry creates it again.
    RenewalCreates,
    /// A renewal always reports success, and does nothing.
    RenewalAlwaysSucceeds,
    /// A request that does not queue is queued.
    QueuesTries,
    /// Leases never expire.
    NeverExpires,
    /// A lease expires after half its time.
    ExpiresEarly,
    /// A lease is reported as twice as long as it is.
    ExaggeratesLeases,
    /// A lease is granted and reported for half its time.
    GrantsHalf,
    /// Every mode is exclusive.
    EveryModeExclusive,
    /// PR is treated as CR.
    SharedIsWeak,
    /// Inspection omits labels.
    ForgetsLabels,
    /// Inspection returns waiters in reverse order.
    ShowsWaitersReversed,
    /// A list treats its prefix as a case-insensitive pattern.
    PrefixFolds,
    /// The outcomes of a batch are returned in another order.
    ShufflesOutcomes,
    /// A batch returns outcomes only for its first half.
    KeepsHalfABatchAlive,
    /// A waiter is reported as kept alive, but is not.
    DoesNotKeepWaitersAlive,
    /// Every claim blocks its thread.
    Blocks,
    /// A release always reports an entry.
    ReleaseAlwaysSucceeds,
    /// A break is acknowledged, but not carried out.
    BreakDoesNothing,
    /// A cooperative break removes the hold at once.
    BreakIsForced,
    /// A break loses its owner and reason.
    ForgetsNotices,
    /// The last of two notices stays.
    KeepsTheLastNotice,
    /// A hold that is marked as broken is renewed.
    RenewsBroken,
    /// Break notices are never pushed.
    NeverAlerts,
    /// A break also breaks other locks.
    BreaksAll,
    /// A break is for whoever holds the lock when it arrives.
    BreaksTheNext,
    /// A renewal or a repeated claim sets the lease, also to a shorter one.
    RenewalShortens,
    /// A renewal does not report the terms of the hold.
    OmitsTerms,
    /// A request that was released elsewhere is granted the lock again.
    GrantsReleased,
    /// The second release of a hold that was broken by force succeeds.
    ReportsBreaksOnce,
    /// A park is acknowledged, but not carried out.
    ParkDoesNothing,
    /// A park releases the hold at once.
    ParkReleases,
    /// A park is for whatever hold the request has.
    ParksAnyHold,
    /// A record of each request is kept until its release.
    KeepsUnreleasedRecords,
    /// `Debug` shows request ids.
    ShowsIds,
    /// Request ids appear in traces.
    TracesIds,
    /// The declared range of TTLs is empty.
    EmptyTtlRange,
    /// A conversion is acknowledged, but not carried out.
    NeverConverts,
    /// A late copy of a conversion is carried out.
    ConvertsAgain,
    /// New requests overtake an upgrade that waits.
    ForgetsUpgrades,
    /// An upgrade that has ended still keeps new requests out.
    KeepsUpgrades,
    /// A hold that is gone or broken is reported as converted.
    ConvertsLostHolds,
    /// The record of a job is not written.
    ForgetsRecords,
    /// A late copy of a write replaces a later record of a job.
    ReplacesLaterRecords,
    /// The record of a job is kept for ever.
    KeepsRecords,
    /// No bug: declares the minimum of capabilities.
    Minimal,
}

impl Bug {
    pub fn is_in_conversions(self) -> bool {
        matches!(
            self,
            Self::NeverConverts
                | Self::ConvertsAgain
                | Self::ForgetsUpgrades
                | Self::KeepsUpgrades
                | Self::ConvertsLostHolds
        )
    }

    pub fn is_in_records(self) -> bool {
        matches!(self, Self::ForgetsRecords | Self::ReplacesLaterRecords | Self::KeepsRecords)
    }
}
