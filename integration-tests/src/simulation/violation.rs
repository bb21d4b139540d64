//! A broken promise, as a run reports it.

use std::fmt;

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
