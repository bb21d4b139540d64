//! Reaps orphans: as the first process of a container, and as a child subreaper, polylock becomes the parent of processes with parents
//! that have ended.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::process::{Pid, WaitOptions, waitpid};
use tokio::signal::unix::{SignalKind, signal};

use super::processes::children;

/// Reaps the children of this process that end, except for the excluded ones. Clones share their state.
#[derive(Debug, Clone, Default)]
pub(super) struct OrphanReaper {
    /// The children that are reaped by the code that has started them.
    excluded: Arc<Mutex<HashSet<Pid>>>,
}

impl OrphanReaper {
    /// Starts to reap, until the end of the program.
    ///
    /// # Errors
    /// If this process can't be notified of its children.
    pub(super) fn start() -> std::io::Result<Self> {
        let orphans = Self::default();
        let (reaper, mut child_signals) = (orphans.clone(), signal(SignalKind::child())?);
        tokio::spawn(async move {
            reaper.reap();
            while child_signals.recv().await.is_some() {
                reaper.reap();
            }
        });
        Ok(orphans)
    }

    /// Excludes `child`. It must be called before the next `await`.
    pub(super) fn exclude(&self, child: Pid) {
        self.excluded().insert(child);
    }

    /// Includes `child` again.
    pub(super) fn include(&self, child: Pid) {
        self.excluded().remove(&child);
    }

    /// Reaps all children that have ended.
    pub(super) fn reap(&self) {
        for child in children() {
            if !self.excluded().contains(&child) {
                waitpid(Some(child), WaitOptions::NOHANG).ok();
            }
        }
    }

    fn excluded(&self) -> MutexGuard<'_, HashSet<Pid>> {
        self.excluded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
