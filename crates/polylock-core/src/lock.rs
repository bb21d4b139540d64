//! The lock that is asked for: a name and how it is wanted.

use std::{sync::Arc, time::Duration};

use crate::{
    Error, Guard, InvalidName, Label, LockName, Mode, Options, OwnerId, Progress, Request, Result,
    engine::{self, Front, Limits},
    error::ConfigError,
};

/// A lock to be acquired: made by [`Locks::lock`](crate::Locks::lock), changed by its methods, ended by
/// [`acquire`](Self::acquire) or [`try_acquire`](Self::try_acquire).
///
/// Every setting is checked before anything is sent, and a bad one is reported there.
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
    front: Arc<Front>,
    name: Result<LockName, InvalidName>,
    options: Options,
    mode: Mode,
    owner: OwnerId,
    reentrant: bool,
    label: Option<Result<Label, ConfigError>>,
    progress: Option<Progress>,
}

impl Lock {
    pub(crate) fn new(front: Arc<Front>, name: &str) -> Self {
        Self {
            name: LockName::new(name),
            options: front.0.options,
            mode: Mode::Exclusive,
            owner: front.0.owner.clone().unwrap_or_else(OwnerId::process),
            reentrant: false,
            label: front.0.label.clone().map(Ok),
            progress: None,
            front,
        }
    }

    /// How long the lock outlives a holder that dies. A longer one bears longer outages of the store, a shorter one
    /// frees the lock sooner.
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// How long to wait for it at the most. With [`Duration::ZERO`] it is tried once. A store that is slow to answer at
    /// all has 500 ms for its first answer in any case.
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.options.wait = Some(wait);
        self
    }

    /// How long the store may be unreachable, without a break, before waiting fails.
    pub const fn outage(mut self, outage: Duration) -> Self {
        self.options.outage = outage;
        self
    }

    /// How it is to be held; [`Mode::Exclusive`] if nothing is said.
    pub const fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Together with other readers: [`Mode::Shared`].
    pub const fn shared(self) -> Self {
        self.mode(Mode::Shared)
    }

    /// What it is for, for people who look at the store: at most 255 bytes without control characters.
    pub fn label(mut self, label: impl AsRef<str>) -> Self {
        self.label = Some(Label::new(label));
        self
    }

    /// Where to note the progress of the acquisition, for a display.
    pub fn progress(mut self, progress: &Progress) -> Self {
        self.progress = Some(progress.clone());
        self
    }

    /// Who acquires it, for people who inspect the store; by default the owner of the [`Locks`](crate::Locks), which is `host:pid`
    /// if [nothing else](crate::LocksBuilder::owner) was set.
    pub fn owner(mut self, owner: &OwnerId) -> Self {
        self.owner = owner.clone();
        self
    }

    /// Lets `owner` enter again what it holds already: acquiring returns at once, with the same fencing token, and the
    /// lock is released when all its guards have gone.
    ///
    /// Owners are told apart by name, never by thread or task, and within one [`Locks`](crate::Locks) and its clones.
    pub fn reentrant(mut self, owner: &OwnerId) -> Self {
        self.owner = owner.clone();
        self.reentrant = true;
        self
    }

    /// Waits its turn and takes the lock.
    ///
    /// Where the store keeps an order ([`Order::Arrival`](crate::Order::Arrival)), first come is first served.
    ///
    /// # Errors
    /// [`Error::NotAcquired`] if the [`wait`](Self::wait) was over before; [`Error::Unavailable`] if the store was
    /// unreachable for longer than the [`outage`](Self::outage) or for good; [`Error::InvalidName`],
    /// [`Error::InvalidTtl`], [`Error::Config`], [`Error::Unsupported`] and [`Error::Reentry`] before anything is sent.
    ///
    /// # Cancel safety
    /// May be dropped at any point. It leaves the queue, and what the store may have granted meanwhile is given back.
    /// The place in the queue is lost.
    pub async fn acquire(self) -> Result<Guard> {
        let queues = self.options.wait != Some(Duration::ZERO);
        self.attempt(queues).await
    }

    /// Takes the lock if nobody is before it; `None` if somebody is.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), but for [`Error::NotAcquired`]. A store that does not answer is asked once; a
    /// [`wait`](Self::wait), if one is set, bounds the time for the answer.
    ///
    /// # Cancel safety
    /// May be dropped at any point.
    pub async fn try_acquire(self) -> Result<Option<Guard>> {
        match self.attempt(false).await {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if error.is_not_acquired() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn attempt(self, queues: bool) -> Result<Guard> {
        let can = self.front.0.store.backend.capabilities();
        let (name, ttl) = (self.name?, self.options.ttl);
        if !can.ttl.contains(&ttl) {
            let (min, max) = (*can.ttl.start(), *can.ttl.end());
            return Err(Error::InvalidTtl { backend: can.backend, ttl, min, max });
        }
        if !can.modes.contains(self.mode) {
            return Err(Error::Unsupported { backend: can.backend, capability: can.modes.others() });
        }
        let mut request = Request::new(name, self.mode, ttl);
        request.owner = self.owner;
        request.label = self.label.transpose()?;
        request.queues = queues;
        // Zero means no queueing; it can't be the time that the store has for its answer.
        let wait = self.options.wait.filter(|wait| !wait.is_zero());
        let limits = Limits { wait, outage: self.options.outage };
        engine::acquire(self.front, request, self.reentrant, limits, self.progress).await.map(Guard::new)
    }
}
