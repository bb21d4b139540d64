//! A mutex that stays usable after a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, also if a thread has panicked with its guard. It is for data that is valid after each statement that changes it:
/// the panic of one task then does not end all others.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
