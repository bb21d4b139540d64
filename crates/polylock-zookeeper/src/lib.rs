#![doc = include_str!("docs.md")]

mod backend;
mod break_lock;
mod breaks;
mod claims;
mod cleanup;
mod client;
mod config;
mod connect;
mod creation;
mod directory;
mod driver_keys;
mod error;
pub mod fence;
#[cfg(test)]
mod fuzz;
mod heartbeat;
mod inspect;
mod lifetime;
mod nodes;
mod proof;
mod session;
mod sessions;
#[cfg(feature = "simulation")]
pub mod simulation;
mod tls;

pub use config::{Access, AuthScheme, Config};
pub use connect::connect;
/// The driver, for clients of the program itself: see [`fence`].
pub use zookeeper_client;

/// The store's name in errors and metrics.
const NAME: &str = "zookeeper";
