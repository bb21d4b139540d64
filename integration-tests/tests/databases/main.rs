//! Server databases under faults, under other settings than their defaults, and behind poolers; and with planted bugs.
#![allow(clippy::unwrap_used, reason = "tests")]

mod mariadb;
mod pessimistic;
mod postgres;

use polylock_integration_tests::load;
