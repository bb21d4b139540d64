//! Push notices about holds: when a store is notified that a hold was broken, core checks the hold at once.

use std::{
    fmt,
    sync::{Mutex, MutexGuard},
};

use crate::{LockName, sync::lock};

/// Called with the name of a lock; returns false if it is not to be called again.
type Listener = Box<dyn Fn(&LockName) -> bool + Send + Sync>;

/// Delivers the break notices that a store receives to core.
///
/// A store that can push creates one, puts it into its [`Store`](crate::Store), and calls [`check`](Self::check) when it receives
/// the notice that a lock was broken. Core immediately sends a [`keep_alive`](crate::Backend::keep_alive) for the holds of that
/// lock, which returns [`KeepAlive::Lost`](crate::KeepAlive::Lost) with the break notice. A lost notice costs only time: the next
/// periodic keep-alive finds the mark. A notice may overtake the reply that grants the hold.
#[derive(Default)]
pub struct HoldAlerts {
    listeners: Mutex<Vec<Listener>>,
}

impl HoldAlerts {
    /// Makes core check every hold of `name` in this process now. Spurious calls are allowed.
    pub fn check(&self, name: &LockName) {
        self.lock().retain(|listener| listener(name));
    }

    /// Calls `listener` with the name of each lock that is to be checked, until it returns false: for a program that passes the notices on.
    pub fn listen(&self, listener: impl Fn(&LockName) -> bool + Send + Sync + 'static) {
        self.lock().push(Box::new(listener));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Listener>> {
        lock(&self.listeners)
    }
}

impl fmt::Debug for HoldAlerts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldAlerts").field("listeners", &self.lock().len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    #[test]
    fn a_listener_without_a_store_is_removed() {
        let (alerts, called) = (HoldAlerts::default(), Arc::new(AtomicU32::new(0)));
        for stays in [true, false] {
            let called = called.clone();
            alerts.listen(move |_| {
                called.fetch_add(1, Ordering::SeqCst);
                stays
            });
        }
        let name = LockName::new("n").unwrap();
        alerts.check(&name);
        alerts.check(&name);
        assert_eq!((called.load(Ordering::SeqCst), alerts.lock().len()), (3, 1));
    }
}
