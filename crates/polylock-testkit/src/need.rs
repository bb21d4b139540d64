//! The capabilities that cases need.

/// A capability that a case needs. A store without it reports the case as unsupported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// All six modes.
    Modes,
    /// The shared mode in addition to the exclusive one.
    Shared,
    /// Grants in order of arrival.
    Order,
    /// Fencing tokens.
    Tokens,
    /// Inspection.
    Inspect,
    /// Pushed break notices.
    Alerts,
    /// A count of the stored entries.
    Count,
    /// Pushed wake-ups.
    Push,
    /// Holds that any connection can renew and release.
    Anywhere,
}
