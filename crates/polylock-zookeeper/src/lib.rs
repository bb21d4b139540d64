#![doc = include_str!("docs.md")]

mod backend;
mod break_lock;
mod breaks;
mod claims;
mod config;
mod directory;
mod driver_keys;
mod error;
pub mod fence;
mod inspect;
mod janitor;
mod making;
mod nodes;
mod session;
mod tls;

pub use backend::connect;
pub use config::{Access, Config, Proof};
/// The driver, for clients of your own: see [`fence`].
pub use zookeeper_client;

/// The store's name, as in errors and metrics.
const NAME: &str = "zookeeper";
