//! The gate in front of the connections to a database. A connection carries one operation at a time, so with a single connection a renewal
//! waits for the one statement that is being executed.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use polylock_core::{
    Clock, Operation, SystemClock,
    gate::{self, Permit, Precedence},
};

/// Admits as many operations as there are connections.
#[derive(Debug)]
pub(crate) struct Gate {
    slots: Arc<gate::Gate>,
    /// The number of claims that it admits at once.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(crate) claim_capacity: usize,
    /// The number of operations that the database has answered.
    answered: AtomicU64,
}

/// Returns, for each class of [`Precedence`], the number of the `size` connections that it leaves to the classes before it: none for
/// keep-alives, one for releases, two for claims. Each class can use at least one connection.
fn reserves(size: usize) -> [usize; 3] {
    [0, 1, 2].map(|reserve: usize| reserve.min(size - 1))
}

impl Gate {
    /// Creates a gate in front of `size` connections, at least one.
    pub(crate) fn new(size: usize) -> Self {
        let size = size.max(1);
        let reserves = reserves(size);
        Self {
            slots: gate::Gate::new(size, reserves),
            #[cfg(any(feature = "postgres", feature = "mysql"))]
            claim_capacity: size - reserves[Precedence::Claim as usize],
            answered: AtomicU64::default(),
        }
    }

    /// Returns true if a claim would be admitted at once.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(crate) fn has_room(&self) -> bool {
        self.slots.has_room(Precedence::Claim)
    }

    /// Waits until `operation` is admitted. Returns `None` if the database has answered nothing for `timeout`: as long as it answers, the
    /// queue is merely long.
    ///
    /// # Cancel safety
    /// The operation leaves the queue, and the next one gets its permit.
    pub(crate) async fn enter(&self, operation: Operation, timeout: Duration) -> Option<Permit> {
        let mut entering = pin!(self.slots.enter(Precedence::of(operation)));
        loop {
            let answered = self.answered.load(Ordering::Relaxed);
            let end = SystemClock.now() + timeout;
            if let Some(permit) = SystemClock.before(end, entering.as_mut()).await {
                return Some(permit);
            }
            if self.answered.load(Ordering::Relaxed) == answered {
                return None;
            }
        }
    }

    /// Records that the database has answered an operation.
    pub(crate) fn answered(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_leave_connections_to_renewals_and_releases() {
        assert_eq!(
            [1, 2, 3, 4, 8].map(|size| reserves(size)[2]),
            [0, 1, 2, 2, 2],
            "one at least is for claims"
        );
        assert_eq!([1, 2, 8].map(reserves), [[0, 0, 0], [0, 1, 1], [0, 1, 2]]);
    }

    #[tokio::test]
    async fn the_timeout_restarts_with_each_reply_of_the_database() {
        let gate = Gate::new(1);
        let (timeout, began) = (Duration::from_millis(40), SystemClock.now());
        let _in_flight = gate.enter(Operation::Claim, timeout).await.unwrap();
        let entering = gate.enter(Operation::Claim, timeout);
        let (permit, ()) = futures_util::future::join(entering, async { gate.answered() }).await;
        assert!(permit.is_none());
        let waited = SystemClock.now().since(began);
        assert!(waited >= timeout * 2, "{waited:?}");
    }
}
