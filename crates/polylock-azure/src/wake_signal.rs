//! The signal by which a program wakes waiters early.

use std::sync::{Arc, Mutex, Weak};

use polylock_core::{InvalidName, LockName, sync::lock, waiter_queues::WaiterQueues};

/// Wakes waiters early. Without it, they poll for a lock about once a second. It is meant for a program that learns in another way that a
/// lock may be free, for instance from a message queue.
///
/// An unnecessary notification costs one request, and a missing one costs a second at most. A signal wakes the waiters in this process, of
/// all stores that it was passed to. A release by the same store wakes its waiters without a signal.
///
/// ```no_run
/// use polylock_azure::{Config, WakeSignal};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let signal = WakeSignal::default();
/// let store = polylock_azure::connect(Config::new("az://locks?emulator=true")?.wake_signal(&signal)).await?;
/// // When a message about a release in another process arrives:
/// signal.notify("orders/42")?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default)]
pub struct WakeSignal(Arc<Mutex<Vec<Weak<WaiterQueues>>>>);

impl WakeSignal {
    /// Reports that the lock may be free. The waiter that has waited longest, of each store, claims at once.
    ///
    /// # Errors
    /// [`InvalidName`] if `name` is not a valid lock name.
    pub fn notify(&self, name: &str) -> Result<(), InvalidName> {
        let name = LockName::new(name)?;
        self.each(|waiters| waiters.wake(&name));
        Ok(())
    }

    /// Reports that any lock may be free.
    pub fn notify_all(&self) {
        self.each(WaiterQueues::wake_all);
    }

    /// Adds these waiters, which the signal wakes as long as their store is open.
    pub(crate) fn attach(&self, waiters: &Arc<WaiterQueues>) {
        let mut queues = lock(&self.0);
        queues.retain(|waiters| waiters.strong_count() > 0);
        queues.push(Arc::downgrade(waiters));
    }

    fn each(&self, notify: impl Fn(&WaiterQueues)) {
        let queues = lock(&self.0);
        queues.iter().filter_map(Weak::upgrade).for_each(|waiters| notify(&waiters));
    }
}
