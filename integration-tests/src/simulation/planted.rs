//! The bugs that a search must find.

use polylock_core::simulation::Bug;

use super::store_kind::StoreKind;

/// A bug that is planted in core, in the model of a store or its client, or in the client, the scripts or the settings of a real one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Planted {
    /// The server executes a claim that its client has given up long ago.
    LateClaim,
    /// A release removes the hold of any request.
    ForeignRelease,
    /// The deadline of a hold counts from the reply.
    ReplyDeadline,
    /// A waiter relies on its notification: neither its claims nor its keep-alives find a grant.
    NoRecheck,
    /// The token is drawn before the claim.
    EarlyToken,
    /// A keep-alive revives a hold that has expired.
    RevivedHold,
    /// A restart of the server loses its locks.
    LostState,
    /// The server hands a lock over before its holder has left.
    EarlyHandover,
    /// The client does not report that a copy of a refused claim may still be executed.
    UnreportedCopy,
    /// The server does not notify the waiter that it grants the lock to.
    LostNotification,
    /// A keep-alive sets the lease, also to an earlier end.
    ShorteningRenewal,
    /// A keep-alive extends a hold that was ended at a later time.
    RevivedPark,
    /// A release by a process that has not sent the claim leaves no record that refuses its copies.
    ForgottenCopies,
    /// A break ends whatever holds the lock has.
    UntargetedBreak,
    /// Core: the next waiter of a process is not promoted when the first one leaves.
    CoreUnpromotedWaiter,
    /// Core: the estimate of the server's clock is its latest possible time.
    CoreLateClock,
    /// Core: the estimate of the server's clock ignores drift.
    CoreDriftlessClock,
    /// Core: a release that is taken over from its caller counts as the first attempt.
    CoreUncountedAttempt,
    /// Core: a break notice that arrives before its hold is registered is forgotten.
    CoreForgottenNotice,
    /// Core: the grant of a future that is not polled is not released in the store.
    CoreUnreleasedGrant,
    /// Core: a try is not released although the outcome of its first claim is unknown.
    CoreUnreleasedTry,
    /// Core: a renewal that has failed is repeated after half a lease.
    CoreLateRenewal,
    /// Core: a release is given up after its first temporary error.
    CoreUnrepeatedRelease,
    /// Core: an adoption takes the token and the mode from the text of the handle.
    CoreTrustedHandle,
    /// Core: a hold is renewed although another process has converted it.
    CoreUnsupersededHold,
    /// Core: the loss of a hold that another process may have renewed is followed by a release.
    CoreReleasedElsewhere,
    /// Core: the step of a semaphore that takes the last used slot fails at once in an outage.
    CoreImpatientSlot,
    /// MySQL: a claim does not expire.
    MysqlLateClaim,
    /// MySQL: a release ends the hold of any request.
    MysqlForeignRelease,
    /// MySQL: a release hands the lock over without a check of the holders.
    MysqlUncheckedHandover,
    /// MySQL: a renewal is acknowledged, and does not extend the hold.
    MysqlFalseRenewal,
    /// MySQL: a hand-over reports a longer lease than the hold has.
    MysqlLongHandover,
    /// MySQL: a hand-over does not record the tokens that it draws.
    MysqlRepeatedToken,
    /// MySQL: a restart of the server loses its locks.
    MysqlLostState,
    /// MySQL: a keep-alive sets the lease, also to an earlier end.
    MysqlShorteningRenewal,
    /// MySQL: a release leaves no record that refuses copies of its claim, by whichever process they were sent.
    MysqlForgottenCopies,
    /// MySQL: a break ends whatever holds the lock has.
    MysqlUntargetedBreak,
    /// PostgreSQL: a keep-alive sets the lease, also to an earlier end.
    PostgresShorteningRenewal,
    /// PostgreSQL: a release leaves no record that refuses copies of its claim, by whichever process they were sent.
    PostgresForgottenCopies,
    /// PostgreSQL: a break ends whatever holds the lock has.
    PostgresUntargetedBreak,
    /// PostgreSQL: the process of a waiter is not notified of its grant.
    PostgresLostNotification,
    /// PostgreSQL: a claim does not expire.
    PostgresLateClaim,
    /// SQLite: a keep-alive sets the lease, also to an earlier end.
    SqliteShorteningRenewal,
    /// SQLite: a release ends the hold of any request.
    SqliteForeignRelease,
    /// SQLite: a release hands the lock over without a check of the holders.
    SqliteUncheckedHandover,
    /// SQLite: a break ends whatever holds the lock has.
    SqliteUntargetedBreak,
    /// Redis: a claim does not expire, and finds no record of its release.
    RedisLateClaim,
    /// Redis: a claim does not check the holders.
    RedisUncheckedClaim,
    /// Redis: a release hands the lock over without a check of the holders.
    RedisUncheckedHandover,
    /// Redis: a release ends the holds of all requests.
    RedisForeignRelease,
    /// Redis: the lock is granted to waiters by releases alone, and not by claims.
    RedisNoFallback,
    /// Redis: a renewal is acknowledged, and does not extend the hold.
    RedisFalseRenewal,
    /// Redis: the token of a waiter is drawn when it enters the queue.
    RedisEarlyToken,
    /// Redis: a restart of the server loses its locks.
    RedisLostState,
    /// Redis: the notification of a waiter counts as delivered, and is not sent.
    RedisLostNotification,
    /// Redis: the record of a late claim is dropped by the first attempt of a release, even if that fails.
    RedisForgottenClaim,
    /// Redis: a keep-alive sets the lease, also to an earlier end.
    RedisShorteningRenewal,
    /// Redis: a keep-alive extends a hold that was ended at a later time.
    RedisRevivedPark,
    /// Redis: a release by a process that has not sent the claim leaves no record that refuses its copies.
    RedisForgottenCopies,
    /// Redis: a break ends whatever holds the lock has.
    RedisUntargetedBreak,
    /// Redlock: a withdrawal removes the vote for a later number.
    RedlockLiveVote,
    /// Redlock: a server that has lost its votes votes at once.
    RedlockNoDelay,
    /// Redlock: a server that was restarted votes at once if it has read a file.
    RedlockTrustedFile,
    /// Redlock: a server gives some votes and refuses them.
    RedlockUnmarkedVote,
    /// Redlock: a proposal that was withdrawn is accepted.
    RedlockLateProposal,
    /// Redlock: a withdrawal removes the vote for any request.
    RedlockForeignRelease,
    /// Redlock: a server votes though another request has its vote.
    RedlockSecondVote,
    /// Redlock: a withdrawal is acknowledged and not executed.
    RedlockFalseAcknowledgement,
    /// Redlock: a break ends the vote for any request.
    RedlockUntargetedBreak,
    /// ZooKeeper: a node whose create was not answered is not found again.
    ZookeeperHiddenNode,
    /// ZooKeeper: a waiter watches another node than the one that it waits for.
    ZookeeperWrongPredecessor,
    /// ZooKeeper: only the first watch of a session on a node is set.
    ZookeeperSecondWatch,
    /// ZooKeeper: the servers end a session after half of its timeout.
    ZookeeperEarlyExpiry,
    /// ZooKeeper: a change on an abandoned connection, or of a session that has ended, has an effect.
    ZookeeperLateCreate,
    /// ZooKeeper: a sequence is given twice.
    ZookeeperRepeatedSequence,
    /// ZooKeeper: a server answers a sync, and a transaction that changes nothing, without its leader.
    ZookeeperLocalProof,
    /// Azure: a release ends the lease of any request.
    AzureForeignRelease,
    /// Azure: a lease that was granted after its release is not released again.
    AzureLateLease,
    /// Azure: a renewal is acknowledged, and does not extend the lease.
    AzureFalseRenewal,
    /// Azure: the deadline of a hold counts from the reply.
    AzureReplyDeadline,
    /// Azure: the record of a grant is acknowledged, and not written.
    AzureLostRecord,
    /// Azure: the record of a grant does not change the `ETag`.
    AzureStaleEtag,
    /// Azure: a break ends the lease at once.
    AzureEarlyBreak,
    /// Azure: a broken lease is renewed.
    AzureUnnoticedBreak,
    /// Azure: a restart of the service loses the leases.
    AzureLostState,
    /// Both: the transitional store takes the old store alone.
    BothOldAlone,
    /// Both: the transitional store takes the new store alone.
    BothNewAlone,
    /// Both: the store with the smaller token does not continue after the greater one.
    BothUnraisedToken,
    /// Both: the second of two holders with equal tokens keeps its token.
    BothEqualTokens,
    /// Both: a renewal counts although the new store has lost the hold, or has not answered.
    BothHalfRenewal,
    /// Both: a break by token ends a request that waits, by the token of its hold in the old store.
    BothBrokenWaiter,
    /// Both: the fleet moves from one store to the other at once.
    BothSkippedStep,
    /// Lock service: a claim that its client has given up long ago is carried out.
    ServiceLateClaim,
    /// Lock service: a release counts however late it arrives.
    ServiceLateRelease,
    /// Lock service: a message to the store does not have the time limit of its client.
    ServiceLateMessage,
}

impl Planted {
    /// Returns the store that has the bug.
    #[must_use]
    pub const fn store(self) -> StoreKind {
        use Planted as P;
        match self {
            P::LateClaim
            | P::ForeignRelease
            | P::ReplyDeadline
            | P::NoRecheck
            | P::EarlyToken
            | P::RevivedHold
            | P::LostState
            | P::EarlyHandover
            | P::UnreportedCopy
            | P::LostNotification
            | P::ShorteningRenewal
            | P::RevivedPark
            | P::ForgottenCopies
            | P::UntargetedBreak
            | P::CoreUnpromotedWaiter
            | P::CoreLateClock
            | P::CoreDriftlessClock
            | P::CoreUncountedAttempt
            | P::CoreUnreleasedGrant
            | P::CoreUnreleasedTry
            | P::CoreLateRenewal
            | P::CoreUnrepeatedRelease
            | P::CoreTrustedHandle
            | P::CoreUnsupersededHold
            | P::CoreReleasedElsewhere
            | P::CoreImpatientSlot => StoreKind::Queue,
            P::MysqlLateClaim
            | P::MysqlForeignRelease
            | P::MysqlUncheckedHandover
            | P::MysqlFalseRenewal
            | P::MysqlLongHandover
            | P::MysqlRepeatedToken
            | P::MysqlLostState
            | P::MysqlShorteningRenewal
            | P::MysqlForgottenCopies
            | P::MysqlUntargetedBreak => StoreKind::Mysql,
            P::PostgresShorteningRenewal
            | P::PostgresForgottenCopies
            | P::PostgresUntargetedBreak
            | P::PostgresLostNotification
            | P::PostgresLateClaim => StoreKind::Postgres,
            P::SqliteShorteningRenewal
            | P::SqliteForeignRelease
            | P::SqliteUncheckedHandover
            | P::SqliteUntargetedBreak => StoreKind::Sqlite,
            P::RedisLateClaim
            | P::RedisUncheckedClaim
            | P::RedisUncheckedHandover
            | P::RedisForeignRelease
            | P::RedisNoFallback
            | P::RedisFalseRenewal
            | P::RedisEarlyToken
            | P::RedisLostState
            | P::RedisLostNotification
            | P::RedisForgottenClaim
            | P::RedisShorteningRenewal
            | P::RedisRevivedPark
            | P::RedisForgottenCopies
            | P::RedisUntargetedBreak
            | P::CoreForgottenNotice => StoreKind::Redis,
            P::RedlockLiveVote
            | P::RedlockNoDelay
            | P::RedlockTrustedFile
            | P::RedlockUnmarkedVote
            | P::RedlockLateProposal
            | P::RedlockForeignRelease
            | P::RedlockSecondVote
            | P::RedlockFalseAcknowledgement
            | P::RedlockUntargetedBreak => StoreKind::Redlock,
            P::ZookeeperHiddenNode
            | P::ZookeeperWrongPredecessor
            | P::ZookeeperSecondWatch
            | P::ZookeeperEarlyExpiry
            | P::ZookeeperLateCreate
            | P::ZookeeperRepeatedSequence
            | P::ZookeeperLocalProof => StoreKind::Zookeeper,
            P::AzureForeignRelease
            | P::AzureLateLease
            | P::AzureFalseRenewal
            | P::AzureReplyDeadline
            | P::AzureLostRecord
            | P::AzureStaleEtag
            | P::AzureEarlyBreak
            | P::AzureUnnoticedBreak
            | P::AzureLostState => StoreKind::Azure,
            P::BothOldAlone
            | P::BothNewAlone
            | P::BothUnraisedToken
            | P::BothEqualTokens
            | P::BothHalfRenewal
            | P::BothBrokenWaiter
            | P::BothSkippedStep => StoreKind::Both,
            P::ServiceLateClaim | P::ServiceLateRelease | P::ServiceLateMessage => StoreKind::Service,
        }
    }

    /// Returns the bug that the code of the processes has; `None` if the bug is elsewhere.
    #[must_use]
    pub const fn bug(self) -> Option<Bug> {
        Some(match self {
            Self::CoreUnpromotedWaiter => Bug::UnpromotedWaiter,
            Self::CoreLateClock => Bug::LateClock,
            Self::CoreDriftlessClock => Bug::DriftlessClock,
            Self::CoreUncountedAttempt => Bug::UncountedAttempt,
            Self::CoreForgottenNotice => Bug::ForgottenNotice,
            Self::CoreUnreleasedGrant => Bug::UnreleasedGrant,
            Self::CoreUnreleasedTry => Bug::UnreleasedTry,
            Self::CoreLateRenewal => Bug::LateRenewal,
            Self::CoreUnrepeatedRelease => Bug::UnrepeatedRelease,
            Self::CoreTrustedHandle => Bug::TrustedHandle,
            Self::CoreUnsupersededHold => Bug::UnsupersededHold,
            Self::CoreReleasedElsewhere => Bug::ReleasedElsewhere,
            Self::CoreImpatientSlot => Bug::ImpatientSlot,
            Self::RedisForgottenClaim => Bug::ForgottenClaim,
            Self::BothOldAlone => Bug::OldStoreAlone,
            Self::BothNewAlone => Bug::NewStoreAlone,
            Self::BothUnraisedToken => Bug::UnraisedToken,
            Self::BothEqualTokens => Bug::EqualTokens,
            Self::BothHalfRenewal => Bug::HalfRenewal,
            Self::BothBrokenWaiter => Bug::BrokenWaiter,
            _ => return None,
        })
    }
}
