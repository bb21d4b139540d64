//! A lock to be acquired: its name, its mode and its settings.

use std::{sync::Arc, time::Duration};

use crate::{
    ConfigError, Error, Guard, InvalidName, Label, LockName, Mode, Options, OwnerId, Progress, Request,
    Result,
    engine::{self, FailingSince, HoldLimits, Limits, Steps, StoreHandle},
};

/// A lock to be acquired. [`Locks::lock`](crate::Locks::lock) creates it, its methods configure it, and [`acquire`](Self::acquire)
/// or [`try_acquire`](Self::try_acquire) consumes it.
///
/// Both of these check every setting before anything is sent, and return an error for an invalid one.
///
/// ```
/// use std::time::Duration;
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = polylock_core::Locks::new(polylock_core::memory::connect());
/// let reader = locks.lock("orders/42").shared().ttl(Duration::from_secs(10)).wait(Duration::from_secs(5));
/// let guard = reader.acquire().await?;
/// # drop(guard);
/// # Ok::<(), polylock_core::Error>(()) }).unwrap();
/// ```
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    handle: Arc<StoreHandle>,
    name: Result<LockName, InvalidName>,
    options: Options,
    hold: HoldLimits,
    mode: Mode,
    owner: OwnerId,
    reentrant: bool,
    label: Option<Result<Label, ConfigError>>,
    progress: Option<Progress>,
    /// The outage so far, if this is a step of an acquisition that has begun before.
    failing: Option<FailingSince>,
}

impl Lock {
    pub(crate) fn new(handle: Arc<StoreHandle>, name: &str) -> Self {
        Self {
            name: LockName::new(name),
            options: handle.context.options,
            hold: HoldLimits::default(),
            mode: Mode::Exclusive,
            owner: handle.context.owner.clone().unwrap_or_else(OwnerId::process),
            reentrant: false,
            label: handle.context.label.clone().map(Ok),
            progress: None,
            failing: None,
            handle,
        }
    }

    pub(crate) fn name(&self) -> Result<LockName, InvalidName> {
        self.name.clone()
    }

    /// Returns the lock `name` with the same settings.
    pub(crate) fn named(&self, name: LockName) -> Self {
        Self { name: Ok(name), ..self.clone() }
    }

    /// Returns the lock `name` with the same settings, as the next one of `steps`, with the rest of their wait.
    pub(crate) fn step(&self, name: LockName, steps: &Steps) -> Self {
        let mut lock = self.named(name);
        lock.options.wait = steps.wait().or(lock.options.wait);
        lock.failing = Some(steps.failing().clone());
        lock
    }

    /// Returns the mode for the ancestors of the node of a tree.
    ///
    /// # Errors
    /// [`ConfigError`] if a node can't be locked in the mode of this lock.
    pub(crate) fn intention(&self) -> Result<Mode, ConfigError> {
        let invalid = || {
            ConfigError::new("mode", "a node of a tree is locked in EX or PR (shared): use one of the two")
        };
        self.mode.intention().ok_or_else(invalid)
    }

    pub(crate) const fn receiver(&self) -> Option<&Progress> {
        self.progress.as_ref()
    }

    pub(crate) const fn options(&self) -> &Options {
        &self.options
    }

    /// Sets the TTL: the time after which the lock of a dead holder is free. A longer TTL tolerates longer outages of the store, a
    /// shorter TTL frees the lock sooner.
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// Sets the time limit for waiting. With [`Duration::ZERO`], the lock is tried once. A store that is slow to reply has 500 ms
    /// for its first reply in any case.
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.options.wait = Some(wait);
        self
    }

    /// Sets the time for which the store may be unreachable, without interruption, before waiting fails.
    ///
    /// A try with this setting is repeated while the store is unavailable; without it, the first error ends the try. It never waits for another
    /// holder. A failover is an outage, too, and so is a server that rejects a password which it accepted before.
    pub const fn outage(mut self, outage: Duration) -> Self {
        self.options.outage = outage;
        self.options.tries_wait_for_store = true;
        self
    }

    /// Sets the longest time of the hold, which ends then with [`LostReason::MaxHold`](crate::LostReason::MaxHold): a holder that is stuck, and
    /// still renewed by its process, does not keep the lock for ever.
    ///
    /// It counts from the grant. A lease that lasts until that time is not renewed any more, so the lease ends less than a TTL after the
    /// hold. No other request is granted the lock before that, unless the guard is released or dropped earlier.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let locks = polylock_core::Locks::new(polylock_core::memory::connect());
    /// let guard = locks.lock("nightly").max_hold(Duration::from_millis(50)).acquire().await?;
    /// let stuck = guard.run(std::future::pending::<()>()).await.unwrap_err();
    /// assert_eq!(stuck.lost(), Some(&polylock_core::LostReason::MaxHold));
    /// # Ok::<(), polylock_core::Error>(()) }).unwrap();
    /// ```
    pub const fn max_hold(mut self, time: Duration) -> Self {
        self.hold.max = Some(time);
        self
    }

    /// Sets the shortest time for which the lock stays taken, counted from the grant: a release or a drop before that takes effect then.
    ///
    /// It is for work that must not be repeated too soon, such as a job that several machines start by their own clocks. A release does the
    /// same as [`Guard::release_after`] with the rest of this time: if the lease can end in the store then, this process is not needed any
    /// more when the release returns. Otherwise the library keeps the lock in the background, as long as the process lives.
    /// [`Locks::shutdown`](crate::Locks::shutdown) leaves the lock to expire where the store can do that, and releases it otherwise.
    ///
    /// A hold that is lost is free when its lease has ended. An acquisition that enters an existing hold, as a [reentrant](Self::reentrant)
    /// one may, changes no limit of that hold.
    pub const fn min_hold(mut self, time: Duration) -> Self {
        self.hold.min = time;
        self
    }

    /// Sets the mode; the default is [`Mode::Exclusive`].
    pub const fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets [`Mode::Shared`], in which several readers hold the lock at the same time.
    pub const fn shared(self) -> Self {
        self.mode(Mode::Shared)
    }

    /// Sets the purpose of the lock, shown by inspection: at most 255 bytes without control characters.
    pub fn label(mut self, label: impl AsRef<str>) -> Self {
        self.label = Some(Label::new(label));
        self
    }

    /// Sets the receiver of the progress of the acquisition, for a display.
    pub fn progress(mut self, progress: &Progress) -> Self {
        self.progress = Some(progress.clone());
        self
    }

    /// Checks this request for a [deadlock](crate::Options::deadlock_check) each time it has waited for `interval`.
    ///
    /// The youngest request of a cycle fails with [`Error::Deadlock`](crate::Error::Deadlock), at most about half a second after its check. A request of an owner that holds
    /// the lock itself, in this process and not [reentrant](Self::reentrant), fails at once. The store must show its waiters to
    /// [inspection](crate::Locks::inspect).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use polylock_core::{Error, Locks, OwnerId};
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let locks = Locks::new(polylock_core::memory::connect());
    /// let worker = OwnerId::unique();
    /// let guard = locks.lock("a").owner(&worker).acquire().await?;
    /// let again = locks.lock("a").owner(&worker).deadlock_check(Duration::from_secs(1)).acquire().await;
    /// assert!(matches!(again, Err(Error::Deadlock { .. })));
    /// # guard.release().await?;
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub const fn deadlock_check(mut self, interval: Duration) -> Self {
        self.options.deadlock_check = Some(interval);
        self
    }

    /// Sets the owner, as shown by inspection. The default is the owner of the [`Locks`](crate::Locks), which is `host:pid` if
    /// [nothing else](crate::LocksBuilder::owner) was set.
    pub fn owner(mut self, owner: &OwnerId) -> Self {
        self.owner = owner.clone();
        self
    }

    /// Makes the lock reentrant for `owner`: if `owner` already holds the lock, the acquisition returns at once with the same
    /// fencing token, and the lock is released with its last guard.
    ///
    /// Owners are distinguished by name, never by thread or task, and within one [`Locks`](crate::Locks) and its clones.
    pub fn reentrant(mut self, owner: &OwnerId) -> Self {
        self.owner = owner.clone();
        self.reentrant = true;
        self
    }

    /// Waits for the lock and acquires it.
    ///
    /// If the store keeps an order ([`Order::Fifo`](crate::Order::Fifo)), requests are granted first come, first served.
    ///
    /// # Errors
    /// [`Error::NotAcquired`] if the [`wait`](Self::wait) expired first; [`Error::Unavailable`] if the store was unreachable for
    /// longer than the [`outage`](Self::outage), or failed permanently; [`Error::InvalidName`], [`Error::InvalidTtl`],
    /// [`Error::Config`], [`Error::Unsupported`] and [`Error::Reentry`] before anything is sent.
    ///
    /// # Cancel safety
    /// The future may be dropped at any point. This removes the request from the queue, so its queue position is lost; a lock
    /// granted in the meantime is released.
    pub async fn acquire(self) -> Result<Guard> {
        let queues = self.options.wait != Some(Duration::ZERO);
        self.attempt(queues).await
    }

    /// Acquires the lock if no other request is ahead; returns `None` otherwise.
    ///
    /// # Errors
    /// The same as [`acquire`](Self::acquire), except [`Error::NotAcquired`]. The request is not retried if the store does not
    /// reply, unless an [`outage`](Self::outage) is set for this lock; a [`wait`](Self::wait), if one is set, limits the time for the reply.
    ///
    /// # Cancel safety
    /// The future may be dropped at any point.
    pub async fn try_acquire(self) -> Result<Option<Guard>> {
        match self.attempt(false).await {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if error.is_not_acquired() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn attempt(self, queues: bool) -> Result<Guard> {
        self.handle.context.ensure_own_process()?;
        let can = self.handle.context.store.backend.capabilities();
        let (name, ttl) = (self.name?, self.options.ttl);
        if !can.ttl.contains(&ttl) {
            let (min, max) = (*can.ttl.start(), *can.ttl.end());
            return Err(Error::InvalidTtl { backend: can.backend, ttl, min, max });
        }
        if !can.modes.contains(self.mode) {
            return Err(Error::Unsupported { backend: can.backend, capability: can.modes.unsupported() });
        }
        let mut request = Request::new(name, self.mode, ttl);
        request.owner = self.owner;
        request.label = self.label.transpose()?;
        request.queues = queues;
        request.outlives_process = self.handle.context.holds_outlive_process || !self.hold.min.is_zero();
        // Zero means no queueing; it can't be the time limit for the store's reply.
        let mut wait = self.options.wait.filter(|wait| !wait.is_zero());
        let outage = self.options.outage_of(!queues);
        if !queues && !outage.is_zero() {
            // A try waits for nothing but the store.
            wait = Some(wait.unwrap_or(outage).min(outage));
        }
        self.hold.check()?;
        if queues && !self.reentrant && self.options.deadlock_check.is_some() && !request.owner.is_process() {
            let Request { name, owner, mode, .. } = &request;
            if let Some(held) = self.handle.keeper.conflicting_hold(name, owner, *mode) {
                let cycle = format!(
                    "{owner} would wait for itself: it holds the lock in {held} and requests it in {mode}; a reentrant lock shares the hold"
                );
                return Err(Error::Deadlock { name: name.clone(), cycle });
            }
        }
        let limits = Limits {
            wait,
            outage,
            failing: self.failing.unwrap_or_default(),
            deadlock_check: self.options.deadlock_check,
            hold: self.hold,
        };
        engine::acquire(self.handle, request, self.reentrant, limits, self.progress).await.map(Guard::new)
    }
}
