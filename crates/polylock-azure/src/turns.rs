//! Letting other processes have their turn.
//!
//! Who releases a lock and has another waiter in the same process hands it over in some milliseconds, and the waiters of other
//! processes, which ask once a second, would find it free by chance alone. So a process that has had a lock for a while looks
//! whether others wait, and if they do, leaves it free for as long as the longest of their pauses:
//! 1. who waits for more than a moment leaves a mark beside the lock's blob, and renews it from time to time;
//! 2. who claims a lock that its own process has just released, and has had for [`STINT`] without a break, looks for a mark of
//!    another process;
//! 3. if there is a fresh one, it waits with the claim for [`Place::MAX_RECHECK`], in which every other process asks once.

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
/// For how long a mark counts, and the time after which a waiter renews its own.
pub(crate) const FRESH: Duration = Duration::from_secs(6);
pub(crate) const RENEWED: Duration = Duration::from_secs(4);
/// Who waits for less leaves none.
pub(crate) const MOMENT: Duration = Duration::from_millis(250);

/// Whose turn it is to take a lock that may be free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// This process's.
    Ours,
    /// This process's, unless others wait.
    Up,
    /// Others', for so long.
    Theirs(Duration),
}

/// Since when this process has had a lock, from hand to hand.
#[derive(Debug, Clone, Copy)]
struct Stint {
    since: Moment,
    /// When it was last released.
    released: Moment,
    /// Until when it is left to others.
    theirs: Moment,
}

/// Of the locks that were released lately.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<HashMap<LockName, Stint>>);

impl Turns {
    /// Whose turn it is.
    pub(crate) fn of(&self, name: &LockName) -> Turn {
        let now = SystemClock.now();
        match self.lock().get(name) {
            Some(stint) if now < stint.theirs => Turn::Theirs(stint.theirs.since(now)),
            Some(stint) if now < stint.released + BREAK && now > stint.since + STINT => Turn::Up,
            _ => Turn::Ours,
        }
    }

    /// The lock, had since `granted`, is released.
    pub(crate) fn released(&self, name: &LockName, granted: Moment) {
        let now = SystemClock.now();
        let mut stints = self.lock();
        stints.retain(|other, stint| other == name || now < stint.theirs.max(stint.released + BREAK));
        let since = match stints.get(name) {
            Some(before) if granted < before.released + BREAK => before.since,
            _ => granted,
        };
        stints.insert(name.clone(), Stint { since, released: now, theirs: now });
    }

    /// Others have their turn, for as long as the longest of their pauses.
    pub(crate) fn leave_to_others(&self, name: &LockName) {
        let now = SystemClock.now();
        let stint = Stint { since: now, released: now - BREAK, theirs: now + Place::MAX_RECHECK };
        self.lock().insert(name.clone(), stint);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockName, Stint>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_up_after_a_while_without_a_break() {
        let (turns, name) = (Turns::default(), LockName::new("n").unwrap());
        let ago = |millis| SystemClock.now() - Duration::from_millis(millis);
        assert_eq!(turns.of(&name), Turn::Ours);
        turns.released(&name, ago(400));
        assert_eq!(turns.of(&name), Turn::Ours, "not for long");
        turns.lock().get_mut(&name).unwrap().since = ago(1100);
        turns.released(&name, ago(10));
        assert_eq!(turns.of(&name), Turn::Up, "from hand to hand");
        turns.lock().get_mut(&name).unwrap().released = ago(300);
        assert_eq!(turns.of(&name), Turn::Ours, "it was free meanwhile");
        turns.released(&name, ago(10));
        assert_eq!(turns.of(&name), Turn::Ours, "and that was a break");
    }

    #[test]
    fn what_is_left_to_others_is_left_for_a_second() {
        let (turns, name) = (Turns::default(), LockName::new("n").unwrap());
        turns.leave_to_others(&name);
        assert!(matches!(turns.of(&name), Turn::Theirs(left) if left > Duration::from_millis(500)));
        turns.lock().get_mut(&name).unwrap().theirs = SystemClock.now();
        assert_eq!(turns.of(&name), Turn::Ours);
        turns.lock().get_mut(&name).unwrap().released = SystemClock.now() - BREAK;
        turns.released(&LockName::new("m").unwrap(), SystemClock.now());
        assert_eq!(turns.lock().len(), 1, "what is over is forgotten");
    }
}
