#![doc = include_str!("docs.md")]

mod backend;
mod config;
mod connection;
mod datagrams;
mod error;
mod file;
mod hand_over;
mod open;
mod poll;
mod rows;
mod statements;

pub use config::{Config, Durability};
pub use open::connect;

/// The store's name in errors, metrics and URLs.
const NAME: &str = "sqlite";
