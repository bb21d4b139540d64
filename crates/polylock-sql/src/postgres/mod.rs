#![doc = include_str!("docs.md")]

mod backend;
mod config;
mod driver_keys;
mod error;
mod listener;
mod open;
mod pessimistic;
mod rows;
mod statements;

pub use config::{Config, Durability, Listen};
pub use open::{connect, schema};

pub use crate::pessimistic::Strategy;

/// The store's name in errors, metrics and URLs.
const NAME: &str = "postgres";
