//! The state of this process's requests: their acquisitions, and the end of their holds.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use polylock_core::{Clock, Moment, Request, RequestId, SystemClock};

/// The age above which a record is obsolete: a holder is recorded with each renewal, of a minute's lease at most, and a waiter with each
/// claim.
const OBSOLETE_AFTER: Duration = Duration::from_secs(120);

/// The state of one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    /// The time of the last acquisition without a reply, which may still succeed.
    pub(crate) unanswered: Option<Moment>,
    /// True if the request may have a lease.
    pub(crate) may_hold: bool,
    /// The duration of its lease, and the time when it ends unless it is renewed.
    pub(crate) held: Option<(Duration, Moment)>,
    /// True if its hold was found to be broken. Then there is a notice, which its release deletes.
    pub(crate) broken: bool,
    /// The time of its first claim.
    pub(crate) first_claim: Moment,
    /// The time when it last wrote a waiter marker.
    pub(crate) marker_written: Option<Moment>,
    /// The pause before its next claim.
    pub(crate) pause: Duration,
    /// The time of the last change of this record.
    changed_at: Moment,
}

/// The state of all requests that hold or wait.
#[derive(Debug, Default)]
pub(crate) struct Attempts(Mutex<HashMap<RequestId, Attempt>>);

impl Attempts {
    /// Returns the state of `request` if this process has it.
    pub(crate) fn find(&self, request: RequestId) -> Option<Attempt> {
        self.lock().get(&request).copied()
    }

    /// Changes the state of `request`.
    pub(crate) fn update<T>(&self, request: &Request, change: impl FnOnce(&mut Attempt) -> T) -> T {
        let (mut attempts, now) = (self.lock(), SystemClock.now());
        if !attempts.contains_key(&request.id) && attempts.len() >= attempts.capacity() {
            // Before the table grows, obsolete records are removed: of holds that were left to expire, or releases that were never
            // confirmed.
            attempts.retain(|_, attempt| now < attempt.changed_at + OBSOLETE_AFTER);
        }
        let attempt = attempts.entry(request.id).or_insert(Attempt {
            unanswered: None,
            may_hold: false,
            held: None,
            broken: false,
            first_claim: now,
            marker_written: None,
            pause: Duration::ZERO,
            changed_at: now,
        });
        attempt.changed_at = now;
        change(attempt)
    }

    /// Removes `request`, which neither holds nor waits any more.
    pub(crate) fn remove(&self, request: RequestId) -> Option<Attempt> {
        self.lock().remove(&request)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, Attempt>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylock_core::{LockName, Mode};

    #[test]
    fn obsolete_records_are_removed() {
        let attempts = Attempts::default();
        let add = || {
            let name = LockName::new("n").unwrap();
            let request = Request::new(name, Mode::Exclusive, Duration::from_secs(15));
            attempts.update(&request, |attempt| attempt.may_hold = true);
            request.id
        };
        let waiter = add();
        for _ in 0..1000 {
            let obsolete = add();
            attempts.lock().get_mut(&obsolete).unwrap().changed_at = SystemClock.now() - OBSOLETE_AFTER;
        }
        assert!(attempts.lock().len() < 10, "{}", attempts.lock().len());
        assert!(attempts.find(waiter).is_some_and(|attempt| attempt.may_hold));
    }
}
