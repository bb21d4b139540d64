//! The numbers that this process proposes: each greater than the last, and about the time.

use std::sync::atomic::{AtomicI64, Ordering};

/// The greatest number proposed or heard of.
#[derive(Debug, Default)]
pub(super) struct Numbers(AtomicI64);

impl Numbers {
    /// One that nobody in this process has had; about the time, in us, that most of `clocks` agree on.
    ///
    /// The clocks are the nodes'. This machine's own does not count, and one of theirs that is wrong neither: the number is
    /// no more than their median.
    pub(super) fn next(&self, mut clocks: Vec<i64>) -> i64 {
        clocks.sort_unstable();
        let time = if clocks.is_empty() { 0 } else { clocks[(clocks.len() - 1) / 2] };
        let next = |last: i64| last.saturating_add(1).max(time);
        next(self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last))).unwrap_or(0))
    }

    /// A node has accepted this one.
    pub(super) fn saw(&self, number: i64) {
        self.0.fetch_max(number, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_grow_and_follow_most_clocks() {
        let numbers = Numbers::default();
        assert_eq!(numbers.next(vec![1000, 5, 990]), 990);
        assert_eq!(numbers.next(vec![1000, 5, 990]), 991);
        assert_eq!(numbers.next(vec![900_000, 2000, 1]), 2000, "neither the fast clock nor the slow one");
        numbers.saw(3000);
        numbers.saw(2500);
        assert_eq!(numbers.next(Vec::new()), 3001);
        assert_eq!(numbers.next(vec![4000, 9000]), 4000);
    }
}
