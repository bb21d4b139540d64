//! Reaps orphans: as the first process of a container, and as a child subreaper, polylock becomes the parent of processes whose own
//! parents have ended.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::process::{Pid, WaitOptions, waitpid};
use tokio::signal::unix::{SignalKind, signal};

use super::processes::children;

/// Reaps the children of this process that end, except those that are kept. Clones share their state.
#[derive(Debug, Clone, Default)]
pub(super) struct Orphans {
    /// The children that are reaped by the code that has started them.
    kept: Arc<Mutex<HashSet<Pid>>>,
}

impl Orphans {
    /// Starts reaping, until the end of the program.
    ///
    /// # Errors
    /// If this process can't be notified of its children.
    pub(super) fn start() -> std::io::Result<Self> {
        let orphans = Self::default();
        let (reaper, mut ended) = (orphans.clone(), signal(SignalKind::child())?);
        tokio::spawn(async move {
            reaper.reap();
            while ended.recv().await.is_some() {
                reaper.reap();
            }
        });
        Ok(orphans)
    }

    /// Excludes `child`. To be called before the next `await`.
    pub(super) fn keep(&self, child: Pid) {
        self.kept().insert(child);
    }

    /// Includes `child` again.
    pub(super) fn release(&self, child: Pid) {
        self.kept().remove(&child);
    }

    /// Reaps all that have ended.
    pub(super) fn reap(&self) {
        for child in children() {
            if !self.kept().contains(&child) {
                waitpid(Some(child), WaitOptions::NOHANG).ok();
            }
        }
    }

    fn kept(&self) -> MutexGuard<'_, HashSet<Pid>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
