#![doc = include_str!("docs.md")]

mod backend;
mod config;
mod departed;
mod error;
mod foreign_keys;
mod open;
mod pessimistic;
mod rows;
mod statements;

pub use config::Config;
pub use open::{connect, schema, schema_statements};

pub use crate::pessimistic::Strategy;

/// The store's name in errors, metrics and URLs.
const NAME: &str = "mysql";
