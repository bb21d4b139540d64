//! The phase of a hold, and the notification of its changes.

use std::{pin::pin, sync::Mutex};

use tokio::sync::Notify;

use crate::{LostReason, Moment, sync::lock};

/// The state of a hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Held until the deadline, unless a renewal moves it.
    Held {
        deadline: Moment,
        /// True if the caller has received the guard.
        received: bool,
    },
    /// Released by its holder, left to expire, or passed on because its caller did not receive it.
    Left,
    /// Lost, for this reason.
    Lost(LostReason),
}

impl Phase {
    pub(crate) const fn is_held(&self) -> bool {
        matches!(self, Self::Held { .. })
    }
}

/// The phase of one hold. A watch channel of tokio would take 384 bytes for each hold, most of them for many receivers.
#[derive(Debug)]
pub(super) struct PhaseCell {
    phase: Mutex<Phase>,
    changed: Notify,
}

impl PhaseCell {
    pub(super) fn new(phase: Phase) -> Self {
        Self { phase: Mutex::new(phase), changed: Notify::new() }
    }

    pub(super) fn read<T>(&self, read: impl FnOnce(&Phase) -> T) -> T {
        read(&lock(&self.phase))
    }

    /// Changes the phase, and notifies the waiting tasks if `change` returns true. Returns that.
    pub(super) fn change(&self, change: impl FnOnce(&mut Phase) -> bool) -> bool {
        let has_changed = change(&mut lock(&self.phase));
        if has_changed {
            self.changed.notify_waiters();
        }
        has_changed
    }

    /// Waits until `read` returns `Some` for the phase at that time.
    pub(super) async fn wait_until<T>(&self, read: impl Fn(&Phase) -> Option<T>) -> T {
        loop {
            let mut changed = pin!(self.changed.notified());
            // From here on, a change is not missed.
            changed.as_mut().enable();
            if let Some(value) = self.read(&read) {
                return value;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn all_waiting_tasks_see_a_change() {
        let held = |nanos| Phase::Held { deadline: Moment::from_nanos(nanos), received: true };
        let cell = Arc::new(PhaseCell::new(held(0)));
        let reached = |at: u64| {
            let cell = cell.clone();
            let read = move |phase: &Phase| (*phase == held(at) || !phase.is_held()).then(|| phase.clone());
            tokio::spawn(async move { cell.wait_until(read).await })
        };
        // Many rounds: a change may happen between the check of a task and its wait.
        for at in 1..1000 {
            let tasks = [reached(at), reached(at)];
            assert!(!cell.change(|_| false));
            assert!(cell.change(|phase| {
                *phase = held(at);
                true
            }));
            for task in tasks {
                assert_eq!(task.await.unwrap(), held(at));
            }
        }
        let ended = reached(u64::MAX);
        cell.change(|phase| {
            *phase = Phase::Left;
            true
        });
        assert_eq!(ended.await.unwrap(), Phase::Left);
    }
}
