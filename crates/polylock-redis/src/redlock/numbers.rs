//! The numbers that this process proposes: each is greater than the last one, and close to the time.

use std::{collections::HashMap, sync::Mutex};

use polylock_core::{LockName, sync::lock};

/// The time by which a number may be ahead of a server's clock, in us.
const AHEAD: i64 = 60_000_000;

/// The greatest possible number: the scripts count in 64-bit floats, exactly up to 2^53.
const GREATEST: i64 = 9_007_199_254_740_990;

/// The maximum number of locks for which a number far ahead of the clocks is remembered.
const FAR: usize = 1000;

/// The greatest numbers that this process has proposed or received.
#[derive(Debug, Default)]
pub(super) struct Numbers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: i64,
    /// Numbers far ahead of the clocks that servers have accepted, by lock. The number of one lock is refused for the others.
    far: HashMap<LockName, i64>,
}

impl Numbers {
    /// Returns a number that no request of this process has had for the lock `name`: close to the time, in us, that most of `clocks` agree
    /// on, or greater than the numbers that were [followed](Self::follow). `None` if there is none.
    ///
    /// The clocks are those of the servers. This machine's clock does not count, and a wrong clock of a server does not either: the time is
    /// their median.
    pub(super) fn next(&self, name: &LockName, clocks: Vec<i64>) -> Option<i64> {
        let time = median(clocks);
        let mut state = lock(&self.0);
        // The withdrawal of the last number raises the accepted numbers of the servers by one.
        state.last = state.last.saturating_add(2).max(time);
        let mut number = state.last;
        if let Some(far) = state.far.get_mut(name) {
            *far = far.saturating_add(2);
            number = number.max(*far);
        }
        (number <= GREATEST).then_some(number)
    }

    /// Returns the greatest number in `accepted`, the numbers that servers have accepted for the lock `name`, that the next proposal will
    /// exceed; 0 if there is none.
    ///
    /// A number far ahead of `clocks` is followed only if more than `spare` servers have accepted such numbers, so that no majority is
    /// without them: the other servers would refuse it.
    pub(super) fn follow(&self, name: &LockName, accepted: &[i64], spare: usize, clocks: Vec<i64>) -> i64 {
        let time = median(clocks);
        let is_far = |number: i64| number >= time.saturating_add(AHEAD);
        let (far, near): (Vec<i64>, Vec<i64>) = accepted.iter().partition(|number| is_far(**number));
        let greatest = |numbers: &[i64]| numbers.iter().copied().max().unwrap_or(0);
        let mut state = lock(&self.0);
        state.last = state.last.max(greatest(&near));
        if far.len() <= spare {
            return greatest(&near);
        }
        // The numbers that are not far any more are followed by those of all locks.
        let reached = state.far.extract_if(|_, number| !is_far(*number)).map(|(_, number)| number).max();
        state.last = state.last.max(reached.unwrap_or(0));
        if state.far.len() >= FAR {
            state.far.clear();
        }
        let followed = state.far.entry(name.clone()).or_default();
        *followed = greatest(&far).max(*followed);
        *followed
    }

    /// Continues from the time of `clocks`, after a majority has refused a number for the lock `name` as too far ahead:
    /// 1. Most of the servers that this process could reach had a wrong clock, and it proposed a number of their time.
    /// 2. The others can be reached again. They refuse that number, and all greater ones, until their clocks are near it.
    ///
    /// Only later requests are granted the lock before that: a number of a request is never less than one that it has proposed before.
    pub(super) fn restart(&self, name: &LockName, clocks: Vec<i64>) {
        let time = median(clocks);
        let mut state = lock(&self.0);
        state.far.remove(name);
        if state.last >= time.saturating_add(AHEAD) {
            state.last = time;
        }
    }
}

/// Returns true if the number is far ahead of the time that most of `clocks` agree on.
pub(super) fn is_far(number: i64, clocks: Vec<i64>) -> bool {
    number >= median(clocks).saturating_add(AHEAD)
}

/// Returns the time that most clocks agree on: the median, the lower one of an even number.
fn median(mut clocks: Vec<i64>) -> i64 {
    clocks.sort_unstable();
    if clocks.is_empty() { 0 } else { clocks[(clocks.len() - 1) / 2] }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000_000;

    fn names() -> [LockName; 2] {
        ["a", "b"].map(|name| LockName::new(name).unwrap())
    }

    #[test]
    fn numbers_grow_and_follow_the_median_of_the_clocks() {
        let (numbers, [a, b]) = (Numbers::default(), names());
        assert_eq!(numbers.next(&a, vec![1000, 5, 990]), Some(990));
        assert_eq!(numbers.next(&b, vec![1000, 5, 990]), Some(992));
        let next = numbers.next(&a, vec![900_000, 2000, 1]);
        assert_eq!(next, Some(2000), "neither the fast clock nor the slow one");
        assert_eq!(numbers.follow(&a, &[3000, 2500], 2, vec![2000]), 3000);
        assert_eq!(numbers.next(&b, Vec::new()), Some(3002));
        assert_eq!(numbers.next(&a, vec![4000, 9000]), Some(4000));
    }

    #[test]
    fn far_numbers_are_followed_only_if_most_servers_have_them() {
        let (numbers, [a, b]) = (Numbers::default(), names());
        assert_eq!(numbers.next(&a, vec![1000]), Some(1000));
        assert_eq!(numbers.follow(&a, &[HOUR, 5000], 2, vec![1000]), 5000);
        assert_eq!(numbers.next(&a, vec![1000]), Some(5002));
        assert_eq!(numbers.follow(&a, &[HOUR, 5000, 5000, HOUR + 1], 2, vec![1000]), 5000);
        assert_eq!(numbers.follow(&a, &[HOUR, 5000, HOUR + 1, HOUR], 2, vec![1000]), HOUR + 1);
        assert_eq!(numbers.next(&a, vec![1000]), Some(HOUR + 3));
        assert_eq!(numbers.next(&b, vec![1000]), Some(5006), "another lock does not follow");
        assert_eq!(numbers.next(&a, vec![1000]), Some(HOUR + 5));
        assert_eq!(numbers.next(&a, vec![2 * HOUR]), Some(2 * HOUR), "the clocks have caught up");
    }

    #[test]
    fn numbers_that_a_majority_refuses_are_not_continued() {
        let (numbers, [a, b]) = (Numbers::default(), names());
        let clocks = || vec![1000, 1001, 1002, HOUR, HOUR];
        assert_eq!(numbers.next(&a, vec![1000, HOUR, HOUR]), Some(HOUR), "the others can't be reached");
        assert_eq!(numbers.next(&b, clocks()), Some(HOUR + 2));
        numbers.restart(&a, clocks());
        assert_eq!(numbers.next(&a, clocks()), Some(1004));
        numbers.restart(&a, clocks());
        assert_eq!(numbers.next(&b, clocks()), Some(1006), "the last number was not far ahead");
        numbers.follow(&a, &[HOUR; 3], 2, clocks());
        numbers.restart(&a, clocks());
        assert_eq!(numbers.next(&a, clocks()), Some(1008), "the servers have forgotten that number");
    }

    #[test]
    fn no_number_exceeds_the_exact_range_of_a_script() {
        let (numbers, [a, b]) = (Numbers::default(), names());
        numbers.follow(&a, &[GREATEST - 2; 2], 1, vec![1000]);
        assert_eq!(numbers.next(&a, vec![1000]), Some(GREATEST));
        assert_eq!(numbers.next(&a, vec![1000]), None);
        numbers.follow(&a, &[i64::MAX; 2], 1, vec![1000]);
        assert_eq!(numbers.next(&a, vec![1000]), None);
        assert!(numbers.next(&b, vec![1000]).is_some(), "another lock");
    }
}
