//! The numbers that this process proposes: each greater than the last, and about the time.

use std::sync::atomic::{AtomicI64, Ordering};

/// How far ahead of its clock a node accepts a number, in us.
const AHEAD: i64 = 60_000_000;

/// The greatest number proposed or heard of.
#[derive(Debug, Default)]
pub(super) struct Numbers(AtomicI64);

impl Numbers {
    /// One that nobody in this process has had; about the time, in us, that most of `clocks` agree on.
    ///
    /// The clocks are the nodes'. This machine's own does not count, and one of theirs that is wrong neither: the number is
    /// no more than their median.
    pub(super) fn next(&self, clocks: Vec<i64>) -> i64 {
        let time = median(clocks);
        // By more than the release of the last one raises what nodes have accepted.
        let next = |last: i64| last.saturating_add(2).max(time);
        next(self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last))).unwrap_or(0))
    }

    /// That many nodes have accepted these.
    ///
    /// Those far ahead of `clocks` are followed only if more than `spare` nodes have accepted such, so that no majority is
    /// without them: all others would refuse what follows.
    pub(super) fn saw(&self, accepted: &[i64], spare: usize, clocks: Vec<i64>) {
        let end = median(clocks).saturating_add(AHEAD);
        let far = accepted.iter().filter(|number| **number >= end).count();
        let followed = accepted.iter().filter(|number| **number < end || far > spare);
        if let Some(greatest) = followed.max() {
            self.0.fetch_max(*greatest, Ordering::Relaxed);
        }
    }
}

/// What most clocks agree on; of an even number, the lower one.
fn median(mut clocks: Vec<i64>) -> i64 {
    clocks.sort_unstable();
    if clocks.is_empty() { 0 } else { clocks[(clocks.len() - 1) / 2] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_grow_and_follow_most_clocks() {
        let numbers = Numbers::default();
        assert_eq!(numbers.next(vec![1000, 5, 990]), 990);
        assert_eq!(numbers.next(vec![1000, 5, 990]), 992);
        assert_eq!(numbers.next(vec![900_000, 2000, 1]), 2000, "neither the fast clock nor the slow one");
        numbers.saw(&[3000, 2500], 2, vec![2000]);
        assert_eq!(numbers.next(Vec::new()), 3002);
        assert_eq!(numbers.next(vec![4000, 9000]), 4000);
    }

    #[test]
    fn one_node_far_ahead_is_not_followed_and_most_of_them_are() {
        let (numbers, hour) = (Numbers::default(), 3_600_000_000);
        assert_eq!(numbers.next(vec![1000]), 1000);
        numbers.saw(&[hour, 5000], 2, vec![1000]);
        assert_eq!(numbers.next(vec![1000]), 5002);
        numbers.saw(&[hour, 5000, 5000, hour + 1], 2, vec![1000]);
        assert_eq!(numbers.next(vec![1000]), 5004);
        numbers.saw(&[hour, 5000, hour + 1, hour], 2, vec![1000]);
        assert_eq!(numbers.next(vec![1000]), hour + 3);
    }
}
