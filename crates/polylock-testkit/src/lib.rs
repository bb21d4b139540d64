//! The conformance suite of polylock: tests a store against every promise of polylock.
//!
//! # Testing a store
//!
//! Implement [`Target`] (one method) and call [`conformance!`]. It generates one test per promise, with the name of the promise.
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
//! # fn random_name() -> String { "example".into() }
//! polylock_testkit::conformance!(my_store, || async { MyTarget(random_name()) });
//! # fn main() {}
//! ```
//!
//! Then `cargo test my_store::cancel` runs one group. Each test creates its own target, runtime and connections, so tests run in
//! parallel. Each test ends within a time limit: a hang is a failure that names the case. [`check`] runs a case by name from a program.
//!
//! A store declares in its [`Capabilities`](polylock_core::Capabilities) which promises it does not make. The cases for these are
//! reported on standard error as `unsupported: target case: why`. They never pass silently. A target without a running server returns
//! [`Missing`], which is reported, too, and is a failure if `POLYLOCK_TEST_REQUIRE=all` is set. `POLYLOCK_TESTKIT_SCALE=50` makes the
//! long cases fifty times as long. `POLYLOCK_TESTKIT_TIMEOUT=90` gives each step of a case 90 seconds instead of 30, for a slow store or
//! machine; the limit of a whole case is [`Target::time_limit`].
//!
//! # Other tools
//!
//! * [`faults`]: wrappers that make any store lose replies, hang, freeze, or let releases overtake claims.
//! * [`history`]: records the holds of several tasks or processes with their times, and checks that no two holds overlapped, no token
//!   decreased, and no loss was reported late.
//! * [`ManualClock`]: a clock that a test advances, so that no test has to wait for a lease to expire.
//!
//! # Cases
//!
//! The cases also cover faulty stores: `faults` repeats the cases of exclusion, cancellation, order and leaks behind
//! [`Overtaking`](faults::Overtaking), [`Flaky`](faults::Flaky) and [`Slow`](faults::Slow). `idempotence` and some cases of `order` and
//! `modes` call the store without core; the others use [`Locks`](polylock_core::Locks), as users do. Two connections represent two
//! processes. The suite can't test processes that are killed or paused.
//!
#![doc = include_str!("cases.md")]
#![allow(clippy::unwrap_used, reason = "a case fails by a panic")]

mod cases;
mod clock;
pub mod faults;
pub mod history;
mod need;
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
pub use target::{IntoTarget, Missing, OwnServer, Target, TargetFactory};
#[doc(hidden)]
pub use trial::set_timeout as __set_timeout;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_lists_every_case_in_order() {
        let rows = include_str!("cases.md").lines().skip(2);
        let listed: Vec<&str> = rows.filter_map(|row| row.split('`').nth(1)).collect();
        assert_eq!(listed, CASES);
    }

    #[test]
    fn no_case_is_listed_twice() {
        let mut names = CASES.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CASES.len());
    }
}
