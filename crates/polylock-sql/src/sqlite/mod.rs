#![doc = include_str!("docs.md")]

mod blockers;
mod claim;
mod config;
mod connect;
mod connection;
mod datagrams;
mod dialect;
mod error;
mod file;
mod hand_over;
mod names;
mod process_lock;
#[cfg(all(feature = "simulation", target_os = "linux"))]
pub mod simulation;
mod statements;
mod tables;
mod watch;

pub use config::{Config, Durability};
pub use connect::connect;

/// The store's name in errors, metrics and URLs.
const NAME: &str = "sqlite";
