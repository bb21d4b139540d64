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
    let is_either = |test: fn(&Capabilities) -> bool| test(old) || test(new);
    let mut both = Capabilities::new(NAME, min..=max);
    both.modes = if is_either(|can| can.modes == Modes::ExclusiveOnly) {
        Modes::ExclusiveOnly
    } else if is_either(|can| can.modes == Modes::ExclusiveAndShared) {
        Modes::ExclusiveAndShared
    } else {
        Modes::AllSix
    };
    if is_either(|can| can.order == Order::Unordered) {
        both.order = Order::Unordered;
    }
    if !is_either(|can| can.notifications == Notifications::Polled) {
        both.notifications = Notifications::Pushed;
    }
    both.fencing = if is_either(|can| can.fencing == Fencing::Absent) {
        Fencing::Absent
    } else if is_either(|can| can.fencing == Fencing::WhileRunning) {
        Fencing::WhileRunning
    } else {
        Fencing::Durable
    };
    if is_either(|can| can.hold_lifetime == HoldLifetime::Session) {
        both.hold_lifetime = HoldLifetime::Session;
    }
    both.scope = if is_either(|can| can.scope == Scope::Process) {
        Scope::Process
    } else if is_either(|can| can.scope == Scope::Host) {
        Scope::Host
    } else {
        Scope::Network
    };
    // A request that waits in the new store holds the lock in the old one, with a lease of its own.
    both.queue_lease = QueueLease::Entry;
    both.keep_alive_batch = old.keep_alive_batch.min(new.keep_alive_batch);
    both.claims_at_once = old.claims_at_once.min(new.claims_at_once);
    if is_either(|can| can.first_step == FirstStep::Thread) {
        both.first_step = FirstStep::Thread;
    }
    Ok(both)
}
