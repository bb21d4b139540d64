//! Letting other processes have their turn.
//!
//! Who releases a lock and has another waiter in the same process hands it over in some milliseconds, and the waiters of other
//! processes, which ask once a second, would find it free by chance alone. So a process that has had a lock for a while looks
//! whether others wait, and if they do, leaves it free for as long as the longest of their pauses:
//! 1. who waits for more than a moment leaves a mark beside the lock's blob, and renews it from time to time;
//! 2. who claims a lock that its own process has just released, and has had for [`STINT`] without a break, looks for a mark of
//!    another process;
//! 3. if there is a fresh one, it waits with the claim for [`Place::MAX_RECHECK`], in which every other process asks once.
//!
//! And who stands first in the line of a process that has only just been granted the lock need not ask whether it is free.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use polylock_core::{Clock, LockName, Moment, Place, SystemClock};

/// How long a process may hand a lock from one of its waiters to the next until it looks for others.
const STINT: Duration = Duration::from_millis(500);
/// A claim that comes later than this after a release of the same process found the lock free for others.
const BREAK: Duration = Duration::from_millis(250);
/// For how long a mark counts, and the age at which a waiter renews its own: with its next request, a second later at the most. Marks
/// are written, which the service charges more for than a refused acquisition.
pub(crate) const FRESH: Duration = Duration::from_secs(7);
pub(crate) const RENEWED: Duration = Duration::from_secs(5);
/// Who waits for less leaves none.
pub(crate) const MOMENT: Duration = Duration::from_millis(250);

/// Whose turn it is to take a lock that may be free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// This process's.
    Ours,
    /// This process's, unless others wait.
    Up,
    /// Nobody's here, for so long: it is others', or one of this process has only just been granted it.
    Nobodys(Duration),
}

/// What this process has had of a lock lately.
#[derive(Debug, Clone, Copy)]
struct Stint {
    /// Since when it has it, from hand to hand.
    since: Moment,
    /// When it was last granted, and when released.
    granted: Moment,
    released: Moment,
    /// Until when it is left to others.
    theirs: Moment,
}

impl Stint {
    fn new(now: Moment) -> Self {
        Self { since: now, granted: Moment::from_nanos(0), released: Moment::from_nanos(0), theirs: now }
    }

    /// Whether it was released within a [`BREAK`].
    fn goes_on(&self, now: Moment) -> bool {
        now < self.released + BREAK
    }

    /// Until when nobody here asks for it.
    fn nobodys(&self) -> Moment {
        if self.granted > self.released { self.granted + Place::MAX_RECHECK } else { self.theirs }
    }
}

/// Of the locks that this process has had lately.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<HashMap<LockName, Stint>>);

impl Turns {
    /// Whose turn it is.
    pub(crate) fn of(&self, name: &LockName) -> Turn {
        let now = SystemClock.now();
        match self.lock().get(name) {
            Some(stint) if now < stint.nobodys() => Turn::Nobodys(stint.nobodys().since(now)),
            Some(stint) if stint.goes_on(now) && now > stint.since + STINT => Turn::Up,
            _ => Turn::Ours,
        }
    }

    /// The lock is granted to one of this process.
    pub(crate) fn granted(&self, name: &LockName) {
        self.change(name, |stint, now| {
            if !stint.goes_on(now) {
                stint.since = now;
            }
            stint.granted = now;
        });
    }

    /// It has it no more.
    pub(crate) fn released(&self, name: &LockName) {
        self.change(name, |stint, now| stint.released = now);
    }

    /// Nobody else waits: this process has another turn.
    pub(crate) fn begins_anew(&self, name: &LockName) {
        self.change(name, |stint, now| stint.since = now);
    }

    /// Others have their turn, for as long as the longest of their pauses.
    pub(crate) fn leave_to_others(&self, name: &LockName) {
        self.change(name, |stint, now| stint.theirs = now + Place::MAX_RECHECK);
    }

    fn change(&self, name: &LockName, change: impl FnOnce(&mut Stint, Moment)) {
        let now = SystemClock.now();
        let mut stints = self.lock();
        if stints.len() >= stints.capacity() {
            // Before the table grows.
            stints.retain(|_, stint| stint.goes_on(now) || now < stint.nobodys());
        }
        change(stints.entry(name.clone()).or_insert_with(|| Stint::new(now)), now);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockName, Stint>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Lock(Turns, LockName);

    impl Lock {
        fn new() -> Self {
            Self(Turns::default(), LockName::new("n").unwrap())
        }

        fn turn(&self) -> Turn {
            self.0.of(&self.1)
        }

        /// Everything was so much longer ago.
        fn wait(&self, millis: u64) {
            let by = Duration::from_millis(millis);
            for stint in self.0.lock().values_mut() {
                stint.since = stint.since - by;
                stint.granted = stint.granted - by;
                stint.released = stint.released - by;
                stint.theirs = stint.theirs - by;
            }
        }

        fn had(&self, millis: u64) {
            self.0.granted(&self.1);
            self.wait(millis);
            self.0.released(&self.1);
        }
    }

    #[test]
    fn a_turn_is_up_after_a_while_without_a_break() {
        let lock = Lock::new();
        assert_eq!(lock.turn(), Turn::Ours);
        lock.had(300);
        assert_eq!(lock.turn(), Turn::Ours, "not for long");
        lock.wait(10);
        lock.had(300);
        assert_eq!(lock.turn(), Turn::Up, "from hand to hand");
        lock.0.begins_anew(&lock.1);
        assert_eq!(lock.turn(), Turn::Ours, "it has looked");
        lock.had(600);
        assert_eq!(lock.turn(), Turn::Up);
        lock.wait(300);
        assert_eq!(lock.turn(), Turn::Ours, "it was free meanwhile");
        lock.had(400);
        assert_eq!(lock.turn(), Turn::Ours, "which was a break");
    }

    #[test]
    fn what_is_left_to_others_is_left_for_a_second() {
        let lock = Lock::new();
        lock.had(600);
        lock.0.leave_to_others(&lock.1);
        assert!(matches!(lock.turn(), Turn::Nobodys(left) if left > Duration::from_millis(500)));
        lock.wait(1000);
        assert_eq!(lock.turn(), Turn::Ours);
    }

    #[test]
    fn nobody_asks_for_what_one_of_us_has_only_just_been_granted() {
        let lock = Lock::new();
        lock.0.granted(&lock.1);
        assert!(matches!(lock.turn(), Turn::Nobodys(left) if left > Duration::from_millis(500)));
        lock.wait(1000);
        assert_eq!(lock.turn(), Turn::Ours, "it may have been broken");
        lock.0.granted(&lock.1);
        lock.0.released(&lock.1);
        assert_eq!(lock.turn(), Turn::Ours);
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let lock = Lock::new();
        for number in 0..10_000 {
            lock.0.released(&LockName::new(number.to_string()).unwrap());
            lock.wait(if number % 100 == 0 { 1000 } else { 0 });
        }
        assert!(lock.0.lock().len() < 1000);
    }
}
