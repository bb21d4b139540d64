//! The locks for synchronous programs, which need no async runtime: every call blocks its thread.
//!
//! ```
//! use polylock::blocking::Locks;
//!
//! let locks = Locks::connect("memory:")?;
//! let guard = locks.lock("orders/42").acquire()?;
//! println!("write with token {}", guard.fencing_token());
//! guard.release()?;
//! # Ok::<(), polylock::Error>(())
//! ```
//!
//! It needs no feature, and works on plain threads, in thread pools such as rayon's, and in `tokio::task::spawn_blocking`. In an async task a call
//! is an error instead of a deadlock. [`polylock_core::blocking`] documents the limits.

use std::ops::Deref;

pub use polylock_core::blocking::{Guard, Lock, block_on};

use crate::{LocksBuilder, LocksConfig, Result};

/// The locks of one store, opened by URL, with calls that block their thread. It derefs to [`polylock_core::blocking::Locks`], which has
/// all other methods.
#[derive(Debug, Clone)]
pub struct Locks(polylock_core::blocking::Locks);

impl Locks {
    /// Opens the store at `url`; see the [crate's page](crate#stores) for the URLs. [`LocksBuilder::connect_blocking`] does the same with
    /// more settings.
    ///
    /// # Errors
    /// As [`crate::Locks::connect`], and [`Error::AsyncContext`](crate::Error::AsyncContext) in an async task.
    pub fn connect(url: &str) -> Result<Self> {
        crate::Locks::builder(url).connect_blocking()
    }

    /// Opens the store of `config`.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn from_config(config: LocksConfig) -> Result<Self> {
        crate::Locks::builder_from_config(config).connect_blocking()
    }
}

impl LocksBuilder {
    /// Opens the store for a synchronous program; blocks the thread until it is open.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and [`Error::AsyncContext`](crate::Error::AsyncContext) in an async task.
    pub fn connect_blocking(self) -> Result<Locks> {
        block_on(self.connect())?.map(Locks::from)
    }
}

impl Deref for Locks {
    type Target = polylock_core::blocking::Locks;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl From<crate::Locks> for Locks {
    fn from(locks: crate::Locks) -> Self {
        Self((*locks).clone().into())
    }
}
