//! A goal, and its measurement.

use std::fmt;

use serde_json::{Value, json};

/// The bound of a measured number.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
    Below(f64),
}

impl Bound {
    fn admits(self, number: f64) -> bool {
        match self {
            Self::AtMost(bound) => number <= bound,
            Self::AtLeast(bound) => number >= bound,
            Self::Below(bound) => number < bound,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(bound) => write!(f, "<= {bound}"),
            Self::AtLeast(bound) => write!(f, ">= {bound}"),
            Self::Below(bound) => write!(f, "< {bound}"),
        }
    }
}

/// A goal, and its measurement.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) goal: String,
    pub(crate) bound: Bound,
    pub(crate) measured: Option<f64>,
}

impl Verdict {
    fn word(&self) -> &'static str {
        match self.measured {
            None => "not measured",
            Some(number) if self.bound.admits(number) => "met",
            Some(_) => "missed",
        }
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "goal": self.goal, "bound": self.bound.to_string(), "measured": self.measured, "verdict": self.word(),
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let measured = self.measured.map_or("-".to_owned(), |number| format!("{number:.2}"));
        write!(f, "| {} | {} | {measured} | {} |", self.goal, self.bound, self.word())
    }
}
