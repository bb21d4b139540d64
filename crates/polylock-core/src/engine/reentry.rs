//! Reentrancy by explicit owner: the owner that holds a lock may enter it again, and the lock is released with its last guard.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use tokio::sync::OwnedMutexGuard;

use super::shared_hold::SharedHold;
use crate::{LockName, OwnerId, Request};

type Key = (LockName, OwnerId);
type Cell = Arc<tokio::sync::Mutex<Weak<SharedHold>>>;

/// Exclusive access to a slot; yields the owner's current hold, if any.
pub(crate) type Entered = OwnedMutexGuard<Weak<SharedHold>>;

/// The reentrant holds of the owners of this process.
#[derive(Debug, Default, Clone)]
pub(crate) struct Reentry {
    slots: Arc<Mutex<HashMap<Key, Cell>>>,
}

impl Reentry {
    /// Returns the slot that the attempts of one owner for one lock share.
    pub(crate) fn slot(&self, request: &Request) -> Slot {
        let key = (request.name.clone(), request.owner.clone());
        let cell = self.lock().entry(key.clone()).or_default().clone();
        Slot { reentry: self.clone(), key, cell }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Cell>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reference to such a slot; the last one removes it.
#[derive(Debug)]
pub(crate) struct Slot {
    reentry: Reentry,
    key: Key,
    cell: Cell,
}

impl Slot {
    /// Waits until no other attempt of this owner is in progress, so that the second attempt finds the grant of the first.
    pub(crate) async fn enter(&self) -> Entered {
        self.cell.clone().lock_owned().await
    }

    /// Does not wait: returns `None` if another acquisition of this owner is in progress.
    pub(crate) fn try_enter(&self) -> Option<Entered> {
        self.cell.clone().try_lock_owned().ok()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut slots = self.reentry.lock();
        // The two references are those of the map and of this slot: under the map's lock, no other one can be created. (An
        // `Entered` has one, too, and ends before its slot does.)
        if Arc::strong_count(&self.cell) == 2 {
            slots.remove(&self.key);
        }
    }
}
