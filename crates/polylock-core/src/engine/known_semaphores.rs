//! What this process knows of the semaphores that it uses.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use crate::{LockName, Moment, sync::lock};

/// The time for which the check of the number of slots is valid.
const CHECK_VALID: Duration = Duration::from_secs(1);

/// The number of semaphores that are remembered.
const REMEMBERED: usize = 1024;

/// The semaphores that this process has used last.
#[derive(Debug, Default)]
pub(crate) struct KnownSemaphores(Mutex<HashMap<LockName, Known>>);

#[derive(Debug, Clone, Copy)]
struct Known {
    /// The slot that was acquired last.
    slot: u32,
    slots: u32,
    checked: Moment,
}

impl KnownSemaphores {
    /// Returns the slot that this process has acquired last, or 0.
    pub(crate) fn last_slot(&self, name: &LockName, slots: u32) -> u32 {
        self.lock().get(name).map_or(0, |known| known.slot).min(slots.saturating_sub(1))
    }

    /// Returns true if an acquisition has checked the number of slots a moment before `now`.
    pub(crate) fn is_checked(&self, name: &LockName, slots: u32, now: Moment) -> bool {
        let is_valid = |known: &Known| known.slots == slots && now.since(known.checked) < CHECK_VALID;
        self.lock().get(name).is_some_and(is_valid)
    }

    /// Records the slot that was acquired last.
    pub(crate) fn acquired(&self, name: &LockName, slot: u32) {
        self.change(name, |known| known.slot = slot);
    }

    /// Records a check of the number of slots at `now`.
    pub(crate) fn checked(&self, name: &LockName, slots: u32, now: Moment) {
        self.change(name, |known| *known = Known { slots, checked: now, ..*known });
    }

    fn change(&self, name: &LockName, change: impl FnOnce(&mut Known)) {
        let mut known = self.lock();
        if known.len() >= REMEMBERED && !known.contains_key(name) {
            known.clear();
        }
        change(known.entry(name.clone()).or_insert(Known { slot: 0, slots: 0, checked: Moment::default() }));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockName, Known>> {
        lock(&self.0)
    }
}
