//! The promises that are checked after a run, and during its last part.

use std::{fmt, time::Duration};

use polylock_testkit::history::{self, Rules, Section};

/// A broken promise.
#[derive(Debug, Clone)]
pub struct Violation {
    /// The time at which it was found, in nanoseconds since the begin of the run.
    pub at: u64,
    /// The kind of promise, as a word.
    pub kind: &'static str,
    what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Violation {
    /// Creates a violation that was found at `at`.
    #[must_use]
    pub fn new(at: u64, kind: &'static str, what: String) -> Self {
        Self { at, kind, what }
    }
}

/// Checks the sections of a run. A running process reports a loss within `tolerance`. `stops` contains the times in which a client's
/// process was paused: it reports a loss right after.
#[must_use]
pub fn sections(
    sections: &[Section],
    tolerance: Duration,
    stops: impl Fn(&Section) -> Vec<(u64, u64)>,
) -> Vec<history::Violation> {
    let mut rules = Rules::default();
    rules.tolerance = tolerance;
    history::check_with_stops(sections, rules, stops)
}

impl From<&history::Violation> for Violation {
    fn from(violation: &history::Violation) -> Self {
        Self::new(time_of(violation), kind(violation), violation.to_string())
    }
}

fn time_of(violation: &history::Violation) -> u64 {
    use history::Violation as V;
    match violation {
        V::Overlap { second, .. } | V::TokenRegression { second, .. } | V::RepeatedToken { second, .. } => {
            second.acquired
        }
        V::LateLoss { section } | V::LatePoll { section } => section.deadline,
        V::Inversion { overtook, .. } => overtook.acquired,
        _ => 0,
    }
}

const fn kind(violation: &history::Violation) -> &'static str {
    use history::Violation as V;
    match violation {
        V::Overlap { .. } => "overlap",
        V::TokenRegression { .. } | V::RepeatedToken { .. } => "token",
        V::LateLoss { .. } | V::LatePoll { .. } => "late loss",
        _ => "order",
    }
}
