//! The time until which the servers certainly keep a session, with the packets that prove it (see [`proof`](crate::proof)).
//!
//! A [task](crate::heartbeat) sends a `sync` every sixteenth of the timeout, which serves as packet 1 and later as packet 2. The creates and
//! renewals of requests are the transactions.

use std::{
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use polylock_core::{Clock, Moment, SystemClock, sync::lock};

use crate::proof::Proof;

/// The time until which the servers keep one session.
#[derive(Debug)]
pub(crate) struct Lifetime {
    /// The timeout that the servers granted.
    timeout: Duration,
    proof: Mutex<Proof>,
}

impl Lifetime {
    /// Begins with a session that was requested at `sent`.
    pub(crate) fn new(timeout: Duration, sent: Moment) -> Self {
        Self { timeout, proof: Mutex::new(Proof::new(timeout, sent, SystemClock.now())) }
    }

    /// Returns the interval of the `sync`s.
    pub(crate) fn interval(&self) -> Duration {
        self.timeout / 16
    }

    /// Returns the longest lease. A transaction proves more than that if the last replies came without delay: of the known time, half a tick
    /// and two intervals may have passed since the first packet.
    pub(crate) fn longest_lease(&self) -> Duration {
        self.timeout / 2
    }

    /// Returns the time until which the servers keep the session.
    pub(crate) fn until(&self) -> Moment {
        self.proof().until()
    }

    /// Records the reply to a `sync` that was sent at `sent`.
    pub(crate) fn synced(&self, sent: Moment) {
        self.proof().synced(sent, SystemClock.now());
    }

    /// Records the commit of a transaction that was sent at `sent`.
    pub(crate) fn committed(&self, sent: Moment) {
        self.proof().committed(sent);
    }

    fn proof(&self) -> MutexGuard<'_, Proof> {
        lock(&self.proof)
    }
}
