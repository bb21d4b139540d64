//! What the servers know of one request.

use polylock_core::LockName;

/// A live entry at the servers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LiveEntry {
    /// The lock.
    pub name: LockName,
    /// The token of a hold; `None` for a request that waits.
    pub token: Option<u64>,
    /// True for a request that could hold the lock.
    pub is_free_to_go: bool,
    /// The owner of the request, if the server knows it.
    pub owner: Option<String>,
}
