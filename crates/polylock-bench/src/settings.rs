//! The parts of the benchmark, and their settings.

use std::time::Duration;

/// A part of the benchmark, in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// A task that acquires and releases a lock that no other task uses.
    Uncontended,
    /// Tasks with locks of their own.
    OwnLocks,
    /// The time from a release to the grant of a waiter.
    HandOver,
    /// Tasks and processes that compete for one lock.
    Contended,
    /// Many waiters of one lock.
    Waiters,
    /// Many locks that one process holds.
    Held,
    /// The time until a lock is free after its holder was killed.
    Kill,
}

impl Part {
    /// All parts.
    pub const ALL: [Self; 7] = [
        Self::Uncontended,
        Self::OwnLocks,
        Self::HandOver,
        Self::Contended,
        Self::Waiters,
        Self::Held,
        Self::Kill,
    ];

    /// Returns the name of the part in options and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uncontended => "uncontended",
            Self::OwnLocks => "own-locks",
            Self::HandOver => "hand-over",
            Self::Contended => "contended",
            Self::Waiters => "waiters",
            Self::Held => "held",
            Self::Kill => "kill",
        }
    }

    /// Returns the share of the part in the time of all.
    const fn weight(self) -> u32 {
        match self {
            Self::Uncontended | Self::OwnLocks => 4,
            Self::HandOver | Self::Held => 3,
            Self::Contended => 8,
            Self::Waiters | Self::Kill => 4,
        }
    }
}

/// The settings of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The parts.
    pub parts: Vec<Part>,
    /// The time for each store, which the parts share. Parts that wait for the end of a lease, or for many waiters, may take longer.
    pub time: Duration,
    /// The tasks that compete for one lock, and those with locks of their own.
    pub contenders: usize,
    /// The waiters of one lock.
    pub waiters: usize,
    /// The locks that one process holds.
    pub held: usize,
    /// The holders that are killed.
    pub kills: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            parts: Part::ALL.to_vec(),
            time: Duration::from_secs(30),
            contenders: 16,
            waiters: 1000,
            held: 1000,
            kills: 5,
        }
    }
}

impl Settings {
    /// Returns the settings of a short run.
    #[must_use]
    pub fn quick() -> Self {
        Self { time: Duration::from_secs(8), waiters: 200, held: 200, kills: 3, ..Self::default() }
    }

    /// Returns the time of a part.
    #[must_use]
    pub fn time_of(&self, part: Part) -> Duration {
        let all: u32 = self.parts.iter().map(|part| part.weight()).sum();
        self.time * part.weight() / all.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_share_the_time() {
        let all = Settings::default();
        let sum: Duration = Part::ALL.into_iter().map(|part| all.time_of(part)).sum();
        assert_eq!(sum, all.time);
        let one = Settings { parts: vec![Part::Kill], ..Settings::default() };
        assert_eq!(one.time_of(Part::Kill), one.time);
    }
}
