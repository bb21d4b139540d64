//! Measures the duration of the polls on an I/O thread and the delay of its wake-ups, and warns with the cause.
//!
//! A store that blocks its thread delays the renewals of all its locks. Nothing can prevent that in its own thread, so it is
//! reported.

use std::{
    future::Future,
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;

use crate::{Clock, Moment, SystemClock};

/// The duration above which a poll counts as blocking: much longer than a poll takes on a busy machine.
const BLOCKED: Duration = Duration::from_millis(250);

/// The delay above which a wake-up is reported.
const LATE: Duration = Duration::from_millis(250);

/// The time from one warning to the next.
const PAUSE: Duration = Duration::from_secs(5);

/// The delays of one I/O thread.
#[derive(Debug)]
pub(crate) struct Delays {
    backend: &'static str,
    blocked: RateLimit,
    late: RateLimit,
}

impl Delays {
    pub(crate) const fn new(backend: &'static str) -> Self {
        Self { backend, blocked: RateLimit::new(), late: RateLimit::new() }
    }

    /// Returns `future` with each poll measured; `label` names it in warnings.
    pub(crate) fn measured<F: Future>(&'static self, label: &'static str, future: F) -> Measured<F> {
        Measured { future, label, delays: self }
    }

    /// Reports a wake-up by a timer for `at` that has just fired, if it is late.
    pub(crate) fn timer_fired(&self, at: Moment) {
        let now = SystemClock.now();
        let late = now.since(at);
        if late > LATE && self.late.allows(now) {
            tracing::warn!(
                store = self.backend,
                ?late,
                "the I/O thread of a store was late: the machine is overloaded or was suspended, or the store has blocked the thread",
            );
        }
    }

    fn polled(&self, label: &'static str, took: Duration, now: Moment) {
        if took > BLOCKED && self.blocked.allows(now) {
            tracing::warn!(
                store = self.backend,
                operation = label,
                ?took,
                "the store has blocked its I/O thread: no lock of the store was renewed in that time",
            );
        }
    }
}

/// Limits the rate of a warning.
#[derive(Debug)]
struct RateLimit(AtomicU64);

impl RateLimit {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Returns true if a warning may be given now, and begins the next pause.
    fn allows(&self, now: Moment) -> bool {
        let (now, until) = (now.as_nanos(), (now + PAUSE).as_nanos());
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |limit| (limit <= now).then_some(until))
            .is_ok()
    }
}

pin_project! {
    /// A future with measured polls.
    pub(crate) struct Measured<F> {
        #[pin]
        future: F,
        label: &'static str,
        delays: &'static Delays,
    }
}

impl<F: Future> Future for Measured<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let began = SystemClock.now();
        let poll = this.future.poll(cx);
        let now = SystemClock.now();
        this.delays.polled(this.label, now.since(began), now);
        poll
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_not_repeated_at_once() {
        let (limit, now) = (RateLimit::new(), Moment::from_nanos(7));
        assert!(limit.allows(now) && !limit.allows(now + PAUSE / 2));
        assert!(limit.allows(now + PAUSE) && !limit.allows(now + PAUSE));
    }
}
