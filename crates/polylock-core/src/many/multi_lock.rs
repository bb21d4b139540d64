//! Several locks to be acquired together.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures_util::future::join_all;

use super::{MultiGuard, partial::PartialSet};
use crate::{
    ConfigError, Error, Guard, InvalidName, Lock, LockName, LostReason, Mode, NotAcquired, OwnerId, Progress,
    Request, Result,
    engine::{Steps, StoreHandle},
    guard::RELEASE_LIMIT,
};

/// Several locks to be acquired together: all of them or none. [`Locks::lock_many`](crate::Locks::lock_many) creates it, its methods
/// configure it, and [`acquire`](Self::acquire) or [`try_acquire`](Self::try_acquire) consumes it.
///
/// The locks are acquired one after the other, in the order of the bytes of their names, and each name once. While it waits for one lock, it
/// holds those before it. So two callers that acquire several locks in this way never wait for each other in a cycle, whatever the order in
/// which they pass the names. A deadlock is possible if a caller already holds a lock when it waits for others: a task that holds `b`
/// and then acquires `a`, beside one that acquires both. Acquire all of them at once, or limit the [`wait`](Self::wait).
///
/// Every setting applies to each of the locks.
///
/// ```
/// use std::time::Duration;
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = polylock_core::Locks::new(polylock_core::memory::connect());
/// let guard = locks.lock_many(["stock/7", "orders/42"]).wait(Duration::from_secs(5)).acquire().await?;
/// for (name, token) in guard.fencing_tokens() {
///     println!("write to {name} with token {token}");
/// }
/// guard.release().await?;
/// # Ok::<(), polylock_core::Error>(()) }).unwrap();
/// ```
#[derive(Debug, Clone)]
#[must_use = "locks do nothing until they are acquired"]
pub struct MultiLock {
    handle: Arc<StoreHandle>,
    names: Result<BTreeSet<LockName>, InvalidName>,
    /// True if the names are those of a path, from its root to its node.
    is_path: bool,
    /// The settings of each lock. Its name is not used.
    template: Lock,
}

impl MultiLock {
    pub(crate) fn new(
        handle: Arc<StoreHandle>,
        template: Lock,
        names: impl Iterator<Item = impl AsRef<str>>,
    ) -> Self {
        Self { handle, names: names.map(LockName::new).collect(), is_path: false, template }
    }

    pub(crate) fn of_path(handle: Arc<StoreHandle>, template: Lock, path: &str) -> Self {
        let names = LockName::nodes_to(path).map(BTreeSet::from_iter);
        Self { handle, names, is_path: true, template }
    }

    /// Sets the TTL; see [`Lock::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { template: self.template.ttl(ttl), ..self }
    }

    /// Sets the time limit for waiting for all of the locks together. With [`Duration::ZERO`], each is tried once. See [`Lock::wait`].
    pub fn wait(self, wait: Duration) -> Self {
        Self { template: self.template.wait(wait), ..self }
    }

    /// Sets the time for which the store may be unreachable, without interruption, before waiting fails.
    pub fn outage(self, outage: Duration) -> Self {
        Self { template: self.template.outage(outage), ..self }
    }

    /// Sets the longest time of each hold; see [`Lock::max_hold`]. The lock that was granted first is lost first: the time must be longer
    /// than the wait for the others.
    pub fn max_hold(self, time: Duration) -> Self {
        Self { template: self.template.max_hold(time), ..self }
    }

    /// Sets the shortest time of each hold; see [`Lock::min_hold`]. It applies once all locks are acquired: if one of them is not, the others are
    /// free at once.
    pub fn min_hold(self, time: Duration) -> Self {
        Self { template: self.template.min_hold(time), ..self }
    }

    /// Sets the mode of all locks; the default is [`Mode::Exclusive`]. In a [tree](crate::Locks::tree) it is the mode of the node, either
    /// [`Mode::Exclusive`] or [`Mode::Shared`].
    pub fn mode(self, mode: Mode) -> Self {
        Self { template: self.template.mode(mode), ..self }
    }

    /// Sets [`Mode::Shared`], in which several readers hold the locks at the same time.
    pub fn shared(self) -> Self {
        self.mode(Mode::Shared)
    }

    /// Sets the purpose of the locks, shown by inspection: at most 255 bytes without control characters.
    pub fn label(self, label: impl AsRef<str>) -> Self {
        Self { template: self.template.label(label), ..self }
    }

    /// Sets the receiver of the progress of the acquisition, which is that of the lock it waits for.
    pub fn progress(self, progress: &Progress) -> Self {
        Self { template: self.template.progress(progress), ..self }
    }

    /// Sets the owner, as shown by inspection; see [`Lock::owner`].
    pub fn owner(self, owner: &OwnerId) -> Self {
        Self { template: self.template.owner(owner), ..self }
    }

    /// Makes the locks reentrant for `owner`: those that `owner` already holds are entered; see [`Lock::reentrant`].
    ///
    /// The order of the names prevents a deadlock only if an owner enters none of the locks, or all of them.
    pub fn reentrant(self, owner: &OwnerId) -> Self {
        Self { template: self.template.reentrant(owner), ..self }
    }

    /// Waits for all of the locks and acquires them.
    ///
    /// If it fails after it has acquired some of the locks, these are released before the error is returned. A store that does not confirm
    /// the releases within half a second does not delay the error: then they continue in the background. If a lock is lost while it waits
    /// for another one, all are released, and the acquisition begins again.
    ///
    /// # Errors
    /// The same as [`Lock::acquire`]; [`Error::NotAcquired`] has the name of the lock that was not acquired. [`Error::Config`] if there
    /// are no names.
    ///
    /// # Cancel safety
    /// The future may be dropped at any point. This releases the locks that were acquired, and removes the request for the next one from
    /// its queue. A future that is not polled keeps no lock: after a queue lease, at most 5 s, they are released, and the acquisition
    /// begins again with its next poll.
    pub async fn acquire(self) -> Result<MultiGuard> {
        let queues = self.template.options().wait != Some(Duration::ZERO);
        self.attempt(queues).await
    }

    /// Acquires the locks if no other request is ahead of any; returns `None` otherwise, and holds none of them.
    ///
    /// # Errors
    /// The same as [`Lock::try_acquire`]; [`Error::Config`] if there are no names; [`Error::Lost`] if the store takes longer to grant them than
    /// the [`max_hold`](Self::max_hold) of the first one.
    ///
    /// # Cancel safety
    /// The same as [`acquire`](Self::acquire).
    pub async fn try_acquire(self) -> Result<Option<MultiGuard>> {
        match self.attempt(false).await {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if error.is_not_acquired() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn attempt(self, queues: bool) -> Result<MultiGuard> {
        let Self { handle, names, is_path, template } = self;
        let (context, names, options) = (&handle.context, names?, *template.options());
        if names.is_empty() {
            return Err(ConfigError::new("lock_many", "no lock has a name; pass at least one name").into());
        }
        let intention = is_path.then(|| template.intention()).transpose()?;
        let steps = Steps::begin(context, &options);
        let queue_lease = options.ttl.min(Request::MAX_QUEUE_LEASE);
        loop {
            let mut partial = PartialSet::new(context.clone(), queue_lease);
            let mut failed = None;
            for name in &names {
                let mut lock = template.step(name.clone(), &steps);
                if let Some(mode) = intention.filter(|_| names.last() != Some(name)) {
                    lock = lock.mode(mode);
                }
                let is_added = match partial.keep_while(acquire_one(lock, name, queues)).await {
                    Some(Ok(guard)) => partial.add(guard),
                    Some(Err(error)) => {
                        failed = Some(error);
                        false
                    }
                    None => false,
                };
                if !is_added {
                    break;
                }
            }
            let guards = partial.take();
            if guards.len() == names.len() && guards.iter().all(Guard::is_held) {
                return Ok(MultiGuard::new(guards.into_iter().map(Guard::received).collect()));
            }
            // Nobody is waited for, so the next attempt would lose it, too.
            if let Some(guard) = guards.iter().find(|guard| !queues && guard.has_lasted()) {
                let (name, reason) = (guard.name().clone(), LostReason::MaxHold);
                failed.get_or_insert(Error::Lost { name, reason });
            }
            // Each release continues if this future is dropped.
            join_all(guards.into_iter().map(|guard| guard.release_within(Some(RELEASE_LIMIT)))).await;
            // Otherwise a lock was lost, or the caller was not polled.
            if let Some(error) = failed {
                return Err(steps.failed(error));
            }
        }
    }
}

/// Acquires one of the locks. A failed try is an error with its name.
async fn acquire_one(lock: Lock, name: &LockName, queues: bool) -> Result<Guard> {
    if queues {
        return lock.acquire().await;
    }
    let busy = || Error::NotAcquired { name: name.clone(), reason: NotAcquired::Busy };
    lock.try_acquire().await?.ok_or_else(busy)
}
