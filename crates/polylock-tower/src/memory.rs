//! The tokens of one process, in memory.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use polylock_core::{FencingToken, sync::lock};
use tokio::sync::OwnedMutexGuard;

use crate::store::{Raised, TokenStore};

/// The greatest token of one resource. The lock is the permit.
type Entry = Arc<tokio::sync::Mutex<Option<FencingToken>>>;

/// The greatest tokens that this process has seen since its start. Clones share them.
///
/// It never forgets a token, because it would then accept a stale one. So its size is bounded by its capacity: the token of a further
/// resource is refused with [`Full`], while those of the known resources are compared as before. An entry takes about 200 bytes and the
/// name of the resource.
#[derive(Debug, Clone)]
pub struct MemoryTokens {
    capacity: usize,
    entries: Arc<Mutex<HashMap<String, Entry>>>,
}

/// The permit of a [`MemoryTokens`].
#[derive(Debug)]
pub struct MemoryPermit {
    _reserved: OwnedMutexGuard<Option<FencingToken>>,
}

/// The tokens of as many resources as possible are stored.
#[derive(Debug, thiserror::Error)]
#[error(
    "the tokens of {capacity} resources are stored, and none may be forgotten: create MemoryTokens with a greater capacity"
)]
pub struct Full {
    capacity: usize,
}

impl MemoryTokens {
    /// The default of the capacity.
    pub const DEFAULT_CAPACITY: usize = 100_000;

    /// Creates an empty store for the tokens of this many resources.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self { capacity, entries: Arc::default() }
    }

    fn entry(&self, resource: &str) -> Result<Entry, Full> {
        let mut entries = lock(&self.entries);
        if let Some(entry) = entries.get(resource) {
            return Ok(entry.clone());
        }
        if entries.len() >= self.capacity {
            return Err(Full { capacity: self.capacity });
        }
        Ok(entries.entry(resource.to_owned()).or_default().clone())
    }
}

impl Default for MemoryTokens {
    fn default() -> Self {
        Self::with_capacity(Self::DEFAULT_CAPACITY)
    }
}

impl TokenStore for MemoryTokens {
    type Permit = MemoryPermit;
    type Error = Full;

    async fn raise(&self, resource: &str, token: FencingToken) -> Result<Raised<MemoryPermit>, Full> {
        let mut greatest = self.entry(resource)?.lock_owned().await;
        if let Some(current) = greatest.filter(|current| token < *current) {
            return Ok(Raised::Stale { current });
        }
        *greatest = Some(token);
        Ok(Raised::Accepted(MemoryPermit { _reserved: greatest }))
    }
}
