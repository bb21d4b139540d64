#![doc = include_str!("docs.md")]

mod checkup;
mod config;
mod connect;
mod dialect;
mod driver_keys;
mod error;
#[cfg(test)]
#[cfg(feature = "postgres")]
mod fuzz;
mod hand_over;
mod local_requests;
mod pessimistic;
#[cfg(feature = "simulation")]
pub mod simulation;
mod statements;
mod tables;
mod watch;

pub use config::Config;
pub use connect::{connect, schema, schema_statements};

pub use crate::pessimistic::Strategy;

/// The store's name in errors, metrics and URLs.
const NAME: &str = "mysql";
