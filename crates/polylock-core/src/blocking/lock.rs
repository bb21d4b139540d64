//! A lock to be acquired by a synchronous program.

use std::time::Duration;

use super::{guard::Guard, wait::block_on};
use crate::{Mode, OwnerId, Progress, Result};

/// A lock to be acquired. [`Locks::lock`](super::Locks::lock) creates it, its methods configure it, and [`acquire`](Self::acquire) or
/// [`try_acquire`](Self::try_acquire) consumes it. The options are those of [`crate::Lock`].
///
/// ```
/// use std::time::Duration;
/// use polylock_core::{blocking::Locks, memory};
///
/// let locks = Locks::new(memory::connect());
/// let _reader = locks.lock("orders/42").shared().ttl(Duration::from_secs(10)).acquire()?;
/// let writer = locks.lock("orders/42").wait(Duration::from_millis(20)).acquire();
/// assert!(writer.is_err_and(|error| error.is_not_acquired()));
/// # Ok::<(), polylock_core::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock(crate::Lock);

/// Forwards options to the lock of the async interface.
macro_rules! options {
    ($($option:ident($($argument:ident: $type:ty)?);)*) => {
        impl Lock {
            $(
                #[doc = concat!("Sets the option; see [`crate::Lock::", stringify!($option), "`].")]
                pub fn $option(self $(, $argument: $type)?) -> Self {
                    Self(self.0.$option($($argument)?))
                }
            )*
        }
    };
}

options! {
    ttl(ttl: Duration);
    wait(wait: Duration);
    outage(outage: Duration);
    deadlock_check(interval: Duration);
    max_hold(time: Duration);
    min_hold(time: Duration);
    mode(mode: Mode);
    shared();
    label(label: impl AsRef<str>);
    progress(progress: &Progress);
    owner(owner: &OwnerId);
    reentrant(owner: &OwnerId);
}

impl Lock {
    pub(super) const fn new(lock: crate::Lock) -> Self {
        Self(lock)
    }

    /// Blocks the thread until the lock is acquired.
    ///
    /// # Errors
    /// The same as [`crate::Lock::acquire`], and [`Error::AsyncContext`](crate::Error::AsyncContext) before anything is sent.
    pub fn acquire(self) -> Result<Guard> {
        block_on(self.0.acquire())?.map(Guard::from)
    }

    /// Acquires the lock if no other request is ahead; returns `None` otherwise. It blocks the thread for the reply of the store only.
    ///
    /// # Errors
    /// The same as [`crate::Lock::try_acquire`], and [`Error::AsyncContext`](crate::Error::AsyncContext) before anything is sent.
    pub fn try_acquire(self) -> Result<Option<Guard>> {
        Ok(block_on(self.0.try_acquire())??.map(Guard::from))
    }
}
