//! The locks of a store, for synchronous programs.

use std::time::Duration;

use super::{lock::Lock, wait::block_on};
use crate::{Capabilities, LockStatus, Options, Result, ShutdownReport, Store};

/// The locks of one store, with calls that block their thread. Cheap to clone; clones share everything.
///
/// See the [module](super) for the threads on which they work. The same locks can be used asynchronously: [`as_async`](Self::as_async), and
/// `Locks::from`.
#[derive(Debug, Clone)]
pub struct Locks(crate::Locks);

impl Locks {
    /// Creates the locks of `store`, with the default options. For other options, build a [`crate::Locks`] and convert it.
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self(crate::Locks::new(store))
    }

    /// Returns the lock `name`, to be acquired. An invalid name is an error of the acquisition.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(self.0.lock(name))
    }

    /// Returns the capabilities of the store.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }

    /// Returns the default options of the locks.
    #[must_use]
    pub fn options(&self) -> &Options {
        self.0.options()
    }

    /// Returns the holders and waiters of the lock `name`.
    ///
    /// # Errors
    /// The same as [`crate::Locks::inspect`], and [`Error::AsyncContext`](crate::Error::AsyncContext).
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<LockStatus> {
        block_on(self.0.inspect(name))?
    }

    /// Returns the status of every lock in use with a name that starts with `prefix`, sorted by name.
    ///
    /// # Errors
    /// The same as [`inspect`](Self::inspect).
    pub fn list(&self, prefix: impl AsRef<str>) -> Result<Vec<LockStatus>> {
        block_on(self.0.list(prefix))?
    }

    /// Waits until all background work is done; see [`crate::Locks::close`]. Returns `false` if `within` expired first.
    ///
    /// # Errors
    /// [`Error::AsyncContext`](crate::Error::AsyncContext).
    pub fn close(&self, within: Duration) -> Result<bool> {
        block_on(self.0.clone().close(within))
    }

    /// Ends waiting acquisitions, releases all holds and refuses new acquisitions; see [`crate::Locks::shutdown`].
    ///
    /// # Errors
    /// The same as [`crate::Locks::shutdown`], and [`Error::AsyncContext`](crate::Error::AsyncContext).
    pub fn shutdown(&self) -> Result<ShutdownReport> {
        block_on(self.0.shutdown())?
    }

    /// Returns the same locks with the async interface, for everything else: [`block_on`] waits for their futures.
    #[must_use]
    pub const fn as_async(&self) -> &crate::Locks {
        &self.0
    }
}

impl From<crate::Locks> for Locks {
    fn from(locks: crate::Locks) -> Self {
        Self(locks)
    }
}
