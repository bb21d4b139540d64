#![doc = include_str!("docs.md")]

mod backend;
mod claims;
mod config;
mod error;
mod inspect;
mod nodes;
mod session;
mod tls;

pub use backend::connect;
pub use config::{Access, Config, Proof};

/// The store's name, as in errors and metrics.
const NAME: &str = "zookeeper";
