//! Fairness between processes.
//!
//! A process that releases a lock and has another waiter hands it over in some milliseconds, and the waiters of other processes, which poll
//! once a second, would find it free by chance alone. So a process that has held a lock for a while checks if other processes wait, and if
//! they do, leaves the lock free for as long as the longest of their pauses:
//! 1. a waiter that has waited for more than a moment writes a marker beside the lock's blob, and renews it from time to time;
//! 2. before a process claims a lock that it has just released, and has held for [`MAX_STREAK`] without a gap, it looks for the marker of
//!    another process;
//! 3. if there is a fresh one, the claim waits for [`QueuePosition::MAX_RECHECK`], in which every other process polls once.
//!
//! The head of the local queue does not poll if a request of its own process has only just been granted the lock.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use polylock_core::{Clock, LockName, Moment, QueuePosition, SystemClock, sync::lock};

/// The time for which a process may pass a lock from one of its waiters to the next before it looks for other processes.
const MAX_STREAK: Duration = Duration::from_millis(500);
/// The gap after a release above which the lock counts as having been free for other processes.
const MAX_GAP: Duration = Duration::from_millis(250);
/// The time for which a marker counts, and the age at which a waiter renews its own, with its next request, a second later at most. Markers
/// are writes, which the service charges more for than a refused acquisition.
pub(crate) const MARKER_LIFETIME: Duration = Duration::from_secs(7);
pub(crate) const MARKER_RENEWAL: Duration = Duration::from_secs(5);
/// Waiters younger than this write no marker.
pub(crate) const MARKER_DELAY: Duration = Duration::from_millis(250);

/// The decision about the next claim of a lock that may be free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// This process may claim.
    Proceed,
    /// This process may claim unless other processes wait.
    CheckForOthers,
    /// This process must not claim for this long: it leaves the lock to others, or has only just granted it to one of its requests.
    Yield(Duration),
}

/// The recent use of a lock by this process.
#[derive(Debug, Clone, Copy)]
struct Streak {
    /// The start of the present use, through consecutive holders.
    since: Moment,
    /// The times of the last grant and the last release.
    granted: Moment,
    released: Moment,
    /// The time until which the lock is left to other processes.
    yielded_until: Moment,
}

impl Streak {
    fn new(now: Moment) -> Self {
        Self {
            since: now,
            granted: Moment::from_nanos(0),
            released: Moment::from_nanos(0),
            yielded_until: now,
        }
    }

    /// Returns true if the last release was less than [`MAX_GAP`] ago.
    fn is_continuous(&self, now: Moment) -> bool {
        now < self.released + MAX_GAP
    }

    /// Returns the time until which no request of this process claims the lock.
    fn blocked_until(&self) -> Moment {
        if self.granted > self.released {
            self.granted + QueuePosition::MAX_RECHECK
        } else {
            self.yielded_until
        }
    }
}

/// The locks that this process has used recently.
#[derive(Debug, Default)]
pub(crate) struct Fairness(Mutex<HashMap<LockName, Streak>>);

impl Fairness {
    /// Returns the decision about the next claim.
    pub(crate) fn decide(&self, name: &LockName) -> Decision {
        let now = SystemClock.now();
        match self.lock().get(name) {
            Some(streak) if now < streak.blocked_until() => {
                Decision::Yield(streak.blocked_until().since(now))
            }
            Some(streak) if streak.is_continuous(now) && now > streak.since + MAX_STREAK => {
                Decision::CheckForOthers
            }
            _ => Decision::Proceed,
        }
    }

    /// Records that the lock was granted to a request of this process.
    pub(crate) fn granted(&self, name: &LockName) {
        self.change(name, |streak, now| {
            if !streak.is_continuous(now) {
                streak.since = now;
            }
            streak.granted = now;
        });
    }

    /// Records that this process has released the lock.
    pub(crate) fn released(&self, name: &LockName) {
        self.change(name, |streak, now| streak.released = now);
    }

    /// Starts a new streak of this process, because no other process waits.
    pub(crate) fn restart(&self, name: &LockName) {
        self.change(name, |streak, now| streak.since = now);
    }

    /// Leaves the lock to other processes, for as long as the longest of their pauses.
    pub(crate) fn yield_to_others(&self, name: &LockName) {
        self.change(name, |streak, now| streak.yielded_until = now + QueuePosition::MAX_RECHECK);
    }

    fn change(&self, name: &LockName, change: impl FnOnce(&mut Streak, Moment)) {
        let now = SystemClock.now();
        let mut streaks = self.lock();
        if streaks.len() >= streaks.capacity() {
            // Before the table grows, obsolete entries are removed.
            streaks.retain(|_, streak| streak.is_continuous(now) || now < streak.blocked_until());
        }
        change(streaks.entry(name.clone()).or_insert_with(|| Streak::new(now)), now);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockName, Streak>> {
        lock(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Lock(Fairness, LockName);

    impl Lock {
        fn new() -> Self {
            Self(Fairness::default(), LockName::new("n").unwrap())
        }

        fn decision(&self) -> Decision {
            self.0.decide(&self.1)
        }

        /// Moves all times back by this much.
        fn elapse(&self, millis: u64) {
            let by = Duration::from_millis(millis);
            for streak in self.0.lock().values_mut() {
                streak.since = streak.since - by;
                streak.granted = streak.granted - by;
                streak.released = streak.released - by;
                streak.yielded_until = streak.yielded_until - by;
            }
        }

        fn use_for(&self, millis: u64) {
            self.0.granted(&self.1);
            self.elapse(millis);
            self.0.released(&self.1);
        }
    }

    #[test]
    fn a_long_streak_without_a_gap_checks_for_others() {
        let lock = Lock::new();
        assert_eq!(lock.decision(), Decision::Proceed);
        lock.use_for(300);
        assert_eq!(lock.decision(), Decision::Proceed, "a short streak");
        lock.elapse(10);
        lock.use_for(300);
        assert_eq!(lock.decision(), Decision::CheckForOthers, "two holders without a gap");
        lock.0.restart(&lock.1);
        assert_eq!(lock.decision(), Decision::Proceed, "it has checked");
        lock.use_for(600);
        assert_eq!(lock.decision(), Decision::CheckForOthers);
        lock.elapse(300);
        assert_eq!(lock.decision(), Decision::Proceed, "the lock was free in between");
        lock.use_for(400);
        assert_eq!(lock.decision(), Decision::Proceed, "the gap started a new streak");
    }

    #[test]
    fn a_yielded_lock_is_left_free_for_a_second() {
        let lock = Lock::new();
        lock.use_for(600);
        lock.0.yield_to_others(&lock.1);
        assert!(matches!(lock.decision(), Decision::Yield(left) if left > Duration::from_millis(500)));
        lock.elapse(1000);
        assert_eq!(lock.decision(), Decision::Proceed);
    }

    #[test]
    fn the_process_does_not_poll_right_after_its_own_grant() {
        let lock = Lock::new();
        lock.0.granted(&lock.1);
        assert!(matches!(lock.decision(), Decision::Yield(left) if left > Duration::from_millis(500)));
        lock.elapse(1000);
        assert_eq!(lock.decision(), Decision::Proceed, "the hold may have been broken");
        lock.0.granted(&lock.1);
        lock.0.released(&lock.1);
        assert_eq!(lock.decision(), Decision::Proceed);
    }

    #[test]
    fn old_streaks_are_removed() {
        let lock = Lock::new();
        for number in 0..10_000 {
            lock.0.released(&LockName::new(number.to_string()).unwrap());
            lock.elapse(if number % 100 == 0 { 1000 } else { 0 });
        }
        assert!(lock.0.lock().len() < 1000);
    }
}
