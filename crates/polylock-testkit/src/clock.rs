//! A clock that only a test advances.

use std::{
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, Waker},
    time::Duration,
};

use polylock_core::{
    Clock,
    clock::{Moment, Sleep},
    sync::lock,
};

/// A clock that stands still until [`advance`](Self::advance) moves it: it simulates a suspended machine, a paused process, or an hour in
/// no time. Clones share one clock.
///
/// ```
/// use std::time::Duration;
/// use polylock_core::Clock;
/// use polylock_testkit::ManualClock;
///
/// let clock = ManualClock::new();
/// let before = clock.now();
/// clock.advance(Duration::from_secs(3600));
/// assert_eq!(clock.now().since(before), Duration::from_secs(3600));
/// ```
#[derive(Debug, Clone, Default)]
pub struct ManualClock(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    now: Moment,
    sleepers: Vec<(Moment, u64, Waker)>,
    next: u64,
}

impl Default for State {
    fn default() -> Self {
        // The time starts well after the origin, so that subtractions do not saturate.
        Self { now: Moment::from_nanos(1_000_000_000_000), sleepers: Vec::new(), next: 0 }
    }
}

impl ManualClock {
    /// Creates a stopped clock.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Advances the clock by `time`, and wakes the sleepers that are due.
    pub fn advance(&self, time: Duration) {
        let mut state = self.lock();
        state.now = state.now + time;
        let now = state.now;
        let (due, later) = state.sleepers.drain(..).partition(|(at, ..)| *at <= now);
        state.sleepers = later;
        drop(state);
        let due: Vec<(Moment, u64, Waker)> = due;
        due.into_iter().for_each(|(_, _, waker)| waker.wake());
    }

    /// Returns the time at which the earliest sleeper wakes.
    #[must_use]
    pub fn next_wake(&self) -> Option<Moment> {
        self.lock().sleepers.iter().map(|(at, ..)| *at).min()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        self.lock().now
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        let mut sleeper = Sleeper { clock: self.clone(), at, id: None };
        Box::pin(poll_fn(move |context| sleeper.poll(context)))
    }
}

/// One sleep. It removes itself from the list when it is dropped.
struct Sleeper {
    clock: ManualClock,
    at: Moment,
    id: Option<u64>,
}

impl Sleeper {
    fn poll(&mut self, context: &Context<'_>) -> Poll<()> {
        let mut state = self.clock.lock();
        if state.now >= self.at {
            return Poll::Ready(());
        }
        let id = *self.id.get_or_insert_with(|| {
            state.next += 1;
            state.next
        });
        state.sleepers.retain(|(_, of, _)| *of != id);
        state.sleepers.push((self.at, id, context.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.clock.lock().sleepers.retain(|(_, of, _)| *of != id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn a_sleeper_wakes_at_its_time_and_removes_itself() {
        let clock = ManualClock::new();
        let at = clock.now() + Duration::from_secs(10);
        let mut sleep = clock.sleep_until(at);
        assert!(sleep.as_mut().now_or_never().is_none());
        assert_eq!(clock.next_wake(), Some(at));
        clock.advance(Duration::from_secs(9));
        assert!(sleep.as_mut().now_or_never().is_none());
        clock.advance(Duration::from_secs(1));
        assert!(sleep.now_or_never().is_some());
        let mut dropped = clock.sleep_until(at + Duration::from_secs(1));
        assert!(dropped.as_mut().now_or_never().is_none());
        drop(dropped);
        assert_eq!(clock.next_wake(), None);
    }
}
