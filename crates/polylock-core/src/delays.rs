//! Measures how long the polls on an I/O thread take and how late its wake-ups come, and warns with the cause.
//!
//! A store whose code blocks its thread delays the renewals of all its locks. Nothing can prevent that in its own thread, so it must
//! not happen silently.

use std::{
    future::Future,
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;

use crate::{Clock, Moment, SystemClock};

/// A poll that takes longer has blocked: far more than a busy machine makes of one.
const BLOCKED: Duration = Duration::from_millis(250);

/// A wake-up that comes later is reported.
const LATE: Duration = Duration::from_millis(250);

/// The time from one warning to the next.
const PAUSE: Duration = Duration::from_secs(5);

/// The delays of one I/O thread.
#[derive(Debug)]
pub(crate) struct Delays {
    backend: &'static str,
    blocked: Quiet,
    late: Quiet,
}

impl Delays {
    pub(crate) const fn new(backend: &'static str) -> Self {
        Self { backend, blocked: Quiet::new(), late: Quiet::new() }
    }

    /// `future`, each poll of which is measured; `what` names it.
    pub(crate) fn measured<F: Future>(&'static self, what: &'static str, future: F) -> Measured<F> {
        Measured { future, what, delays: self }
    }

    /// A timer for `at` has just woken its task.
    pub(crate) fn woken(&self, at: Moment) {
        let now = SystemClock.now();
        let late = now.since(at);
        if late > LATE && self.late.is_over(now) {
            tracing::warn!(
                store = self.backend,
                ?late,
                "the I/O thread of a store was late: the machine is overloaded or was suspended, or the store has blocked it",
            );
        }
    }

    fn polled(&self, what: &'static str, took: Duration, now: Moment) {
        if took > BLOCKED && self.blocked.is_over(now) {
            tracing::warn!(
                store = self.backend,
                operation = what,
                ?took,
                "the store has blocked its I/O thread: its locks were not renewed meanwhile",
            );
        }
    }
}

/// Keeps a warning from being repeated at once.
#[derive(Debug)]
struct Quiet(AtomicU64);

impl Quiet {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Whether a warning may be given now; then it begins anew.
    fn is_over(&self, now: Moment) -> bool {
        let (now, until) = (now.as_nanos(), (now + PAUSE).as_nanos());
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |quiet| (quiet <= now).then_some(until))
            .is_ok()
    }
}

pin_project! {
    /// A future whose polls are measured.
    pub(crate) struct Measured<F> {
        #[pin]
        future: F,
        what: &'static str,
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
        this.delays.polled(this.what, now.since(began), now);
        poll
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_not_repeated_at_once() {
        let (quiet, now) = (Quiet::new(), Moment::from_nanos(7));
        assert!(quiet.is_over(now) && !quiet.is_over(now + PAUSE / 2));
        assert!(quiet.is_over(now + PAUSE) && !quiet.is_over(now + PAUSE));
    }
}
