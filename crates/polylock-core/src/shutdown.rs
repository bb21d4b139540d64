//! The outcome of a shutdown.

use std::sync::Arc;

use crate::{Error, LockName};

/// The outcome of [`Locks::shutdown`](crate::Locks::shutdown).
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// The number of holds that the shutdown has ended, with a release that the store has confirmed.
    pub released: usize,
    /// The holds with a release that has failed. Their leases have expired or are about to.
    pub failed: Vec<FailedRelease>,
    /// The number of acquisitions that the shutdown has ended, and with requests that the store had not confirmed as withdrawn after
    /// the default TTL. Their entries in the store expire.
    pub unconfirmed: usize,
}

impl ShutdownReport {
    /// Returns true if the store has confirmed every release and every withdrawal: no lock of this process is taken any more.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.failed.is_empty() && self.unconfirmed == 0
    }

    pub(crate) fn add(&mut self, name: LockName, release: Result<(), Error>) {
        match release {
            Ok(()) => self.released += 1,
            Err(error) => self.failed.push(FailedRelease { name, error: Arc::new(error) }),
        }
    }
}

/// A release that has failed in a shutdown.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FailedRelease {
    /// The name of the lock.
    pub name: LockName,
    /// The error: [`Error::Lost`] if the store no longer had the hold, [`Error::Unavailable`] if it did not confirm the release in the time
    /// of the lease.
    pub error: Arc<Error>,
}
