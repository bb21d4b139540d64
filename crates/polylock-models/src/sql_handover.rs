//! SQL: the hand-over by the release's transaction, as on PostgreSQL.
//!
//! Modelled in addition to [`handover`](crate::handover): the operations on a lock are transactions, one after the other, which read
//! the server's clock when they begin; time may pass before they are committed, and keep-alives do not wait for them. A release is
//! repeated once no claim of its request is valid.
//!
//! It mirrors `postgres/statements/routines/`, `engine/backend.rs` and `engine/server/late.rs` of `polylock-sql`, and the files of
//! `polylock-core` that [`redis_queue`](crate::redis_queue) names.

use crate::handover::{Bug, Flavor};

/// The tables of PostgreSQL.
#[derive(Debug)]
pub struct Sql;

impl Flavor for Sql {
    const HAS_TRANSACTIONS: bool = true;
    const END: u8 = 1;
    const FAULTS: u8 = 1;
    const NAME: &'static str = "SQL hand-over";
    const BOUNDS: &'static str = "3 requests in 2 processes, 1 fault, leases of 1 tick, 1 tick";
    const TWINS: &'static [(Bug, &'static str)] = &[
        (Bug::LeaseFromNotification, "one holder at a time"),
        (Bug::TokenBeforeRegion, "tokens grow"),
        (Bug::ClockBeforeRegion, "an ended request has no entry"),
        (Bug::ClaimNeverExpires, "an ended request has no entry"),
        (Bug::ReleaseNotRepeated, "an ended request has no entry"),
        (Bug::DeadWaiterStays, "every waiter gets the lock"),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{check::check, handover::Handover};

    #[test]
    fn the_lock_is_handed_over() {
        println!("{:#?}", check::<Handover<Sql>>());
    }
}
