#![doc = include_str!("docs.md")]

mod host;
mod session;
mod store;
mod waiter;

pub(crate) use host::{Servers, Statements, Strengths, Wording};
pub(crate) use store::Pessimistic;

use std::time::Duration;

/// How long a waiter waits before it waits anew: the longest that one whose machine died keeps its connection.
pub(crate) const SLICE: Duration = Duration::from_secs(15);

/// How many connections beside those of the locks a store may have: for tokens, and to end what hangs.
pub(crate) const SIDE_CONNECTIONS: u32 = 4;

/// How the locks of a database are kept: `polylock.strategy` in a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Strategy {
    /// As rows with a lease: the default, with queues, six modes and any number of locks on a few connections.
    #[default]
    Lease,
    /// As row locks of open transactions, each on a connection of its own: see the [module](self).
    Pessimistic,
}

impl Strategy {
    /// The words for `polylock.strategy`.
    pub(crate) const WORDS: [(&'static str, Self); 2] =
        [("lease", Self::Lease), ("pessimistic", Self::Pessimistic)];
}
