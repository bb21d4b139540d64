//! The conformance suite of polylock: it holds a store to every promise that polylock makes.
//!
//! # Test your own store
//!
//! Implement [`Target`] (one method) and call [`conformance!`]: there is one test per promise, named after it.
//!
//! ```
//! use polylock_core::{Result, Store, memory};
//! use polylock_testkit::Target;
//!
//! struct MyTarget(String);                        // a namespace that nothing else uses
//!
//! #[async_trait::async_trait]
//! impl Target for MyTarget {
//!     async fn connect(&self) -> Result<Store> {  // a new connection to it
//!         Ok(memory::named(&self.0))              // my_store::connect(&self.0).await
//!     }
//! }
//!
//! # fn random_name() -> String { "book".into() }
//! polylock_testkit::conformance!(my_store, || async { MyTarget(random_name()) });
//! # fn main() {}
//! ```
//!
//! Then `cargo test my_store::cancel` runs a group of them. Each test makes a target, a runtime and connections of its
//! own, so they run at the same time, and ends within a time limit: a hang is a failure that tells which case hung.
//! [`check`] runs a case by name in a program.
//!
//! What a store can't promise, it says in its [`Capabilities`](polylock_core::Capabilities), and the cases about it are
//! reported on the standard error stream as `unsupported: target case: why`. They never pass silently. A target whose
//! server is not there answers [`Missing`], which is reported, too, and fails where `POLYLOCK_TEST_REQUIRE=all` is set.
//! `POLYLOCK_TESTKIT_SCALE=50` makes the long cases fifty times as long.
//!
//! # What else is here
//!
//! * [`faults`]: wrappers that make any store lose replies, hang, freeze, or let releases overtake claims.
//! * [`history`]: writes down who held what and when, over several processes if need be, and checks that no two holds
//!   overlapped, no token went back, and no loss was told late.
//! * [`ManualClock`]: a clock that a test moves, so that nothing has to wait for a lease to run out.
//!
//! # The cases
//!
//! A store is not only asked in good times: `faults` repeats the cases about exclusion, cancellation, order and leaks
//! behind [`Overtaking`](faults::Overtaking), [`Flaky`](faults::Flaky) and [`Slow`](faults::Slow). `idempotence` and some
//! of `order` and `modes` speak to the store without core; the others go through [`Locks`](polylock_core::Locks), as
//! users do. Two connections stand for two processes. Processes that are killed or paused are beyond a library of cases.
//!
#![doc = include_str!("cases.md")]
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
pub use target::{Made, Maker, Missing, OwnServer, Target};
#[doc(hidden)]
pub use trial::set_patience as __set_patience;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_book_tells_every_case_in_order() {
        let rows = include_str!("cases.md").lines().skip(2);
        let told: Vec<&str> = rows.filter_map(|row| row.split('`').nth(1)).collect();
        assert_eq!(told, CASES);
    }

    #[test]
    fn no_case_is_listed_twice() {
        let mut names = CASES.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CASES.len());
    }
}
