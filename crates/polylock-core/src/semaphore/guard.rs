//! The guard of a slot.

use std::{fmt, ops::Deref, time::Duration};

use crate::{Guard, LockName, Result};

/// A slot of a semaphore that is held.
///
/// It is a [`Guard`] of the slot's lock, with the same renewals, deadline and loss. The fencing tokens of one slot grow strictly. Tokens of
/// different slots are not comparable, so a resource compares the tokens of each [`slot`](Self::slot) by itself.
#[must_use = "a guard that is dropped releases its slot at once"]
#[clippy::has_significant_drop]
pub struct SlotGuard {
    guard: Guard,
    semaphore: LockName,
    slot: u32,
    slots: u32,
}

impl SlotGuard {
    pub(super) const fn new(guard: Guard, semaphore: LockName, slot: u32, slots: u32) -> Self {
        Self { guard, semaphore, slot, slots }
    }

    /// Returns the name of the semaphore.
    #[must_use]
    pub const fn semaphore(&self) -> &LockName {
        &self.semaphore
    }

    /// Returns the number of the slot, which no other holder has: at least 0, and less than [`slots`](Self::slots).
    #[must_use]
    pub const fn slot(&self) -> u32 {
        self.slot
    }

    /// Returns the number of slots of the semaphore.
    #[must_use]
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    /// Runs `work` while the slot is held, then releases the slot; see [`Guard::run`].
    ///
    /// # Errors
    /// The same as [`Guard::run`].
    ///
    /// # Cancel safety
    /// Dropping the future drops `work` and releases the slot.
    pub async fn run<F: Future>(self, work: F) -> Result<F::Output> {
        self.guard.run(work).await
    }

    /// Releases the slot and waits until the store has confirmed the release; see [`Guard::release`].
    ///
    /// # Errors
    /// The same as [`Guard::release`].
    ///
    /// # Cancel safety
    /// Once polled, the release continues in the background if the future is dropped.
    pub async fn release(self) -> Result<()> {
        self.guard.release().await
    }

    /// Stops the renewals without a release; see [`Guard::leave_to_expire`].
    ///
    /// # Errors
    /// The same as [`Guard::leave_to_expire`].
    pub fn leave_to_expire(self) -> Result<()> {
        self.guard.leave_to_expire()
    }

    /// Keeps the slot for another `delay`, then releases it; see [`Guard::release_after`].
    ///
    /// # Errors
    /// The same as [`Guard::release_after`].
    ///
    /// # Cancel safety
    /// The same as that of [`Guard::release_after`].
    pub async fn release_after(self, delay: Duration) -> Result<()> {
        self.guard.release_after(delay).await
    }

    /// Returns the guard of the slot's lock.
    pub fn into_guard(self) -> Guard {
        self.guard
    }
}

impl Deref for SlotGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}

impl fmt::Debug for SlotGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotGuard")
            .field("semaphore", &self.semaphore)
            .field("slot", &self.slot)
            .field("slots", &self.slots)
            .field("guard", &self.guard)
            .finish()
    }
}
