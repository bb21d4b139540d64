#![doc = include_str!("docs.md")]

mod checkup;
mod config;
mod connect;
mod dialect;
mod driver_keys;
mod error;
mod listener;
mod pessimistic;
mod push;
#[cfg(feature = "simulation")]
pub mod simulation;
mod statements;
mod tables;

pub use config::{Config, Durability, Listen};
pub use connect::{connect, schema};

pub use crate::pessimistic::Strategy;

/// The store's name in errors, metrics and URLs.
const NAME: &str = "postgres";
