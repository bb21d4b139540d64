//! The guard: a lock that is held, for as long as it lasts.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;
use tracing::Instrument;

use crate::{
    Error, FencingToken, LockName, LostReason, Mode, Moment, OwnerId, Result,
    engine::{Ended, Hold, Phase, Tenure},
};

/// The longest that [`Guard::run`] waits for its release: the time of an answer, not that of an outage.
const RUN_RELEASE: Duration = Duration::from_millis(500);

/// A lock that is held.
///
/// It is renewed in the background every third of its lease. It ends with the first of: a [`release`](Self::release)
/// or drop, a renewal that finds the lock gone or [broken](crate::Locks::break_lock), or the deadline, which passes before the
/// store can give the lock to another. Whoever works under it must stop when it ends: [`run`](Self::run) sees to that, and otherwise
/// [`lost`](Self::lost) and [`ensure_held`](Self::ensure_held) tell.
///
/// No guard can stop a write that is on its way when the process is paused. Hand
/// [`fencing_token`](Self::fencing_token) to the resource, and let it refuse a token smaller than it has seen.
///
/// Dropping a guard releases the lock in the background, from within a runtime or not. It does not block, but when it is
/// the last handle on its store: then it waits up to 500 ms for the release to arrive.
#[must_use = "a guard that is dropped releases its lock at once"]
#[clippy::has_significant_drop]
pub struct Guard {
    tenure: Arc<Tenure>,
}

impl Guard {
    pub(crate) fn new(tenure: Arc<Tenure>) -> Self {
        Self { tenure }
    }

    fn hold(&self) -> &Hold {
        self.tenure.hold()
    }

    /// Which lock this is.
    #[must_use]
    pub fn name(&self) -> &LockName {
        self.hold().name()
    }

    /// How it is held. A guard that re-entered has the mode of the hold that it entered.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.hold().request.mode
    }

    /// Who holds it, as inspection shows it.
    #[must_use]
    pub fn owner(&self) -> &OwnerId {
        &self.hold().request.owner
    }

    /// The number for the protected resource to check: greater than that of every earlier holder of this lock.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.hold().token
    }

    /// Whether the lock is held now, by the clock alone: no I/O.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.hold().check().is_ok()
    }

    /// The instant at which the hold ends if no renewal is acknowledged before, on the clock of its
    /// [`Locks`](crate::Locks); the present if it has ended.
    #[must_use]
    pub fn deadline(&self) -> Moment {
        self.hold().check().unwrap_or_else(|_| self.hold().shared.now())
    }

    /// What is left until the [`deadline`](Self::deadline); zero if the hold has ended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let deadline = self.deadline();
        deadline.since(self.hold().shared.now())
    }

    /// Checks that the lock is held, before a side effect.
    ///
    /// # Errors
    /// [`Error::Lost`] if it is not.
    pub fn ensure_held(&self) -> Result<()> {
        self.hold().check().map(|_| ()).map_err(|ended| self.lost_by(ended))
    }

    /// Ready when the lock has been lost. It borrows nothing, and a release never makes it ready.
    ///
    /// Do not rely on a `select!` with it to stop work: after a pause the work may be polled first. [`run`](Self::run)
    /// looks at the clock before every poll.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + Sync + 'static {
        let mut phase = self.hold().watch();
        async move {
            if let Ok(ended) = phase.wait_for(|phase| !matches!(phase, Phase::Held { .. })).await
                && let Phase::Lost(reason) = &*ended
            {
                return reason.clone();
            }
            std::future::pending().await
        }
    }

    /// Ready with the new deadline when a renewal has moved it after this call, or with `None` when the hold has ended.
    ///
    /// To miss none, call it before reading [`deadline`](Self::deadline).
    pub fn renewed(&self) -> impl Future<Output = Option<Moment>> + Send + Sync + 'static {
        let mut phase = self.hold().watch();
        async move {
            // Not marked as seen: what has changed since the call counts, though this is polled only now.
            if !matches!(*phase.borrow(), Phase::Held { .. }) {
                return None;
            }
            phase.changed().await.ok()?;
            match &*phase.borrow() {
                Phase::Held { deadline, .. } => Some(*deadline),
                Phase::Left | Phase::Lost(_) => None,
            }
        }
    }

    /// Works under the lock, then releases it; stops the work if the lock is lost.
    ///
    /// The clock is read before every poll of `work`. Once the deadline has passed, or the lock is gone, `work` is polled
    /// no more but dropped. A poll that is under way is not interrupted.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost before `work` was done, also if `work` ended in a poll that lasted beyond the
    /// deadline, or if the release finds that the store had no hold of this guard any more: what `work` did then was perhaps
    /// not protected. A release that is not acknowledged within half a second is no error: it goes on in the background.
    ///
    /// # Cancel safety
    /// Dropping it drops `work` and releases the lock.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let locks = polylock_core::Locks::new(polylock_core::memory::connect());
    /// let guard = locks.lock("nightly").acquire().await?;
    /// let sum = guard.run(async { 1 + 1 }).await?;
    /// assert_eq!(sum, 2);
    /// # Ok::<(), polylock_core::Error>(()) }).unwrap();
    /// ```
    pub async fn run<F: Future>(self, work: F) -> Result<F::Output> {
        let lost = Box::pin(self.lost());
        let protected =
            Protected { work: Some(work.instrument(self.hold().span())), hold: self.hold(), lost };
        let output = protected.await.map_err(|ended| self.lost_by(ended))?;
        match self.release_within(Some(RUN_RELEASE)).await {
            Err(error @ Error::Lost { .. }) => Err(error),
            Ok(()) | Err(_) => Ok(output),
        }
    }

    /// Releases the lock and waits until the store has confirmed it.
    ///
    /// Of several guards that entered reentrantly, the last one releases it, the others return at once.
    ///
    /// # Errors
    /// [`Error::Lost`] if it was lost before, also if only the store's answer to this release says so; [`Error::Unavailable`]
    /// if the store did not confirm it in the time of the lease, after which the store has freed it by itself.
    ///
    /// # Cancel safety
    /// Once polled, the release goes on in the background though this is dropped.
    pub async fn release(self) -> Result<()> {
        self.release_within(None).await
    }

    async fn release_within(self, limit: Option<Duration>) -> Result<()> {
        let hold = self.tenure.hold().clone();
        match Arc::into_inner(self.tenure) {
            Some(tenure) => tenure.release(limit).await,
            None => hold.check().map(|_| ()).or_else(|ended| ended.into_result(hold.name())),
        }
    }

    /// Stops renewing and does not release: the lock stays taken until its lease has run out.
    ///
    /// For work that must not be repeated too soon, such as a job that several machines start by their own clocks. Other
    /// guards that entered the same hold reentrantly lose it with this one.
    ///
    /// # Errors
    /// [`Error::Lost`] if it was lost before.
    pub fn leave_to_expire(self) -> Result<()> {
        self.hold().leave_to_expire()
    }

    /// Keeps the lock for another `delay`, then releases it. Returns as soon as this process is not needed for that.
    ///
    /// Where a hold is an entry in the store ([`Carrier::Entry`](crate::Carrier::Entry)) and `delay` is in the range of the store's
    /// lease times, a last renewal sets the lease to what is left, and this returns when the store has confirmed it: the store
    /// frees the lock by itself. Otherwise the lock is renewed until that is so, or until `delay` is over, and then released.
    ///
    /// A renewal that was not answered before may reach the store after the last one and extend the lease to the TTL again.
    ///
    /// Of several guards that entered reentrantly, the last one does this, the others return at once.
    ///
    /// # Errors
    /// As [`release`](Self::release). If the last renewal is not confirmed before the deadline, the lock ends with the lease that it
    /// had.
    ///
    /// # Cancel safety
    /// Dropping this releases the lock, unless the last renewal was sent: that goes on.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let locks = polylock_core::Locks::new(polylock_core::memory::connect());
    /// // Nobody else does it within the next second, though it was done at once.
    /// let guard = locks.lock("nightly").acquire().await?;
    /// guard.release_after(Duration::from_secs(1)).await?;
    /// assert!(locks.lock("nightly").try_acquire().await?.is_none());
    /// # Ok::<(), polylock_core::Error>(()) }).unwrap();
    /// ```
    pub async fn release_after(self, delay: Duration) -> Result<()> {
        let end = self.hold().shared.now() + delay;
        let Some(tenure) = Arc::into_inner(self.tenure) else { return Ok(()) };
        tenure.release_at(end).await
    }

    fn lost_by(&self, ended: Ended) -> Error {
        let reason = match ended {
            Ended::Lost(reason) => reason,
            // Another guard of this hold has left it to expire.
            Ended::Left => LostReason::Gone,
        };
        Error::Lost { name: self.name().clone(), reason }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", self.name())
            .field("mode", &self.mode())
            .field("fencing_token", &self.fencing_token().get())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

pin_project! {
    /// Work that is polled only while the lock is held.
    struct Protected<'a, F, L> {
        #[pin]
        work: Option<F>,
        hold: &'a Hold,
        lost: L,
    }
}

impl<F: Future, L: Future + Unpin> Future for Protected<'_, F, L> {
    type Output = Result<F::Output, Ended>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        // First the signal, so that it wakes this task; then the clock, which may know better than the signal.
        let signalled = Pin::new(&mut *this.lost).poll(cx).is_ready();
        if let Err(ended) = this.hold.check() {
            this.work.set(None);
            return Poll::Ready(Err(ended));
        }
        debug_assert!(!signalled, "the signal comes from the phase that was just checked");
        let Some(work) = this.work.as_mut().as_pin_mut() else { return Poll::Pending };
        let output = std::task::ready!(work.poll(cx));
        Poll::Ready(this.hold.check().map(|_| output))
    }
}
