//! Server databases under faults, under other settings than their defaults, and behind poolers; and with planted bugs.
#![allow(clippy::unwrap_used, reason = "tests")]

mod load;
mod mariadb;
mod pessimistic;
mod postgres;
