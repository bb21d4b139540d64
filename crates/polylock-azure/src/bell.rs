//! Waking waiters early.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use polylock_core::{InvalidName, LockName, line::Line};

/// Wakes those who wait for a lock, which they else look at about once a second: for a program that hears in another way
/// that a lock may be free, from a message queue for instance.
///
/// A ring for nothing costs one request, and one that is missing costs a second at most. It rings for the waiters of the
/// stores that it was given to, in this process; a release by the same store rings by itself.
///
/// ```no_run
/// use polylock_azure::{Bell, Config};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let bell = Bell::default();
/// let store = polylock_azure::connect(Config::new("az://locks?emulator=true")?.bell(&bell)).await?;
/// // Where news of other processes come in:
/// bell.ring("orders/42")?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Bell(Arc<Mutex<Vec<Weak<Line>>>>);

impl Bell {
    /// The lock may be free: who has waited longest, of each store, looks at once.
    ///
    /// # Errors
    /// [`InvalidName`] if it is none.
    pub fn ring(&self, name: &str) -> Result<(), InvalidName> {
        let name = LockName::new(name)?;
        self.each(|line| line.wake(&name));
        Ok(())
    }

    /// Any lock may be free.
    pub fn ring_all(&self) {
        self.each(Line::wake_all);
    }

    /// Rings for these waiters from now on, as long as their store is open.
    pub(crate) fn hangs_at(&self, line: &Arc<Line>) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.retain(|line| line.strong_count() > 0);
        lines.push(Arc::downgrade(line));
    }

    fn each(&self, ring: impl Fn(&Line)) {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().filter_map(Weak::upgrade).for_each(|line| ring(&line));
    }
}
