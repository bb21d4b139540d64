#![doc = include_str!("docs.md")]

mod backend;
mod config;
mod connection;
mod error;
mod hand_over;
mod open;
mod place;
mod round;
mod rows;
mod statements;
mod wakeups;

pub use config::{Config, Durability};
pub use open::connect;

/// The store's name in errors, metrics and URLs.
const NAME: &str = "sqlite";
