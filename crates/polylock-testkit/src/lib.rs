//! The conformance suite of polylock.
#![allow(clippy::unwrap_used, reason = "a case that fails panics: that is its verdict")]

mod cases;
mod clock;
pub mod faults;
pub mod history;
mod random;
mod runner;
mod target;
mod trace;
mod trial;

pub use cases::CASES;
pub use clock::ManualClock;
#[doc(hidden)]
pub use runner::test as __test;
pub use runner::{Failure, Verdict, check};
pub use target::{Made, Maker, Missing, Target};
#[doc(hidden)]
pub use trial::set_patience as __set_patience;
