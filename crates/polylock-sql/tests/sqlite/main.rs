//! Tests of the parts that only the SQLite store has; `polylock-testkit` tests the contract.
#![cfg(feature = "sqlite")]
#![expect(clippy::unwrap_used, reason = "a helper of a test may fail the test")]

mod common;
mod dead_processes;
mod faults;
mod full;
mod grants;
mod leftovers;
mod names;
mod order;
mod version;
mod waking;
