#![doc = include_str!("docs.md")]

mod server;
mod session;
mod store;
mod waiter;

pub(crate) use server::{ErrorCodes, LockStatements, ServerPools, Statements};
pub(crate) use store::PessimisticBackend;

use std::time::Duration;

/// The time limit of one waiting statement, after which the waiter repeats it: the longest time that a waiter on a dead machine
/// keeps its connection.
pub(crate) const SLICE: Duration = Duration::from_secs(15);

/// The number of connections that a store may have in addition to those of the locks: for tokens, and to end sessions that hang.
pub(crate) const SIDE_CONNECTIONS: u32 = 4;

/// The representation of locks in the database: `polylock.strategy` in a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Strategy {
    /// Rows with a lease: the default, with queues, six modes and any number of locks on a few connections.
    #[default]
    Lease,
    /// Row locks of open transactions, each on a connection of its own: see the [module](self).
    Pessimistic,
}

impl Strategy {
    /// The values of `polylock.strategy`.
    pub(crate) const WORDS: [(&'static str, Self); 2] =
        [("lease", Self::Lease), ("pessimistic", Self::Pessimistic)];
}
