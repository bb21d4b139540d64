//! The capabilities of two stores together: the weaker of each.

use crate::{
    Capabilities, Error, Fencing, FirstStep, HoldLifetime, Modes, Notifications, Order, QueueLease, Result,
    Scope,
};

/// The name of the transitional store, and the scheme of its URL.
pub const NAME: &str = "both";

/// Returns what two stores are capable of together.
///
/// # Errors
/// [`Error::InvalidTtl`] if they have no TTL in common.
pub(super) fn weaker(old: &Capabilities, new: &Capabilities) -> Result<Capabilities> {
    let (min, max) = (*old.ttl.start().max(new.ttl.start()), *old.ttl.end().min(new.ttl.end()));
    if min > max {
        let (backend, ttl) = (old.backend, *new.ttl.start());
        return Err(Error::InvalidTtl { backend, ttl, min: *old.ttl.start(), max: *old.ttl.end() });
    }
    let mut both = Capabilities::new(NAME, min..=max);
    let modes = [Modes::ExclusiveOnly, Modes::ExclusiveAndShared, Modes::AllSix];
    both.modes = first_of(modes, old.modes, new.modes);
    both.order = first_of([Order::Unordered, Order::Fifo], old.order, new.order);
    let notifications = [Notifications::Polled, Notifications::Pushed];
    both.notifications = first_of(notifications, old.notifications, new.notifications);
    let fencing = [Fencing::Absent, Fencing::WhileRunning, Fencing::Durable];
    both.fencing = first_of(fencing, old.fencing, new.fencing);
    let lifetimes = [HoldLifetime::Session, HoldLifetime::Lease];
    both.hold_lifetime = first_of(lifetimes, old.hold_lifetime, new.hold_lifetime);
    both.frees_dead_holders = old.frees_dead_holders || new.frees_dead_holders;
    both.scope = first_of([Scope::Process, Scope::Host, Scope::Network], old.scope, new.scope);
    // A request that waits in the new store holds the lock in the old one, with a lease of its own.
    both.queue_lease = QueueLease::Entry;
    both.keep_alive_batch = old.keep_alive_batch.min(new.keep_alive_batch);
    both.claims_at_once = old.claims_at_once.min(new.claims_at_once);
    both.first_step = first_of([FirstStep::Thread, FirstStep::Caller], old.first_step, new.first_step);
    Ok(both)
}

/// Returns the first one of `values` that is one of the two.
fn first_of<T: Copy + PartialEq, const N: usize>(values: [T; N], old: T, new: T) -> T {
    values.into_iter().find(|value| *value == old || *value == new).unwrap_or(old)
}
