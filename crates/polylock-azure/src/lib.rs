#![doc = include_str!("docs.md")]

mod account;
mod attempts;
mod backend;
mod blobs;
mod breaks;
mod config;
mod connect;
mod driver_keys;
mod error;
mod exchange;
mod fairness;
pub mod fence;
#[cfg(test)]
mod fuzz;
mod grants;
mod inspect;
mod lease_record;
mod names;
mod plain;
mod prolonging;
mod record;
mod signing;
#[cfg(feature = "simulation")]
mod simulated;
mod tls;
mod tokens;
mod wake_signal;
mod wire;

#[doc(hidden)]
pub use self::plain::PlainClient;
pub use self::{blobs::container, config::Config, connect::connect, wake_signal::WakeSignal};
pub use azure_core;
pub use azure_storage_blob;

/// The name of the store in errors, metrics and logs.
const NAME: &str = "az";
