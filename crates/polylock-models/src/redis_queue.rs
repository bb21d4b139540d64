//! Redis: queues with hand-over on one server.
//!
//! Modelled in addition to [`handover`](crate::handover): notes of released requests, which refuse a claim that is still valid; clients
//! that are not subscribed, which a release passes over.
//!
//! A claim is valid until the tick before its expiry. The script accepts it in the microsecond of its expiry, too, in which the note may be
//! gone.
//!
//! It mirrors `queue/backend.rs` and `queue/scripts/` of `polylock-redis`, and `engine/acquisition.rs`, `engine/keeper/state.rs`,
//! `engine/keeper/waiter_lease.rs`, `engine/local_queue.rs` and `wakeups.rs` of `polylock-core`.

use crate::handover::{Bug, Flavor};

/// The queue in Redis.
#[derive(Debug)]
pub struct Redis;

impl Flavor for Redis {
    const HAS_TRANSACTIONS: bool = false;
    const END: u8 = 1;
    const FAULTS: u8 = 1;
    const NAME: &'static str = "Redis queue";
    const BOUNDS: &'static str = "3 requests in 2 processes, 1 fault, leases of 1 tick, 1 tick";
    const TWINS: &'static [(Bug, &'static str)] = &[
        (Bug::LeaseFromNotification, "one holder at a time"),
        (Bug::StaleNotification, "one holder at a time"),
        (Bug::LateReplyEndsHold, "a loss is no error"),
        (Bug::DeadWaiterStays, "every waiter gets the lock"),
        (Bug::ReaderOvertakes, "first come, first served"),
        (Bug::ClaimNeverExpires, "an ended request has no entry"),
        (Bug::ReleaseLeavesNoNote, "an ended request has no entry"),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{check::check, handover::Handover};

    #[test]
    fn the_lock_is_handed_over() {
        println!("{:#?}", check::<Handover<Redis>>());
    }
}
