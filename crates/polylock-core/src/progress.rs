//! The progress of an acquisition, for a display.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::{Moment, sync::lock};

/// The progress of an acquisition, or of opening a store. The caller passes it to [`Lock::progress`](crate::Lock::progress) and
/// reads it meanwhile. With it, a store counts the requests ahead at each claim, if it can; reading it costs nothing. Clones share
/// their state.
///
/// ```
/// use polylock_core::{Progress, memory};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = polylock_core::Locks::new(memory::connect());
/// let first = locks.lock("orders/42").acquire().await?;
/// let progress = Progress::default();
/// let second = tokio::spawn(locks.lock("orders/42").progress(&progress).acquire());
/// // Behind the holder.
/// while progress.queue_position() != Some(2) {
///     tokio::task::yield_now().await;
/// }
/// # second.abort();
/// # Ok::<(), polylock_core::Error>(()) }).unwrap();
/// ```
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    position: Option<u32>,
    outage: Option<Outage>,
}

/// A store that is unavailable for the moment, while an operation on it is retried.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outage {
    /// The start of the outage.
    pub since: Moment,
    /// The time at which the operation fails if the outage lasts until then.
    pub until: Moment,
    /// The last error, with its causes, in one line and without secrets.
    pub error: String,
}

impl Progress {
    /// Returns the queue position that the store has reported last, counted from 1 with the holders as the first ones; `None`
    /// before the first report, and for a store that does not count.
    #[must_use]
    pub fn queue_position(&self) -> Option<u32> {
        self.state().position
    }

    /// Returns the outage of the store, if there is one now.
    #[must_use]
    pub fn outage(&self) -> Option<Outage> {
        self.state().outage.clone()
    }

    pub(crate) fn queued(&self, ahead: Option<u32>) {
        let mut state = self.state();
        state.outage = None;
        state.position = ahead.map(|ahead| ahead.saturating_add(1)).or(state.position);
    }

    pub(crate) fn failing(&self, since: Moment, until: Moment, error: &crate::Error) {
        self.state().outage = Some(Outage { since, until, error: error.chain() });
    }

    pub(crate) fn available(&self) {
        self.state().outage = None;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}
