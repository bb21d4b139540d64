//! The guard of a lock that is held.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;
use tracing::{Instrument, Span};

use crate::{
    BreakNotice, Error, FencingToken, HoldHandle, LockName, LostReason, Mode, Moment, OwnerId, Result,
    Upgrade,
    engine::{Ended, GuardEvents, Hold, Phase, SharedHold},
};

/// The longest time that [`Guard::run`] waits for its release: enough for a reply, not for an outage.
pub(crate) const RELEASE_LIMIT: Duration = Duration::from_millis(500);

/// A lock that is held.
///
/// It is renewed in the background every third of its lease, unless it [stops that](Self::stop_renewals). The hold ends with the first of: a [`release`](Self::release) or drop,
/// a renewal that finds the lock gone or [broken](crate::Locks::break_lock), or the deadline, which passes before the store can
/// grant the lock to another request. Work under the lock must stop when the hold ends: [`run`](Self::run) stops it; other code
/// checks [`lost`](Self::lost) or [`ensure_held`](Self::ensure_held).
///
/// No guard can stop a write that is in flight when the process is paused. Pass the [`fencing_token`](Self::fencing_token) to the
/// resource, which must reject a token smaller than the greatest it has seen.
///
/// Dropping a guard releases the lock in the background, inside or outside a runtime. The drop does not block, unless the guard is
/// the last handle on its store: then it waits up to 500 ms for the release to arrive.
#[must_use = "a guard that is dropped releases its lock at once"]
#[clippy::has_significant_drop]
pub struct Guard {
    shared_hold: Arc<SharedHold>,
}

impl Guard {
    pub(crate) fn new(shared_hold: Arc<SharedHold>) -> Self {
        Self { shared_hold }
    }

    fn hold(&self) -> &Hold {
        self.shared_hold.hold()
    }

    /// Returns the span of the hold, for the work under it.
    pub(crate) fn span(&self) -> Span {
        self.hold().span()
    }

    pub(crate) fn shared_hold(&self) -> &SharedHold {
        &self.shared_hold
    }

    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &LockName {
        self.hold().name()
    }

    /// Returns the mode of the hold. Reentrant guards have the mode of the hold that they share.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.hold().mode()
    }

    /// Returns the owner of the hold, as shown by inspection.
    #[must_use]
    pub fn owner(&self) -> &OwnerId {
        &self.hold().request.owner
    }

    /// Returns the number for the protected resource to check: greater than that of every earlier holder of this lock. A conversion of the
    /// hold gives it a greater one.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.hold().token()
    }

    /// Returns true if the lock is held now. Reads only the clock: no I/O.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.hold().check().is_ok()
    }

    /// Returns true if the hold has ended because it has lasted for its longest time.
    pub(crate) fn has_lasted(&self) -> bool {
        matches!(self.hold().check(), Err(Ended::Lost(LostReason::MaxHold)))
    }

    /// Returns the instant at which the hold ends if no renewal is acknowledged before, on the clock of its
    /// [`Locks`](crate::Locks); the current time if the hold has ended.
    #[must_use]
    pub fn deadline(&self) -> Moment {
        self.hold().check().unwrap_or_else(|_| self.hold().context.now())
    }

    /// Returns the time left until the [`deadline`](Self::deadline); zero if the hold has ended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let deadline = self.deadline();
        deadline.since(self.hold().context.now())
    }

    /// Checks that the lock is held, before a side effect.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is not held.
    pub fn ensure_held(&self) -> Result<()> {
        self.hold().check().map(|_| ()).map_err(|ended| self.lost_by(ended))
    }

    /// Completes when the lock has been lost. The future borrows nothing, and a release never completes it.
    ///
    /// Do not rely on a `select!` with it to stop work: after a pause the work may be polled first. [`run`](Self::run) checks the
    /// clock before every poll.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + Sync + 'static {
        self.hold().phase_when(|phase| match phase {
            Phase::Lost(reason) => Some(reason.clone()),
            Phase::Held { .. } | Phase::Left => None,
        })
    }

    /// Completes with the notice when somebody [breaks](crate::Locks::break_lock) the lock, which requests this holder to release it. The future
    /// borrows nothing.
    ///
    /// From then on the lock counts as lost: [`lost`](Self::lost) completes, too, and [`run`](Self::run) stops its work. Unless force was used, no
    /// other request is granted the lock before this guard is dropped, or its lease has expired; so a holder can leave its work in order.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let locks = polylock_core::Locks::new(polylock_core::memory::connect());
    /// let guard = locks.lock("nightly").acquire().await?;
    /// locks.break_lock("nightly").reason("host-a is being replaced").await?;
    /// println!("stopping: {}", guard.revoked().await);
    /// assert!(locks.lock("nightly").try_acquire().await?.is_none());
    /// drop(guard);
    /// # Ok::<(), polylock_core::Error>(()) }).unwrap();
    /// ```
    pub fn revoked(&self) -> impl Future<Output = BreakNotice> + Send + Sync + 'static {
        self.hold().phase_when(|phase| match phase {
            Phase::Lost(LostReason::Broken(notice)) => Some(notice.clone()),
            Phase::Lost(_) | Phase::Held { .. } | Phase::Left => None,
        })
    }

    /// Completes with the new deadline when a renewal has moved it after this call, or with `None` when the hold has ended.
    ///
    /// To miss no renewal, call it before [`deadline`](Self::deadline).
    pub fn renewed(&self) -> impl Future<Output = Option<Moment>> + Send + Sync + 'static {
        // A renewal since this call counts, even if the future is polled only then.
        let present = self.hold().deadline();
        self.hold().phase_when(move |phase| match phase {
            Phase::Held { deadline, .. } => (Some(*deadline) != present).then_some(Some(*deadline)),
            Phase::Left | Phase::Lost(_) => Some(None),
        })
    }

    /// Ends the renewals in the background: from now on the hold lasts until its [`deadline`](Self::deadline), and each [`renew`](Self::renew)
    /// extends it. So work that hangs loses its lock.
    ///
    /// Reentrant guards share the hold, so this counts for all of them.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let locks = polylock_core::Locks::new(polylock_core::memory::connect());
    /// let guard = locks.lock("import").acquire().await?;
    /// guard.stop_renewals();
    /// for part in 1..=3 {
    ///     guard.renew().await?; // a part may take as long as the lease
    ///     println!("import part {part}");
    /// }
    /// guard.release().await?;
    /// # Ok::<(), polylock_core::Error>(()) }).unwrap();
    /// ```
    pub fn stop_renewals(&self) {
        self.shared_hold.stop_renewals();
    }

    /// Renews the hold now, and returns the new [`deadline`](Self::deadline). A hold that has reached its [`max_hold`](crate::Lock::max_hold) keeps
    /// its deadline.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is lost before the store has confirmed the renewal, which is repeated until then.
    ///
    /// # Cancel safety
    /// Once polled, the renewal continues in the background if the future is dropped.
    pub async fn renew(&self) -> Result<Moment> {
        self.shared_hold.renew().await
    }

    /// Returns the events of the hold from now on: renewals with their slack, a warning when the slack is low, and the loss.
    ///
    /// ```
    /// use polylock_core::{GuardEvent, LostReason};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let locks = polylock_core::Locks::new(polylock_core::memory::connect());
    /// let guard = locks.lock("nightly").acquire().await?;
    /// let mut events = guard.events();
    /// locks.break_lock("nightly").await?;
    /// while let Some(event) = events.next().await {
    ///     match event {
    ///         GuardEvent::Renewed { slack, .. } => println!("renewed with {slack:?} left"),
    ///         GuardEvent::SlackLow { left } => println!("the lock is lost in {left:?} without a renewal"),
    ///         GuardEvent::Lost(reason) => assert!(matches!(reason, LostReason::Broken(_))),
    ///         _ => {}
    ///     }
    /// }
    /// # Ok::<(), polylock_core::Error>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn events(&self) -> GuardEvents {
        self.hold().events()
    }

    /// Converts the hold to a weaker mode, at once: waiters that can hold the lock beside it are granted it. The hold has a new, greater
    /// token.
    ///
    /// Reentrant guards share the hold, so all of them have the weaker mode.
    ///
    /// # Errors
    /// [`Error::Config`] if the present mode does not [cover](Mode::covers) `to`, or `to` is [`Mode::Null`]; [`Error::Unsupported`] if the
    /// store can't convert holds; [`Error::Lost`]; [`Error::Unavailable`] if the store has failed permanently. Temporary failures are
    /// retried as long as the lock is held. After an error of the store, the hold counts as held in the weaker mode.
    ///
    /// # Cancel safety
    /// Once polled, the downgrade continues in the background if the future is dropped.
    pub async fn downgrade(&mut self, to: Mode) -> Result<()> {
        self.shared_hold.downgrade(to).await
    }

    /// Converts the hold to a stronger mode, ahead of all waiters, when no other holder is in its way. See [`Upgrade`].
    pub fn upgrade(&mut self, to: Mode) -> Upgrade<'_> {
        Upgrade::new(&self.shared_hold, to)
    }

    /// Runs `work` under the lock, then releases the lock. Stops `work` if the lock is lost.
    ///
    /// The clock is read before every poll of `work`. Once the deadline has passed, or the lock is lost, `work` is dropped without
    /// another poll. A poll in progress is not interrupted.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost before `work` completed, even if `work` completed in a poll that lasted beyond the
    /// deadline, or if the release finds that the store no longer had the hold: `work` may not have been protected. A release that
    /// is not acknowledged within half a second is no error: it continues in the background.
    ///
    /// # Cancel safety
    /// Dropping the future drops `work` and releases the lock.
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
        let protected = Protected::new(work.instrument(self.span()), || self.ensure_held(), lost);
        let output = protected.await?;
        self.complete_run(output).await
    }

    /// Releases the lock after work under it, and returns the output of the work unless the lock was lost.
    pub(crate) async fn complete_run<T>(self, output: T) -> Result<T> {
        match self.release_within(Some(RELEASE_LIMIT)).await {
            Err(error @ Error::Lost { .. }) => Err(error),
            Ok(()) | Err(_) => Ok(output),
        }
    }

    /// Releases the lock and waits until the store has confirmed the release.
    ///
    /// Of several reentrant guards, the last one releases the lock; the others return at once. A [`min_hold`](crate::Lock::min_hold) delays
    /// it.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost before, even if only the reply to this release reports it; [`Error::Unavailable`] if
    /// the store did not confirm the release in the time of the lease, after which the lease has expired. If other processes may know the hold, the
    /// time is that of an [outage](crate::Options::outage): one of them may have given it a longer lease.
    ///
    /// # Cancel safety
    /// Once polled, the release continues in the background if the future is dropped.
    pub async fn release(self) -> Result<()> {
        self.release_within(None).await
    }

    /// Records that the caller of the whole acquisition receives the guard, and returns it.
    pub(crate) fn received(self) -> Self {
        self.hold().receive();
        self
    }

    /// Releases the lock, and waits at most `limit`; the release continues in the background.
    pub(crate) async fn release_within(self, limit: Option<Duration>) -> Result<()> {
        let hold = self.shared_hold.hold().clone();
        match Arc::into_inner(self.shared_hold) {
            Some(shared_hold) => shared_hold.release(limit).await,
            None => hold.check().map(|_| ()).or_else(|ended| ended.into_result(hold.name())),
        }
    }

    /// Stops the renewals without a release: the lock stays taken until its lease expires.
    ///
    /// Use it for work that must not be repeated too soon, such as a job that several machines start by their own clocks. Other
    /// reentrant guards of the same hold lose it with this one.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost before.
    pub fn leave_to_expire(self) -> Result<()> {
        self.shared_hold.leave_to_expire()
    }

    /// Returns a handle of the hold, which this guard keeps: whoever has it can renew, convert and release the hold. This guard loses it at its next
    /// renewal if another process has ended or converted it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the holds of the store end with their session; [`Error::Lost`] if the lock was lost before.
    pub fn handle(&self) -> Result<HoldHandle> {
        self.shared_hold.hold_handle()
    }

    /// Renews the hold, ends it in this process without a release, and returns the handle with which any process can
    /// [adopt](crate::Locks::adopt) it. The hold is not renewed meanwhile: acquire it with a [`ttl`](crate::Lock::ttl) that is long enough.
    /// If another process has given the hold a longer lease, the handle has that one.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the holds of the store end with their session, or if other reentrant guards have the same hold, which continues
    /// with them; [`Error::Lost`] if the lock was lost before; [`Error::Unavailable`] if the store has not confirmed the renewal: the lock is
    /// free at the latest when the lease ends.
    ///
    /// # Cancel safety
    /// If the future is dropped, the renewal continues, and the hold ends with its lease.
    pub async fn into_handle(self) -> Result<HoldHandle> {
        let backend = self.hold().context.backend();
        let shared = Error::Unsupported { backend, capability: "a handle of a hold with several guards" };
        Arc::into_inner(self.shared_hold).ok_or(shared)?.into_handle().await
    }

    /// Keeps the lock for another `delay`, then releases it. Returns as soon as this process is no longer needed for that.
    ///
    /// If the store can [end a hold at a later time](crate::Park) and `delay` is in the range of its lease times, this returns when the store
    /// has confirmed that: the lease then expires in the store, and no renewal extends it any more, not even that of another process with a
    /// [handle](Self::handle). Otherwise the lock is renewed until that is possible, or until `delay` is over, and then released.
    ///
    /// Of several reentrant guards, the last one does this; the others return at once.
    ///
    /// # Errors
    /// The same as [`release`](Self::release). If the store has not confirmed it before the deadline, the lock ends with its current
    /// lease.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock, unless the store has been asked to end the hold: that continues.
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
        let end = self.hold().context.now() + delay;
        let Some(shared_hold) = Arc::into_inner(self.shared_hold) else { return Ok(()) };
        shared_hold.release_at(end).await
    }

    fn lost_by(&self, ended: Ended) -> Error {
        ended.into_lost(self.name())
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
    /// Work that is polled only while `check` returns `Ok`, which reads the clock. `lost` wakes the task when it does not any more.
    pub(crate) struct Protected<F, C, L> {
        #[pin]
        work: Option<F>,
        check: C,
        lost: L,
    }
}

impl<F, C, L> Protected<F, C, L> {
    pub(crate) const fn new(work: F, check: C, lost: L) -> Self {
        Self { work: Some(work), check, lost }
    }
}

impl<F: Future, C: Fn() -> Result<()>, L: Future + Unpin> Future for Protected<F, C, L> {
    type Output = Result<F::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        // The signal is polled first, so that it wakes this task. Then the clock is read: it may be ahead of the signal.
        let signalled = Pin::new(&mut *this.lost).poll(cx).is_ready();
        if let Err(lost) = (this.check)() {
            this.work.set(None);
            return Poll::Ready(Err(lost));
        }
        debug_assert!(!signalled, "the signal comes from the phase that was just checked");
        let Some(work) = this.work.as_mut().as_pin_mut() else { return Poll::Pending };
        let output = std::task::ready!(work.poll(cx));
        Poll::Ready((this.check)().map(|()| output))
    }
}
