//! The progress of an acquisition, for a display.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::sync::Notify;

use crate::{Clock, LockStatus, Moment, sync::lock};

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
pub struct Progress(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    requested: Notify,
}

#[derive(Debug, Default)]
struct State {
    position: Option<u32>,
    outage: Option<Outage>,
    /// The interval at which the queue is read; once if it is `Some(None)`, and not at all if it is `None`.
    interest: Option<Option<Duration>>,
    queue: Option<(LockStatus, Moment, Arc<dyn Clock>)>,
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

    /// Makes the acquisition read the holders and waiters of the lock while it waits: now, and again after each `interval`; only now if
    /// `interval` is `None`. Each read is an inspection, which costs the store about as much as a claim.
    ///
    /// ```
    /// use std::time::Duration;
    /// use polylock_core::{Progress, memory};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let locks = polylock_core::Locks::new(memory::connect());
    /// let guard = locks.lock("orders/42").acquire().await?;
    /// let progress = Progress::default();
    /// progress.read_queue(Some(Duration::from_secs(3)));
    /// let waiting = tokio::spawn(locks.lock("orders/42").progress(&progress).acquire());
    /// let queue = loop {
    ///     if let Some(queue) = progress.queue() {
    ///         break queue;
    ///     }
    ///     tokio::task::yield_now().await;
    /// };
    /// assert_eq!(queue.holders[0].token, Some(guard.fencing_token()));
    /// assert_eq!(queue.queue_position(guard.owner()), Some(1));
    /// # waiting.abort();
    /// # Ok::<(), polylock_core::Error>(()) }).unwrap();
    /// ```
    pub fn read_queue(&self, interval: Option<Duration>) {
        self.state().interest = Some(interval);
        self.0.requested.notify_waiters();
    }

    /// Returns the holders and waiters as they were [read](Self::read_queue) last, with the present ages of the holds; `None` before the
    /// first read, and while the store can't be read.
    #[must_use]
    pub fn queue(&self) -> Option<LockStatus> {
        let (mut status, at, clock) = self.state().queue.clone()?;
        let since = clock.now().since(at);
        status.holders.iter_mut().for_each(|holder| holder.age += since);
        Some(status)
    }

    /// Waits until the caller requests the queue, and returns the interval of the reads.
    pub(crate) async fn queue_interest(&self) -> Option<Duration> {
        loop {
            let mut requested = std::pin::pin!(self.0.requested.notified());
            requested.as_mut().enable();
            if let Some(interval) = self.state().interest {
                return interval;
            }
            requested.await;
        }
    }

    pub(crate) fn queue_read(&self, status: Option<LockStatus>, clock: &Arc<dyn Clock>) {
        self.state().queue = status.map(|status| (status, clock.now(), clock.clone()));
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
        lock(&self.0.state)
    }
}
