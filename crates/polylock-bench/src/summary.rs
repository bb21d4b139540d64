//! Throughput, latencies and fairness of a history of critical sections. [`polylock_testkit::history`] checks its correctness.

use std::{collections::BTreeMap, fmt, time::Duration};

use polylock_testkit::history::{self, Rules, Section};

use crate::{Result, Times, times::per};

/// The throughput, latencies and fairness of the sections of one lock.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Summary {
    /// The time from the first request to the last release.
    pub elapsed: Duration,
    /// The number of sections.
    pub sections: u64,
    /// The times from the request to the grant.
    pub wait: Times,
    /// The times from the call of a release to the next grant.
    pub hand_over: Times,
    /// The number of hand-overs to a client other than the releaser.
    pub to_another: u64,
    /// The sections of each client, in ascending order, when the first client has finished: afterwards fewer clients compete.
    pub shares: Vec<u64>,
}

impl Summary {
    /// Summarizes `sections`, which must be of one exclusive lock.
    #[must_use]
    pub fn of(sections: &[Section]) -> Self {
        let mut sections: Vec<&Section> = sections.iter().collect();
        sections.sort_by_key(|section| section.acquired);
        let between = |from: u64, to: u64| Duration::from_nanos(to.saturating_sub(from));
        let pairs = || sections.windows(2).map(|pair| (pair[0], pair[1]));
        let began = sections.iter().map(|section| section.invoked).min().unwrap_or(0);
        let ended = sections.iter().map(|section| section.end()).max().unwrap_or(0);
        Self {
            elapsed: between(began, ended),
            sections: sections.len() as u64,
            wait: sections.iter().map(|section| between(section.invoked, section.acquired)).collect(),
            hand_over: pairs().map(|(first, next)| between(first.end(), next.acquired)).collect(),
            to_another: pairs().filter(|(first, next)| first.client != next.client).count() as u64,
            shares: shares(&sections),
        }
    }

    /// Checks `sections` with [`history::check`], and summarizes them.
    ///
    /// # Errors
    /// [`Error::Violation`](crate::Error::Violation) if the history breaks a promise of the store.
    pub fn of_correct(sections: &[Section]) -> Result<Self> {
        match history::check(sections, Rules::default()).into_iter().next() {
            Some(violation) => Err(violation.into()),
            None => Ok(Self::of(sections)),
        }
    }

    /// Returns the minimum share divided by the maximum share: 1 is fair.
    #[must_use]
    pub fn fairness(&self) -> f64 {
        let (min, max) = self.share_range();
        per(min, per(max.max(1), 1.0))
    }

    /// Returns the minimum and the maximum of the shares.
    #[must_use]
    pub fn share_range(&self) -> (u64, u64) {
        (self.shares.first().copied().unwrap_or(0), self.shares.last().copied().unwrap_or(0))
    }

    /// Returns Jain's index of the shares: 1 if all clients had the same number of sections, 1/n if one of n had all.
    #[must_use]
    pub fn jain(&self) -> f64 {
        let (sum, squares) = self.shares.iter().fold((0.0, 0.0), |(sum, squares), share| {
            let share = per(*share, 1.0);
            (sum + share, squares + share * share)
        });
        sum * sum / (per(self.shares.len() as u64, 1.0) * squares).max(f64::EPSILON)
    }

    /// Returns the share of the hand-overs that went to another client than the releaser.
    #[must_use]
    pub fn share_to_another(&self) -> f64 {
        per(self.to_another, per(self.sections.saturating_sub(1).max(1), 1.0))
    }

    /// Returns the sections per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        per(self.sections, self.elapsed.as_secs_f64())
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (min, max) = self.share_range();
        write!(
            f,
            "{} sections in {:.2?} ({:.0}/s, {} to another); hand-over p50 {:.2?}, p99 {:.2?}; wait p99 {:.2?}, max \
             {:.2?}; fairness {:.2} ({min} to {max})",
            self.sections,
            self.elapsed,
            self.rate(),
            self.to_another,
            self.hand_over.p50(),
            self.hand_over.p99(),
            self.wait.p99(),
            self.wait.max(),
            self.fairness(),
        )
    }
}

/// Returns the number of sections of each client, in ascending order, up to the last section of the client that finished first.
fn shares(sections: &[&Section]) -> Vec<u64> {
    let mut last: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, section) in sections.iter().enumerate() {
        last.insert(&section.client, at);
    }
    let until = last.values().copied().min().unwrap_or(0);
    let mut count: BTreeMap<&str, u64> = last.into_keys().map(|client| (client, 0)).collect();
    for section in sections.iter().take(until + 1) {
        *count.entry(&section.client).or_default() += 1;
    }
    let mut shares: Vec<u64> = count.into_values().collect();
    shares.sort_unstable();
    shares
}

#[cfg(test)]
mod tests {
    use polylock::Mode;

    use super::*;
    use crate::Error;

    fn section(client: &str, acquiring: std::ops::Range<u64>, released: u64) -> Section {
        Section::new("n", client, Mode::Exclusive, acquiring).released(released)
    }

    #[test]
    fn waits_hand_overs_and_shares_are_distinguished() {
        let sections = [section("a", 0..10, 20), section("a", 20..30, 40), section("b", 0..50, 60)];
        let summary = Summary::of(&sections);
        assert_eq!((summary.sections, summary.to_another, summary.elapsed.as_nanos()), (3, 1, 60));
        assert_eq!((summary.hand_over.max().as_nanos(), summary.wait.max().as_nanos()), (10, 50));
        assert_eq!(summary.shares, [0, 2], "b had no section when a finished");
        assert_eq!((summary.share_to_another() * 100.0).round(), 50.0);
        let turns =
            [section("a", 0..1, 2), section("b", 0..3, 4), section("a", 2..5, 6), section("b", 4..7, 8)];
        assert_eq!(Summary::of(&turns).shares, [1, 2]);
    }

    #[test]
    fn fairness_of_known_shares() {
        let of = |shares: &[u64]| {
            let summary = Summary { shares: shares.to_vec(), ..Summary::of(&[]) };
            ((summary.fairness() * 100.0).round(), (summary.jain() * 100.0).round())
        };
        assert_eq!(
            (of(&[7, 7, 7]), of(&[0, 0, 9]), of(&[1, 2])),
            ((100.0, 100.0), (0.0, 33.0), (50.0, 90.0))
        );
    }

    #[test]
    fn a_history_with_two_holders_has_no_numbers() {
        let overlap = [section("a", 0..10, 30), section("b", 0..20, 40)];
        assert!(matches!(Summary::of_correct(&overlap), Err(Error::Violation(_))));
        let turns = [section("a", 0..10, 20), section("b", 0..20, 40)];
        assert_eq!(Summary::of_correct(&turns).unwrap().sections, 2);
    }
}
