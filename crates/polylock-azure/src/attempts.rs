//! What this process remembers of its requests: what was asked for them, and until when they hold.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use polylock_core::{Clock, Moment, Request, RequestId, SystemClock};

/// What is remembered of one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    /// When an acquisition was last asked for that has not been answered, and may come true yet.
    pub(crate) unanswered: Option<Moment>,
    /// Whether it may have a lease.
    pub(crate) may_hold: bool,
    /// How long its lease lasts, and until when, had nobody heard of us since.
    pub(crate) held: Option<(Duration, Moment)>,
    /// Since when it has held, as far as we know.
    pub(crate) granted: Option<Moment>,
    /// Since when it has been asked for.
    pub(crate) began: Moment,
    /// When it last left a mark for other processes.
    pub(crate) marked: Option<Moment>,
    /// The pause before it asks again.
    pub(crate) pause: Duration,
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
        let mut attempts = self.lock();
        if !attempts.contains_key(&request.id) && attempts.len() >= attempts.capacity() {
            // Before the table grows: some were left to expire, and nobody will ask for them again.
            let now = SystemClock.now();
            attempts.retain(|_, attempt| attempt.held.is_none_or(|(lease, until)| now < until + lease));
        }
        let attempt = attempts.entry(request.id).or_insert(Attempt {
            unanswered: None,
            may_hold: false,
            held: None,
            granted: None,
            began: SystemClock.now(),
            marked: None,
            pause: Duration::ZERO,
        });
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
