//! The recipes through which the clients of a run lock a name. Each must keep the promises of a plain lock.

use std::time::Duration;

use fastrand::Rng;
use polylock_core::{Guard, Lock, Locks, Mode, MultiGuard, MultiLock, OwnerId, Progress, Result, Semaphore};

/// A recipe with one lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recipe {
    /// The lock.
    Lock,
    /// Several locks together, of which there is one.
    Several,
    /// The node of a tree, which is its root.
    Tree,
    /// A slot of a semaphore with this number of slots. It is another lock than that of the same name.
    Slot(u32),
}

impl Recipe {
    /// Draws a recipe of the lock with this name; most are plain locks.
    pub fn draw(random: &mut Rng) -> Self {
        match random.u8(..8) {
            0 => Self::Several,
            1 => Self::Tree,
            _ => Self::Lock,
        }
    }

    /// Draws a recipe, which may also be the only slot of a semaphore.
    pub fn draw_with_slots(random: &mut Rng, mode: Mode) -> Self {
        if mode == Mode::Exclusive && random.u8(..8) == 0 { Self::Slot(1) } else { Self::draw(random) }
    }

    /// Returns the name of the lock, as inspection shows it. That of a slot is known in advance if there is one slot.
    #[must_use]
    pub fn name_of_lock(self, name: &str) -> String {
        if let Self::Slot(1) = self { format!("{name} slot 0") } else { name.to_owned() }
    }

    /// Returns the lock `name`, to be acquired.
    pub fn wanted(self, locks: &Locks, name: &str, mode: Mode) -> Wanted {
        match self {
            Self::Lock => Wanted::Lock(locks.lock(name).mode(mode)),
            Self::Several => Wanted::Several(locks.lock_many([name]).mode(mode)),
            Self::Tree => Wanted::Several(locks.tree(name).mode(mode)),
            Self::Slot(slots) => Wanted::Slot(locks.semaphore(name, slots)),
        }
    }
}

/// A lock to be acquired.
#[derive(Debug, Clone)]
pub enum Wanted {
    /// A plain lock.
    Lock(Lock),
    /// Several locks, of which there is one.
    Several(MultiLock),
    /// A slot.
    Slot(Semaphore),
}

/// Calls a method of each kind, which returns that kind again.
macro_rules! set {
    ($wanted:expr, $method:ident($value:expr)) => {
        match $wanted {
            Self::Lock(lock) => Self::Lock(lock.$method($value)),
            Self::Several(locks) => Self::Several(locks.$method($value)),
            Self::Slot(slot) => Self::Slot(slot.$method($value)),
        }
    };
}

impl Wanted {
    /// Sets the lease.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        set!(self, ttl(ttl))
    }

    /// Sets the shortest time of the hold, unless it is that of a slot, which has none.
    #[must_use]
    pub fn min_hold(self, time: Duration) -> Self {
        match self {
            Self::Lock(lock) => Self::Lock(lock.min_hold(time)),
            Self::Several(locks) => Self::Several(locks.min_hold(time)),
            Self::Slot(slot) => Self::Slot(slot),
        }
    }

    /// Sets the longest time of the hold, unless it is that of a slot, which has none.
    #[must_use]
    pub fn max_hold(self, time: Duration) -> Self {
        match self {
            Self::Lock(lock) => Self::Lock(lock.max_hold(time)),
            Self::Several(locks) => Self::Several(locks.max_hold(time)),
            Self::Slot(slot) => Self::Slot(slot),
        }
    }

    /// Sets the time limit for waiting.
    #[must_use]
    pub fn wait(self, limit: Duration) -> Self {
        set!(self, wait(limit))
    }

    /// Sets the time for which a request waits for the store, a try too.
    #[must_use]
    pub fn outage(self, outage: Duration) -> Self {
        set!(self, outage(outage))
    }

    /// Sets the owner.
    #[must_use]
    pub fn owner(self, owner: &OwnerId) -> Self {
        set!(self, owner(owner))
    }

    /// Sets the receiver of the progress.
    #[must_use]
    pub fn progress(self, progress: &Progress) -> Self {
        set!(self, progress(progress))
    }

    /// Waits for the lock and acquires it.
    ///
    /// # Errors
    /// The errors of the acquisition.
    ///
    /// # Cancel safety
    /// The same as [`Lock::acquire`].
    pub async fn acquire(self) -> Result<Held> {
        Ok(match self {
            Self::Lock(lock) => Held::Lock(lock.acquire().await?),
            Self::Several(locks) => Held::Several(locks.acquire().await?),
            Self::Slot(slot) => Held::Lock(slot.acquire().await?.into_guard()),
        })
    }

    /// Acquires the lock if it is free.
    ///
    /// # Errors
    /// The errors of the acquisition.
    ///
    /// # Cancel safety
    /// The same as [`Lock::try_acquire`].
    pub async fn try_acquire(self) -> Result<Option<Held>> {
        Ok(match self {
            Self::Lock(lock) => lock.try_acquire().await?.map(Held::Lock),
            Self::Several(locks) => locks.try_acquire().await?.map(Held::Several),
            Self::Slot(slot) => slot.try_acquire().await?.map(|slot| Held::Lock(slot.into_guard())),
        })
    }
}

/// A hold.
#[derive(Debug)]
pub enum Held {
    /// The guard of a lock or of a slot.
    Lock(Guard),
    /// The guard of several locks, of which there is one.
    Several(MultiGuard),
}

impl Held {
    /// Returns the guard of the lock.
    pub fn guard(&self) -> &Guard {
        match self {
            Self::Lock(guard) => guard,
            Self::Several(guards) => &guards.guards()[0],
        }
    }

    /// Releases the lock.
    ///
    /// # Errors
    /// The errors of the release.
    ///
    /// # Cancel safety
    /// The same as [`Guard::release`].
    pub async fn release(self) -> Result<()> {
        match self {
            Self::Lock(guard) => guard.release().await,
            Self::Several(guards) => guards.release().await,
        }
    }

    /// Releases the lock after `delay`.
    ///
    /// # Errors
    /// The errors of the release.
    ///
    /// # Cancel safety
    /// The same as [`Guard::release_after`].
    pub async fn release_after(self, delay: Duration) -> Result<()> {
        match self {
            Self::Lock(guard) => guard.release_after(delay).await,
            Self::Several(guards) => guards.release_after(delay).await,
        }
    }

    /// Leaves the lease to expire.
    ///
    /// # Errors
    /// If the lock was lost before.
    pub fn leave_to_expire(self) -> Result<()> {
        match self {
            Self::Lock(guard) => guard.leave_to_expire(),
            Self::Several(guards) => guards.leave_to_expire(),
        }
    }
}
