//! The guard of a lock that a synchronous program holds.

use std::{fmt, time::Duration};

use super::wait::{block_on, check_context};
use crate::{FencingToken, LockName, LostReason, Mode, Moment, OwnerId, Result};

/// A lock that is held, with calls that block their thread. It is a [`crate::Guard`], and the two convert into each other.
///
/// Work under the lock must stop when the hold ends. Nothing stops a thread from outside, so the work checks
/// [`ensure_held`](Self::ensure_held) before each side effect, and at least once in a third of the TTL.
///
/// Dropping a guard releases the lock in the background, on any thread. If the drop is the last act of the thread or the program, its end
/// waits up to 500 ms for the release to arrive.
#[must_use = "a guard that is dropped releases its lock at once"]
#[clippy::has_significant_drop]
pub struct Guard(crate::Guard);

impl Guard {
    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &LockName {
        self.0.name()
    }

    /// Returns the mode of the hold.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.0.mode()
    }

    /// Returns the owner of the hold, as shown by inspection.
    #[must_use]
    pub fn owner(&self) -> &OwnerId {
        self.0.owner()
    }

    /// Returns the number for the protected resource to check; see [`crate::Guard::fencing_token`].
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.0.fencing_token()
    }

    /// Returns true if the lock is held now. Reads only the clock: no I/O.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.0.is_held()
    }

    /// Returns the reason for the loss if the lock is lost; `None` while it is held. Reads only the clock: no I/O.
    ///
    /// To wait for the loss on another thread, pass the future of [`crate::Guard::lost`] to [`block_on`].
    #[must_use]
    pub fn lost(&self) -> Option<LostReason> {
        self.0.ensure_held().err().and_then(|error| error.lost().cloned())
    }

    /// Returns the instant at which the hold ends if no renewal is acknowledged before; see [`crate::Guard::deadline`].
    #[must_use]
    pub fn deadline(&self) -> Moment {
        self.0.deadline()
    }

    /// Returns the time left until the [`deadline`](Self::deadline); zero if the hold has ended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// Checks that the lock is held, before a side effect. Reads only the clock: no I/O.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if the lock is not held.
    pub fn ensure_held(&self) -> Result<()> {
        self.0.ensure_held()
    }

    /// Runs `work` under the lock, then releases the lock. `work` receives the guard, for the token and for
    /// [`ensure_held`](Self::ensure_held): it must stop when that is an error.
    ///
    /// A panic in `work` releases the lock, too.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if the lock was lost before `work` was called, which it then is not, or before `work`
    /// returned, or if the release finds that the store no longer had the hold: `work` may not have been protected. A release that is not
    /// acknowledged within half a second is no error: it continues in the background.
    /// [`Error::AsyncContext`](crate::Error::AsyncContext), in which case `work` is not called, and the lock is released.
    pub fn run<T>(self, work: impl FnOnce(&Self) -> T) -> Result<T> {
        check_context()?;
        self.ensure_held()?;
        let output = self.0.span().in_scope(|| work(&self));
        block_on(self.0.complete_run(output))?
    }

    /// Releases the lock and waits until the store has confirmed the release.
    ///
    /// # Errors
    /// The same as [`crate::Guard::release`]. [`Error::AsyncContext`](crate::Error::AsyncContext), in which case the lock is released in
    /// the background.
    pub fn release(self) -> Result<()> {
        block_on(self.0.release())?
    }

    /// Keeps the lock for another `delay`, then releases it; see [`crate::Guard::release_after`].
    ///
    /// # Errors
    /// The same as [`release`](Self::release).
    pub fn release_after(self, delay: Duration) -> Result<()> {
        block_on(self.0.release_after(delay))?
    }

    /// Ends the renewals in the background; see [`crate::Guard::stop_renewals`].
    pub fn stop_renewals(&self) {
        self.0.stop_renewals();
    }

    /// Renews the hold now, and returns the new [`deadline`](Self::deadline); see [`crate::Guard::renew`].
    ///
    /// # Errors
    /// The same as [`crate::Guard::renew`]. [`Error::AsyncContext`](crate::Error::AsyncContext): nothing was renewed.
    pub fn renew(&self) -> Result<Moment> {
        block_on(self.0.renew())?
    }

    /// Stops the renewals without a release: the lock stays taken until its lease expires.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if the lock was lost before.
    pub fn leave_to_expire(self) -> Result<()> {
        self.0.leave_to_expire()
    }

    /// Returns the same guard with the async interface.
    pub const fn as_async(&self) -> &crate::Guard {
        &self.0
    }
}

impl From<crate::Guard> for Guard {
    fn from(guard: crate::Guard) -> Self {
        Self(guard)
    }
}

impl From<Guard> for crate::Guard {
    fn from(guard: Guard) -> Self {
        guard.0
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
