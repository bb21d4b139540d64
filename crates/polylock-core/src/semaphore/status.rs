//! The holders and waiters of a semaphore.

use std::sync::Arc;

use super::label;
use crate::{Entry, LockName, Operation, Result, backend::LockStatus, engine::StoreHandle};

/// The holders and waiters of a semaphore, as [`Locks::inspect_semaphore`](crate::Locks::inspect_semaphore) returns them.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SemaphoreStatus {
    /// The name of the semaphore.
    pub name: LockName,
    /// The number of slots, if there is a holder or a waiter.
    pub slots: Option<u32>,
    /// The slots with a holder, by their numbers.
    pub held: Vec<SlotStatus>,
    /// The waiters, in order if the store keeps an order.
    pub waiters: Vec<Entry>,
}

/// A slot with a holder.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SlotStatus {
    /// The number of the slot.
    pub slot: u32,
    /// Its holder.
    pub holder: Entry,
}

/// Reads the status of a semaphore.
pub(crate) async fn inspect(handle: &Arc<StoreHandle>, name: LockName) -> Result<SemaphoreStatus> {
    let prefix = name.of_semaphore(None).as_str().to_owned();
    let locks = handle.inspect(Operation::Inspect, |store| async move { store.list(&prefix).await }).await?;
    Ok(of_locks(name, locks))
}

/// Returns the status of a semaphore by that of its locks.
fn of_locks(name: LockName, locks: Vec<LockStatus>) -> SemaphoreStatus {
    let mut status = SemaphoreStatus { name, slots: None, held: Vec::new(), waiters: Vec::new() };
    let entry = |mut entry: Entry, slots: &mut Option<u32>| {
        if let Some((number, text)) = label::parse(&entry.label) {
            *slots = Some(number);
            entry.label = text.to_owned();
        }
        entry
    };
    for lock in locks {
        match lock.name.slot() {
            Some((semaphore, slot)) if semaphore == status.name.as_str() => {
                let holders = lock.holders.into_iter().map(|holder| entry(holder, &mut status.slots));
                status.held.extend(holders.map(|holder| SlotStatus { slot, holder }));
            }
            // The turnstile: its holder is the first waiter.
            None if lock.name == status.name.of_semaphore(None) => {
                let waiters = lock.holders.into_iter().chain(lock.waiters);
                status.waiters = waiters.map(|waiter| entry(waiter, &mut status.slots)).collect();
            }
            _ => {}
        }
    }
    status.held.sort_by_key(|slot| slot.slot);
    status
}
