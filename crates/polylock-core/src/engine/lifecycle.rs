//! The life of the locks of a store: the acquisitions in progress, and the shutdown that ends them.

use std::sync::Arc;

use tokio::sync::watch;

use crate::{Error, Result, ShutdownReport};

/// The acquisitions in progress, and the state of the shutdown.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle(watch::Sender<State>);

/// The outcome of the shutdown, or the reason for which there is none.
pub(super) type Outcome = Result<ShutdownReport, String>;

#[derive(Debug, Default)]
struct State {
    is_shut_down: bool,
    acquisitions: usize,
    outcome: Option<Outcome>,
}

/// An acquisition in progress, from before its first claim until its hold is registered or its rollback is complete.
#[derive(Debug)]
pub(super) struct Acquiring(Arc<Lifecycle>);

impl Lifecycle {
    /// Counts one more acquisition.
    ///
    /// # Errors
    /// [`Error::ShutDown`] after the shutdown.
    pub(super) fn begin(self: &Arc<Self>) -> Result<Acquiring> {
        let mut is_refused = false;
        self.0.send_if_modified(|state| {
            is_refused = state.is_shut_down;
            state.acquisitions += usize::from(!is_refused);
            false
        });
        if is_refused { Err(Error::ShutDown) } else { Ok(Acquiring(self.clone())) }
    }

    /// Begins the shutdown: from here on, no acquisition begins, and those in progress end. Returns false if it has begun before.
    pub(super) fn shut_down(&self) -> bool {
        self.0.send_if_modified(|state| !std::mem::replace(&mut state.is_shut_down, true))
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        self.0.borrow().is_shut_down
    }

    /// Waits until the shutdown has begun.
    pub(super) async fn shutdown_begun(&self) {
        self.when(|state| state.is_shut_down).await;
    }

    /// Waits until no acquisition is in progress, once the shutdown has begun.
    pub(super) async fn idle(&self) {
        self.when(|state| state.acquisitions == 0).await;
    }

    /// Returns the number of acquisitions in progress.
    pub(super) fn acquisitions(&self) -> usize {
        self.0.borrow().acquisitions
    }

    /// Records the outcome of the shutdown.
    pub(super) fn complete(&self, outcome: Outcome) {
        self.0.send_modify(|state| state.outcome = Some(outcome));
    }

    /// Waits until the shutdown is complete, and returns its outcome.
    pub(super) async fn completed(&self) -> Outcome {
        self.when(|state| state.outcome.is_some()).await;
        self.0.borrow().outcome.clone().unwrap_or_else(|| Err("the shutdown has no outcome".to_owned()))
    }

    async fn when(&self, condition: impl Fn(&State) -> bool) {
        // The sender lives as long as this future.
        self.0.subscribe().wait_for(condition).await.ok();
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        self.0.0.send_if_modified(|state| {
            state.acquisitions -= 1;
            state.is_shut_down && state.acquisitions == 0
        });
    }
}
