//! Reentrancy by explicit owner: who holds a lock may enter it again, and it is released when the last has left.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use tokio::sync::OwnedMutexGuard;

use super::tenure::Tenure;
use crate::{LockName, OwnerId, Request};

type Key = (LockName, OwnerId);
type Cell = Arc<tokio::sync::Mutex<Weak<Tenure>>>;

/// Sole use of such a place: what its owner holds, if anything.
pub(crate) type Entered = OwnedMutexGuard<Weak<Tenure>>;

/// What each owner of this process holds reentrantly.
#[derive(Debug, Default, Clone)]
pub(crate) struct Reentry {
    slots: Arc<Mutex<HashMap<Key, Cell>>>,
}

impl Reentry {
    /// The place where the attempts of one owner for one lock meet.
    pub(crate) fn slot(&self, request: &Request) -> Slot {
        let key = (request.name.clone(), request.owner.clone());
        let cell = self.lock().entry(key.clone()).or_default().clone();
        Slot { reentry: self.clone(), key, cell }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Cell>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A use of such a place; the last one to go takes it away.
#[derive(Debug)]
pub(crate) struct Slot {
    reentry: Reentry,
    key: Key,
    cell: Cell,
}

impl Slot {
    /// Waits until no other attempt of this owner is under way, so that the second finds what the first was granted.
    pub(crate) async fn enter(&self) -> Entered {
        self.cell.clone().lock_owned().await
    }

    /// The same without waiting; `None` if another acquisition of this owner is under way.
    pub(crate) fn try_enter(&self) -> Option<Entered> {
        self.cell.clone().try_lock_owned().ok()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut slots = self.reentry.lock();
        // The map's and this one: under the map's lock nobody can take another. (Who has entered counts, too, and ends
        // before its slot does.)
        if Arc::strong_count(&self.cell) == 2 {
            slots.remove(&self.key);
        }
    }
}
