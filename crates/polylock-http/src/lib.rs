#![doc = include_str!("docs.md")]

mod alerts;
mod backend;
mod config;
mod connect;
mod connection;
mod error;
mod inspect;
mod interfaces;
mod server;
mod servers;
#[cfg(feature = "simulation")]
mod simulated;
mod tls;

pub use self::{config::Config, connect::connect};

/// The name of the store in errors, metrics and logs.
const NAME: &str = "polylock+http";
