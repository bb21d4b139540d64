//! What this process remembers of its requests: what was asked for them, and until when they hold.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use polylock_core::{Clock, Moment, Request, RequestId, SystemClock};

/// Who holds is noted with each renewal, of a minute's lease at most, and who waits with each question: what was not for this
/// long is nobody's any more.
const OVER: Duration = Duration::from_secs(120);

/// What is remembered of one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    /// When an acquisition was last asked for that has not been answered, and may come true yet.
    pub(crate) unanswered: Option<Moment>,
    /// Whether it may have a lease.
    pub(crate) may_hold: bool,
    /// How long its lease lasts, and until when, had nobody heard of us since.
    pub(crate) held: Option<(Duration, Moment)>,
    /// Whether its hold was found to be broken: then there is a notice, which its release deletes.
    pub(crate) broken: bool,
    /// Since when it has been asked for.
    pub(crate) began: Moment,
    /// When it last left a mark for other processes.
    pub(crate) marked: Option<Moment>,
    /// The pause before it asks again.
    pub(crate) pause: Duration,
    /// When any of this was last noted.
    noted: Moment,
}

/// Of all requests that hold or wait.
#[derive(Debug, Default)]
pub(crate) struct Attempts(Mutex<HashMap<RequestId, Attempt>>);

impl Attempts {
    /// Of `request`, if it is this process's.
    pub(crate) fn find(&self, request: RequestId) -> Option<Attempt> {
        self.lock().get(&request).copied()
    }

    /// Changes what is remembered of `request`.
    pub(crate) fn note<T>(&self, request: &Request, change: impl FnOnce(&mut Attempt) -> T) -> T {
        let (mut attempts, now) = (self.lock(), SystemClock.now());
        if !attempts.contains_key(&request.id) && attempts.len() >= attempts.capacity() {
            // Before the table grows: some were left to expire, or their release was never confirmed.
            attempts.retain(|_, attempt| now < attempt.noted + OVER);
        }
        let attempt = attempts.entry(request.id).or_insert(Attempt {
            unanswered: None,
            may_hold: false,
            held: None,
            broken: false,
            began: now,
            marked: None,
            pause: Duration::ZERO,
            noted: now,
        });
        attempt.noted = now;
        change(attempt)
    }

    /// `request` holds and waits no more.
    pub(crate) fn forget(&self, request: RequestId) -> Option<Attempt> {
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
    fn what_nobody_asks_for_any_more_is_forgotten_in_the_end() {
        let attempts = Attempts::default();
        let ask = || {
            let name = LockName::new("n").unwrap();
            let request = Request::new(name, Mode::Exclusive, Duration::from_secs(15));
            attempts.note(&request, |attempt| attempt.may_hold = true);
            request.id
        };
        let waits = ask();
        for _ in 0..1000 {
            let gone = ask();
            attempts.lock().get_mut(&gone).unwrap().noted = SystemClock.now() - OVER;
        }
        assert!(attempts.lock().len() < 10, "{}", attempts.lock().len());
        assert!(attempts.find(waits).is_some_and(|attempt| attempt.may_hold));
    }
}
