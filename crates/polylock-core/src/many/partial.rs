//! The locks that an acquisition of several locks has taken so far.

use std::{
    future::poll_fn,
    mem,
    pin::pin,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use futures_util::future::select_all;
use tokio::sync::{Notify, oneshot};

use crate::{Guard, Moment, Operation, engine::StoreContext, sync::lock};

/// The guards that an acquisition has so far, while it waits for the next lock.
///
/// A renewal needs no poll of the caller. So a future that is kept, but not polled any more, would keep these locks for ever, also while no
/// other program can give it the missing one. A task on the I/O thread therefore wakes the caller every third of the queue lease, and
/// releases the locks of a caller that was not polled for a whole one.
///
/// The caller has received none of them before it has all: see [`Guard::received`].
#[derive(Debug)]
pub(crate) struct PartialSet {
    context: Arc<StoreContext>,
    queue_lease: Duration,
    shared: Arc<Shared>,
    /// Ends the task when it is dropped; `None` before the task is needed.
    watched: Option<oneshot::Sender<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Debug)]
struct State {
    guards: Vec<Guard>,
    /// The time of the last poll.
    polled: Moment,
    /// True if the locks were released because the caller was not polled.
    is_abandoned: bool,
}

impl PartialSet {
    pub(crate) fn new(context: Arc<StoreContext>, queue_lease: Duration) -> Self {
        let state = State { guards: Vec::new(), polled: context.now(), is_abandoned: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), wake: Notify::new() });
        Self { context, queue_lease, shared, watched: None }
    }

    /// Adds a lock. Returns false if the others were released meanwhile; then the lock is released, too.
    pub(crate) fn add(&self, guard: Guard) -> bool {
        guard.shared_hold().hold().unreceive();
        let mut state = lock(&self.shared.state);
        if state.is_abandoned {
            drop(state);
            drop(guard);
            return false;
        }
        state.guards.push(guard);
        true
    }

    /// Removes and returns all locks.
    pub(crate) fn take(&self) -> Vec<Guard> {
        mem::take(&mut lock(&self.shared.state).guards)
    }

    /// Returns the output of `acquiring`, or `None` if one of the locks is lost or released before.
    pub(crate) async fn keep_while<F: Future>(&mut self, acquiring: F) -> Option<F::Output> {
        let mut acquiring = pin!(acquiring);
        // It may be ready at once, as a store in this process is, and then needs no task.
        if self.watched.is_none()
            && let Poll::Ready(output) = poll_fn(|task| Poll::Ready(acquiring.as_mut().poll(task))).await
        {
            return Some(output);
        }
        let lost: Vec<_> =
            lock(&self.shared.state).guards.iter().map(|guard| Box::pin(guard.lost())).collect();
        if lost.is_empty() {
            return Some(acquiring.await);
        }
        if self.watched.is_none() {
            let (ended, watched) = oneshot::channel();
            let watch = watch(self.context.clone(), self.queue_lease, self.shared.clone(), watched);
            // Without the thread, there are no locks either.
            self.context.spawn(Operation::Claim, watch).ok();
            self.watched = Some(ended);
        }
        let mut lost = select_all(lost);
        while self.shared.poll_at(self.context.now()) {
            tokio::select! {
                biased;
                output = &mut acquiring => return Some(output),
                _ = &mut lost => return None,
                () = self.shared.wake.notified() => {}
            }
        }
        None
    }
}

impl Drop for PartialSet {
    fn drop(&mut self) {
        // Dropped here and not by the task, so that the end of this thread waits for their releases.
        drop(self.take());
    }
}

impl Shared {
    /// Records a poll of the caller; returns false if the locks were released before.
    fn poll_at(&self, now: Moment) -> bool {
        let mut state = lock(&self.state);
        state.polled = now;
        !state.is_abandoned
    }

    /// Returns the locks if the caller was not polled for `queue_lease`.
    fn abandon(&self, now: Moment, queue_lease: Duration) -> Option<Vec<Guard>> {
        let mut state = lock(&self.state);
        if now.since(state.polled) < queue_lease {
            return None;
        }
        state.is_abandoned = true;
        Some(mem::take(&mut state.guards))
    }
}

/// Wakes the caller from time to time, and releases its locks if it is not polled.
async fn watch(
    context: Arc<StoreContext>,
    queue_lease: Duration,
    shared: Arc<Shared>,
    mut ended: oneshot::Receiver<()>,
) {
    loop {
        tokio::select! {
            biased;
            _ = &mut ended => return,
            () = context.until(context.now() + queue_lease / 3) => {}
        }
        if let Some(guards) = shared.abandon(context.now(), queue_lease) {
            tracing::debug!(locks = guards.len(), "released, because the acquisition was not polled");
            drop(guards);
            shared.wake.notify_one();
            return;
        }
        shared.wake.notify_one();
    }
}
