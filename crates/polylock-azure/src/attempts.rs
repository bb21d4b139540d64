//! The state of this process's requests: their acquisitions, and the end of their holds.

use std::{
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use polylock_core::{
    Clock, FencingToken, Moment, QueuePosition, Request, RequestId, SystemClock, requests::RequestTable,
    sync::lock,
};

use crate::{lease_record::LeaseRecord, wire::MAX_DELAY};

/// The shortest and the longest pause of a waiter: each is twice the one before. Up to a quarter is subtracted at random, so that the
/// waiters of many processes do not send requests at the same time.
const POLL_PAUSES: (Duration, Duration) = (Duration::from_millis(100), QueuePosition::MAX_RECHECK);

/// The state of one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    /// The lease that it may have.
    pub(crate) lease: LeaseRecord,
    /// The token of its hold, once it is known.
    pub(crate) token: Option<FencingToken>,
    /// True if its hold was found to be broken. Its release deletes the notice, if there is one.
    pub(crate) broken: bool,
    /// The time of its first claim.
    pub(crate) first_claim: Moment,
    /// The time when it last wrote a waiter marker.
    pub(crate) marker_written: Option<Moment>,
    /// The pause before its next claim.
    pub(crate) pause: Duration,
}

impl Attempt {
    /// Returns the duration to rely on after an acquisition for `lease` that was sent at `sent`. A late copy of the claim makes it that of the
    /// claim, `claim`, if one may arrive. When another process adopts a hold, nobody claims it any more.
    pub(crate) fn reliable(&self, lease: Duration, claim: Option<Duration>, sent: Moment) -> Duration {
        let last_claim = self.first_claim.max(self.lease.unanswered.unwrap_or_default());
        claim.filter(|_| sent < last_claim + MAX_DELAY).map_or(lease, |claim| lease.min(claim))
    }

    /// Returns the pause before the next claim.
    pub(crate) fn next_pause(&mut self) -> Duration {
        self.pause = (self.pause * 2).clamp(POLL_PAUSES.0, POLL_PAUSES.1);
        self.pause.mul_f64(1.0 - fastrand::f64() / 4.0)
    }
}

/// The state of all requests that hold or wait: a holder is recorded with each renewal, and a waiter with each claim.
#[derive(Debug, Default)]
pub(crate) struct Attempts(Mutex<RequestTable<Attempt>>);

impl Attempts {
    /// Returns the state of `request` if this process has it.
    pub(crate) fn find(&self, request: RequestId) -> Option<Attempt> {
        self.lock().get(&request).copied()
    }

    /// Changes the state of `request`.
    pub(crate) fn update<T>(&self, request: &Request, change: impl FnOnce(&mut Attempt) -> T) -> T {
        let now = SystemClock.now();
        let new = || Attempt {
            lease: LeaseRecord::default(),
            token: None,
            broken: false,
            first_claim: now,
            marker_written: None,
            pause: Duration::ZERO,
        };
        change(self.lock().update(request.id, now, request.obsolete_at(now), new))
    }

    /// Returns the number of records.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Removes `request`, which neither holds nor waits any more.
    pub(crate) fn remove(&self, request: RequestId) -> Option<Attempt> {
        self.lock().remove(&request)
    }

    fn lock(&self) -> MutexGuard<'_, RequestTable<Attempt>> {
        lock(&self.0)
    }
}
