//! The choice between the two strategies of a store on a server.

/// The representation of locks in the database: `polylock.strategy` in a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Strategy {
    /// Rows with a lease: the default, with queues, six modes and any number of locks on a few connections.
    #[default]
    Lease,
    /// Row locks of open transactions, each on a connection of its own: see [`pessimistic`](crate::pessimistic).
    Pessimistic,
}

impl Strategy {
    /// The values of `polylock.strategy`.
    pub(crate) const WORDS: [(&'static str, Self); 2] =
        [("lease", Self::Lease), ("pessimistic", Self::Pessimistic)];

    /// Returns the value of the two that is for this strategy.
    pub(crate) fn choose<T>(self, lease: T, pessimistic: T) -> T {
        match self {
            Self::Lease => lease,
            Self::Pessimistic => pessimistic,
        }
    }
}
