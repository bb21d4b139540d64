#![doc = include_str!("docs.md")]

mod config;
mod connect;
mod dialect;
mod driver_keys;
mod error;
mod hand_over;
mod local_requests;
mod pessimistic;
mod statements;
mod tables;
mod watch;

pub use config::Config;
pub use connect::{connect, schema, schema_statements};

pub use crate::pessimistic::Strategy;

/// The store's name in errors, metrics and URLs.
const NAME: &str = "mysql";
