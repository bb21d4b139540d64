//! Locks in Redis and Valkey.
//!
//! | URL | store | module |
//! |---|---|---|
//! | `redis://`, `rediss://`, `valkey://`, `valkeys://`, `unix://` | one server: queues, hand-over, six modes | [`single`] |
//! | `redlock://` | N independent servers, of which a majority decides | [`redlock`] |
//!
//! The feature `tls` encrypts connections.

mod checkup;
mod config;
mod driver_keys;
mod error;
mod flow;
mod keys;
mod link;
pub mod redlock;
pub mod single;
mod tls;

pub use config::Allowed;
pub use redis;
