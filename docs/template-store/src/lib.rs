//! A store for polylock to start from: exclusive locks in any server with a compare-and-set operation.
//!
//! `kv` stands for the client of your server. Replace it, and adapt `backend`.

mod backend;
mod config;
mod connect;
mod kv;

pub use config::Config;
pub use connect::connect;

/// The scheme of the store's URLs, and its name in errors and metrics.
pub const NAME: &str = "template";
