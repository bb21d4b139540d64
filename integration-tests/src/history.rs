//! Throughput and fairness of a history of critical sections. [`polylock_testkit::history`] checks its correctness.

use std::{
    collections::{HashMap, HashSet},
    fmt, fs, io,
    path::Path,
    time::Duration,
};

use hdrhistogram::Histogram;
use polylock_testkit::history::Section;

/// The throughput, latencies and fairness of the sections of one lock.
#[derive(Debug)]
pub struct Summary {
    /// The time from the first request to the last release.
    pub elapsed: Duration,
    /// The number of sections.
    pub sections: u64,
    /// The times from the request to the grant, in nanoseconds.
    pub wait: Histogram<u64>,
    /// The times from the call of a release to the next grant, in nanoseconds.
    pub hand_over: Histogram<u64>,
    /// The number of hand-overs to a client other than the releaser.
    pub to_another: u64,
    /// The minimum and maximum of the sections per client, when the first client has finished.
    pub shares: (u64, u64),
    /// Jain's index of these: 1 if all clients had the same number, 1/n if one of n had all.
    pub jain: f64,
}

impl Summary {
    /// Summarizes `sections`, which must be of one exclusive lock.
    #[must_use]
    pub fn of(sections: &[Section]) -> Self {
        let mut sections: Vec<&Section> = sections.iter().collect();
        sections.sort_by_key(|section| section.acquired);
        let (mut wait, mut hand_over, mut to_another) = (nanos(), nanos(), 0);
        for section in &sections {
            wait.saturating_record(section.acquired.saturating_sub(section.invoked));
        }
        for pair in sections.windows(2) {
            hand_over.saturating_record(pair[1].acquired.saturating_sub(pair[0].end()));
            to_another += u64::from(pair[0].client != pair[1].client);
        }
        let began = sections.iter().map(|section| section.invoked).min().unwrap_or(0);
        let ended = sections.iter().map(|section| section.end()).max().unwrap_or(0);
        let shares = shares(&sections);
        Self {
            elapsed: Duration::from_nanos(ended.saturating_sub(began)),
            sections: sections.len() as u64,
            wait,
            hand_over,
            to_another,
            shares: (shares.iter().copied().min().unwrap_or(0), shares.iter().copied().max().unwrap_or(0)),
            jain: jain(&shares),
        }
    }

    /// Returns the minimum share divided by the maximum share: 1 is fair.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub fn fairness(&self) -> f64 {
        self.shares.0 as f64 / self.shares.1.max(1) as f64
    }

    /// Returns the sections per second.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    pub fn rate(&self) -> f64 {
        self.sections as f64 / self.elapsed.as_secs_f64().max(f64::EPSILON)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} sections in {:.2?} ({:.0}/s, {} to another); hand-over p50 {:.2?}, p99 {:.2?}; wait p99 {:.2?}, max \
             {:.2?}; fairness {:.2} ({} to {})",
            self.sections,
            self.elapsed,
            self.rate(),
            self.to_another,
            at(&self.hand_over, 0.5),
            at(&self.hand_over, 0.99),
            at(&self.wait, 0.99),
            at(&self.wait, 1.0),
            self.fairness(),
            self.shares.0,
            self.shares.1,
        )
    }
}

/// Reads the sections that all processes recorded, each in its own file in `directory`.
///
/// # Panics
/// If they can't be read.
#[must_use]
pub fn read_all(directory: &Path) -> Vec<Section> {
    let read = |file: io::Result<fs::DirEntry>| fs::read_to_string(file?.path());
    let texts =
        fs::read_dir(directory).and_then(|files| files.map(read).collect::<io::Result<Vec<String>>>());
    let text = texts.unwrap_or_else(|error| panic!("{}: {error}", directory.display())).concat();
    polylock_testkit::history::read(&text).unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
}

/// Returns the number of sections of each client up to the last section of the client that finished first: afterwards fewer clients
/// compete.
fn shares(sections: &[&Section]) -> Vec<u64> {
    let mut last: HashMap<&str, usize> = HashMap::new();
    for (at, section) in sections.iter().enumerate() {
        last.insert(&section.client, at);
    }
    let clients: HashSet<&str> = last.keys().copied().collect();
    let until = last.into_values().min().unwrap_or(0);
    let mut count: HashMap<&str, u64> = clients.into_iter().map(|client| (client, 0)).collect();
    for section in sections.iter().take(until + 1) {
        *count.entry(&section.client).or_default() += 1;
    }
    count.into_values().collect()
}

#[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
fn jain(shares: &[u64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), &share| {
        let share = share as f64;
        (sum + share, squares + share * share)
    });
    sum * sum / (shares.len() as f64 * squares).max(f64::EPSILON)
}

/// Returns a histogram of times up to ten minutes, with three significant digits.
///
/// # Panics
/// Never: the bounds are in order.
#[must_use]
pub fn nanos() -> Histogram<u64> {
    let histogram = Histogram::new_with_bounds(1, 600_000_000_000, 3);
    histogram.unwrap_or_else(|error| panic!("fixed bounds: {error}"))
}

/// Returns the quantile `share`.
#[must_use]
pub fn at(histogram: &Histogram<u64>, share: f64) -> Duration {
    Duration::from_nanos(histogram.value_at_quantile(share))
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylock_core::Mode;

    fn section(client: &str, acquiring: std::ops::Range<u64>, released: u64) -> Section {
        Section::new("n", client, Mode::Exclusive, acquiring).released(released)
    }

    #[test]
    fn waits_hand_overs_and_shares_are_distinguished() {
        let sections = [section("a", 0..10, 20), section("a", 20..30, 40), section("b", 0..50, 60)];
        let flow = Summary::of(&sections);
        assert_eq!((flow.sections, flow.to_another, flow.elapsed.as_nanos()), (3, 1, 60));
        assert_eq!((flow.hand_over.max(), flow.wait.max()), (10, 50));
        assert_eq!(flow.shares, (0, 2), "b had no section when a finished");
        let turns =
            [section("a", 0..1, 2), section("b", 0..3, 4), section("a", 2..5, 6), section("b", 4..7, 8)];
        assert_eq!(Summary::of(&turns).shares, (1, 2));
        let jain = |shares: &[u64]| (jain(shares) * 100.0).round();
        assert_eq!((jain(&[7, 7, 7]), jain(&[9, 0, 0]), jain(&[1, 2])), (100.0, 33.0, 90.0));
    }
}
