//! What a history of critical sections says about speed and fairness. Whether it keeps the promises is for
//! [`polylock_testkit::history`] to say.

use std::{
    collections::{HashMap, HashSet},
    fmt, fs, io,
    path::Path,
    time::Duration,
};

use hdrhistogram::Histogram;
use polylock_testkit::history::Section;

/// How the sections of one lock followed each other.
#[derive(Debug)]
pub struct Flow {
    /// From the first acquisition asked for to the last release.
    pub lasted: Duration,
    /// How many sections there were.
    pub sections: u64,
    /// From asking to having it, in nanoseconds.
    pub wait: Histogram<u64>,
    /// From the release called to the next one having it, in nanoseconds.
    pub hand_over: Histogram<u64>,
    /// How many of the hand-overs went to a client that was not the one that released.
    pub to_another: u64,
    /// The fewest and the most sections that a client had when the first client was done.
    pub shares: (u64, u64),
    /// Jain's index of those: 1 if all had as many, 1/n if one of n had all.
    pub jain: f64,
}

impl Flow {
    /// That of `sections`, which must be of one exclusive lock.
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
            lasted: Duration::from_nanos(ended.saturating_sub(began)),
            sections: sections.len() as u64,
            wait,
            hand_over,
            to_another,
            shares: (shares.iter().copied().min().unwrap_or(0), shares.iter().copied().max().unwrap_or(0)),
            jain: jain(&shares),
        }
    }

    /// The fewest by the most: 1 is fair.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub fn fairness(&self) -> f64 {
        self.shares.0 as f64 / self.shares.1.max(1) as f64
    }

    /// Sections a second.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    pub fn rate(&self) -> f64 {
        self.sections as f64 / self.lasted.as_secs_f64().max(f64::EPSILON)
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} sections in {:.2?} ({:.0}/s, {} to another); hand-over p50 {:.2?}, p99 {:.2?}; wait p99 {:.2?}, max \
             {:.2?}; fairness {:.2} ({} to {})",
            self.sections,
            self.lasted,
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

/// What all processes wrote down, each in a file of its own in `directory`.
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

/// The sections of each client up to the moment when the first client had its last: from then on there are fewer to share
/// with.
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

/// A histogram of times up to ten minutes, to three digits.
///
/// # Panics
/// Never: the bounds are in order.
#[must_use]
pub fn nanos() -> Histogram<u64> {
    let histogram = Histogram::new_with_bounds(1, 600_000_000_000, 3);
    histogram.unwrap_or_else(|error| panic!("fixed bounds: {error}"))
}

/// The time below which this share of all lies.
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
    fn waits_hand_overs_and_shares_are_told_apart() {
        let sections = [section("a", 0..10, 20), section("a", 20..30, 40), section("b", 0..50, 60)];
        let flow = Flow::of(&sections);
        assert_eq!((flow.sections, flow.to_another, flow.lasted.as_nanos()), (3, 1, 60));
        assert_eq!((flow.hand_over.max(), flow.wait.max()), (10, 50));
        assert_eq!(flow.shares, (0, 2), "b had none when a was done");
        let turns =
            [section("a", 0..1, 2), section("b", 0..3, 4), section("a", 2..5, 6), section("b", 4..7, 8)];
        assert_eq!(Flow::of(&turns).shares, (1, 2));
        let jain = |shares: &[u64]| (jain(shares) * 100.0).round();
        assert_eq!((jain(&[7, 7, 7]), jain(&[9, 0, 0]), jain(&[1, 2])), (100.0, 33.0, 90.0));
    }
}
