//! A semaphore to be acquired.

use std::{sync::Arc, time::Duration};

use futures_util::{
    future::{join_all, try_join_all},
    stream::{FuturesUnordered, StreamExt},
};

use super::{SlotGuard, label};
use crate::{
    ConfigError, Error, Guard, InvalidName, Lock, LockName, LockStatus, NotAcquired, Operation, OwnerId,
    Progress, Request, Result,
    bug::Bug,
    engine::{Steps, StoreHandle},
    guard::RELEASE_LIMIT,
    many::PartialSet,
    process::has_bug,
};

/// Inspect at least this many slots when looking for a holder with another number of slots, in a store that can't list them.
const LEAST_INSPECTED: u32 = 8;

/// A semaphore, to be acquired: at most N holders at the same time, each with a slot of its own. [`Locks::semaphore`](crate::Locks::semaphore)
/// creates it, its methods configure it, and [`acquire`](Self::acquire) or [`try_acquire`](Self::try_acquire) consumes it.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = polylock_core::Locks::new(polylock_core::memory::connect());
/// let guard = locks.semaphore("gpu", 4).acquire().await?;
/// println!("use device {} with token {}", guard.slot(), guard.fencing_token());
/// guard.release().await?;
/// # Ok::<(), polylock_core::Error>(()) }).unwrap();
/// ```
#[derive(Debug, Clone)]
#[must_use = "a semaphore does nothing until it is acquired"]
pub struct Semaphore {
    handle: Arc<StoreHandle>,
    name: Result<LockName, InvalidName>,
    slots: u32,
    /// The settings of each slot. Its name is not used.
    template: Lock,
}

impl Semaphore {
    /// The greatest number of slots.
    pub const MAX_SLOTS: u32 = LockName::MAX_SLOTS;

    pub(crate) fn new(handle: Arc<StoreHandle>, template: Lock, name: &str, slots: u32) -> Self {
        let text = handle.context.label.as_ref().map_or_else(String::new, |label| label.as_str().to_owned());
        Self { name: LockName::new(name), slots, template, handle }.label(text)
    }

    /// Sets the TTL: the time after which the slot of a dead holder is free; see [`Lock::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { template: self.template.ttl(ttl), ..self }
    }

    /// Sets the time limit for waiting; see [`Lock::wait`].
    pub fn wait(self, wait: Duration) -> Self {
        Self { template: self.template.wait(wait), ..self }
    }

    /// Sets the time for which the store may be unreachable, without interruption, before waiting fails.
    pub fn outage(self, outage: Duration) -> Self {
        Self { template: self.template.outage(outage), ..self }
    }

    /// Sets the purpose of the hold, shown by inspection: at most 240 bytes without control characters.
    pub fn label(self, label: impl AsRef<str>) -> Self {
        Self { template: self.template.label(label::of(self.slots, label.as_ref())), ..self }
    }

    /// Sets the receiver of the progress of the acquisition: the queue position is that at the turnstile.
    pub fn progress(self, progress: &Progress) -> Self {
        Self { template: self.template.progress(progress), ..self }
    }

    /// Sets the owner, as shown by inspection; see [`Lock::owner`].
    pub fn owner(self, owner: &OwnerId) -> Self {
        Self { template: self.template.owner(owner), ..self }
    }

    /// Waits for a slot and acquires it.
    ///
    /// Requests are granted first come, first served, if the store keeps an order ([`Order::Fifo`](crate::Order::Fifo)).
    ///
    /// # Errors
    /// The same as [`Lock::acquire`]. [`Error::Config`] if the number of slots is not from 1 to [`MAX_SLOTS`](Self::MAX_SLOTS), if the name is
    /// longer than 250 bytes, or if the semaphore is in use with another number of slots: then it states both numbers.
    ///
    /// # Cancel safety
    /// The future may be dropped at any point. This releases what was acquired, and removes the request from the queues. A future that is not
    /// polled keeps no slot: after a queue lease, at most 5 s, it is released, and the acquisition begins again with its next poll.
    pub async fn acquire(self) -> Result<SlotGuard> {
        if self.template.options().wait == Some(Duration::ZERO) {
            let name = self.name.clone()?;
            let busy = Error::NotAcquired { name, reason: NotAcquired::Busy };
            return self.try_acquire().await?.ok_or(busy);
        }
        let names = Names::new(&self)?;
        let steps = Steps::begin(&self.handle.context, self.template.options());
        loop {
            if let Some(guard) = self.acquire_in_turn(&names, &steps).await? {
                return Ok(guard);
            }
        }
    }

    /// Acquires a slot if one is free and no waiter is ahead; returns `None` otherwise.
    ///
    /// # Errors
    /// The same as [`acquire`](Self::acquire), except [`Error::NotAcquired`].
    ///
    /// # Cancel safety
    /// The same as [`acquire`](Self::acquire).
    pub async fn try_acquire(self) -> Result<Option<SlotGuard>> {
        let names = Names::new(&self)?;
        let steps = Steps::begin(&self.handle.context, self.template.options());
        while let Some((slot, guard)) = self.try_slots(&names, &steps).await? {
            if let Some(guard) = self.complete(&names, slot, guard, &steps).await? {
                return Ok(Some(guard));
            }
        }
        Ok(None)
    }

    /// Tries the slot that this process has used last, and then the others.
    async fn try_slots(&self, names: &Names, steps: &Steps) -> Result<Option<(u32, Guard)>> {
        let first = self.handle.semaphores.last_slot(&names.semaphore, self.slots);
        if let Some(guard) = self.slot(names, first, steps).try_acquire().await? {
            return Ok(Some((first, guard)));
        }
        self.ensure_size(names, steps).await?;
        // One after the other: a try that is granted more than one slot makes the try of another caller fail.
        for slot in (0..self.slots).filter(|slot| *slot != first) {
            if let Some(guard) = self.slot(names, slot, steps).try_acquire().await? {
                return Ok(Some((slot, guard)));
            }
        }
        Ok(None)
    }

    /// Acquires a slot under the turnstile; returns `None` if the turnstile or the slot was lost before the end.
    async fn acquire_in_turn(&self, names: &Names, steps: &Steps) -> Result<Option<SlotGuard>> {
        let context = &self.handle.context;
        // A dead first waiter blocks the others no longer than any dead waiter.
        let queue_lease = self.queue_lease();
        let shortest = *context.store.backend.capabilities().ttl.start();
        let failed = |error: Error| match steps.failed(error) {
            Error::NotAcquired { reason, .. } => Error::NotAcquired { name: names.semaphore.clone(), reason },
            error => error,
        };
        let turnstile = self.template.step(names.turnstile.clone(), steps).ttl(queue_lease.max(shortest));
        let turnstile = turnstile.acquire().await.map_err(failed)?;
        let mut turn = PartialSet::new(context.clone(), queue_lease);
        turn.add(turnstile);
        let slot = turn.keep_while(self.take_slot(names, steps)).await;
        let turnstile = turn.take();
        match slot {
            Some(Ok((slot, guard))) => {
                // Released in the background.
                drop(turnstile);
                self.complete(names, slot, guard, steps).await
            }
            Some(Err(error)) => {
                join_all(turnstile.into_iter().map(|guard| guard.release_within(Some(RELEASE_LIMIT)))).await;
                Err(failed(error))
            }
            None => Ok(None),
        }
    }

    /// Takes the slot that this process has used last, or else waits for all slots and takes the first one.
    async fn take_slot(&self, names: &Names, steps: &Steps) -> Result<(u32, Guard)> {
        let first = self.handle.semaphores.last_slot(&names.semaphore, self.slots);
        match self.slot(names, first, steps).try_acquire().await {
            Ok(Some(guard)) => return Ok((first, guard)),
            Ok(None) => drop(self.ensure_size(names, steps).await?),
            // A try does not wait for the end of an outage; the requests for all slots do.
            Err(error) if error.is_temporary() && !has_bug(Bug::ImpatientSlot) => {}
            Err(error) => return Err(error),
        }
        let waits = (0..self.slots).map(|slot| {
            let lock = self.slot(names, slot, steps);
            async move { (slot, lock.acquire().await) }
        });
        let mut waits: FuturesUnordered<_> = waits.collect();
        match waits.next().await {
            // The other requests are withdrawn with their futures.
            Some((slot, outcome)) => Ok((slot, outcome?)),
            None => unreachable!("there is at least one slot"),
        }
    }

    fn slot(&self, names: &Names, slot: u32, steps: &Steps) -> Lock {
        self.template.step(names.semaphore.of_semaphore(Some(slot)), steps)
    }

    /// Returns the time for which the locks of an acquisition are kept while it is not polled.
    fn queue_lease(&self) -> Duration {
        self.template.options().ttl.min(Request::MAX_QUEUE_LEASE)
    }

    /// Checks the number of slots under the slot, and returns it; `None` if it was lost meanwhile, or the caller was not polled.
    async fn complete(
        &self,
        names: &Names,
        slot: u32,
        guard: Guard,
        steps: &Steps,
    ) -> Result<Option<SlotGuard>> {
        let context = &self.handle.context;
        let now = context.now();
        let mut kept = PartialSet::new(context.clone(), self.queue_lease());
        kept.add(guard);
        let checked = kept.keep_while(self.ensure_size(names, steps)).await;
        let (Some(checked), Some(guard)) = (checked, kept.take().pop()) else { return Ok(None) };
        match checked {
            // Another holder that begins after this finds the label of this one.
            Ok(true) => self.handle.semaphores.checked(&names.semaphore, self.slots, now),
            Ok(false) => {}
            Err(error) => {
                guard.release_within(Some(RELEASE_LIMIT)).await.ok();
                return Err(error);
            }
        }
        if !guard.is_held() {
            return Ok(None);
        }
        self.handle.semaphores.acquired(&names.semaphore, slot);
        Ok(Some(SlotGuard::new(guard.received(), names.semaphore.clone(), slot, self.slots)))
    }

    /// Checks that the other holders have the same number of slots, unless this process did so a moment ago. Returns true if it was checked
    /// now.
    ///
    /// A slot is held before the check. So of two holders that begin at the same time with different numbers, at least one fails.
    async fn ensure_size(&self, names: &Names, steps: &Steps) -> Result<bool> {
        let (handle, context) = (&self.handle, &self.handle.context);
        if context.store.inspect.is_none()
            || handle.semaphores.is_checked(&names.semaphore, self.slots, context.now())
        {
            return Ok(false);
        }
        // The check is made with a later acquisition if the store does not reply.
        let Ok(locks) = self.locks_in_use(names, steps).await else { return Ok(false) };
        let holders = locks.iter().filter(|lock| lock.name.slot().is_some()).flat_map(|lock| &lock.holders);
        let mut numbers = holders.filter_map(|holder| label::parse(&holder.label));
        if let Some((other, _)) = numbers.find(|(number, _)| *number != self.slots) {
            let problem = format!(
                "{} is in use with {other} slots, and this request has {}: use the same number everywhere",
                names.semaphore, self.slots
            );
            return Err(ConfigError::new("semaphore", problem).into());
        }
        Ok(true)
    }

    /// Returns the locks of the semaphore that are in use, as far as the store can find them at a low cost.
    async fn locks_in_use(&self, names: &Names, steps: &Steps) -> Result<Vec<LockStatus>> {
        let (handle, context) = (&self.handle, &self.handle.context);
        // The caller keeps a slot, or the turnstile, from others meanwhile.
        let by = steps.reply_by().min(context.now() + self.template.options().ttl);
        if context.store.inspect.as_ref().is_some_and(|inspect| inspect.lists_semaphores()) {
            let (context, prefix) = (context.clone(), names.turnstile.as_str().to_owned());
            let listing = handle.inspect(Operation::Inspect, move |store| async move {
                context.bounded(Operation::Inspect, by, async move { store.list(&prefix).await }).await
            });
            match listing.await {
                // A user may lack the right to list.
                Err(error) if !error.is_temporary() => {}
                listed => return listed,
            }
        }
        let slots = (0..self.slots.max(LEAST_INSPECTED)).map(|slot| {
            let (context, name) = (context.clone(), names.semaphore.of_semaphore(Some(slot)));
            handle.inspect(Operation::Inspect, move |store| async move {
                context.bounded(Operation::Inspect, by, async move { store.inspect(&name).await }).await
            })
        });
        try_join_all(slots).await
    }
}

/// The names of a semaphore.
struct Names {
    semaphore: LockName,
    turnstile: LockName,
}

impl Names {
    fn new(semaphore: &Semaphore) -> Result<Self> {
        let (name, slots) = (semaphore.name.clone()?, semaphore.slots);
        if !(1..=Semaphore::MAX_SLOTS).contains(&slots) {
            let problem = format!("{slots} slots are out of range: use 1 to {}", Semaphore::MAX_SLOTS);
            return Err(ConfigError::new("semaphore", problem).into());
        }
        let (bytes, max) = (name.as_str().len(), LockName::MAX_SEMAPHORE_BYTES);
        if bytes > max {
            let problem = format!("a name of {bytes} bytes is too long for a semaphore: use at most {max}");
            return Err(ConfigError::new("semaphore", problem).into());
        }
        let turnstile = name.of_semaphore(None);
        Ok(Self { semaphore: name, turnstile })
    }
}
