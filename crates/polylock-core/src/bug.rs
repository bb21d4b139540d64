//! The bugs that tests plant in core.

/// A bug that a simulated process may be given, so that a search can be seen to find it. No other process has any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "simulation"),
    expect(unreachable_pub, reason = "a part of the interface for tests")
)]
pub enum Bug {
    /// The next waiter of the process is not promoted when the first one leaves.
    UnpromotedWaiter,
    /// The estimate of a server's clock is its latest possible time, not the earliest.
    LateClock,
    /// The estimate of a server's clock ignores that the two clocks drift apart.
    DriftlessClock,
    /// A release that the caller has begun does not count as an attempt once the I/O thread takes it over.
    UncountedAttempt,
    /// A break notice is forgotten unless the hold is already registered.
    ForgottenNotice,
    /// A grant that its caller does not receive is passed on in this process, and not released in the store.
    UnreleasedGrant,
    /// A try is not released although the outcome of its first claim is unknown.
    UnreleasedTry,
    /// A renewal that has failed is repeated after half a lease.
    LateRenewal,
    /// A release is given up after its first temporary error.
    UnrepeatedRelease,
    /// An adoption takes the token and the mode from the text of the handle.
    TrustedHandle,
    /// A hold is renewed although another process has converted it.
    UnsupersededHold,
    /// The loss of a hold that another process may have renewed is followed by a release.
    ReleasedElsewhere,
    /// The step of a semaphore that takes the last used slot fails at once in an outage.
    ImpatientSlot,
    /// A transitional store takes the old store alone.
    OldStoreAlone,
    /// A transitional store takes the new store alone.
    NewStoreAlone,
    /// A transitional store raises the tokens of neither store.
    UnraisedToken,
    /// A transitional store keeps a token that another request may have been granted.
    EqualTokens,
    /// A renewal by a transitional store counts although the new store has lost the hold, or has not replied.
    HalfRenewal,
    /// A break in both stores ends requests that wait in the new one, by the tokens of their holds in the old one.
    BrokenWaiter,
    /// A store forgets the late claims of a request with the first attempt of its release, even if that fails.
    #[cfg(feature = "simulation")]
    ForgottenClaim,
}
