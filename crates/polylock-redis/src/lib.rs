//! Locks in Redis and Valkey.
//!
//! | URL | store | module |
//! |---|---|---|
//! | `redis://`, `rediss://`, `valkey://`, `valkeys://`, `unix://` | one server: queues, hand-over, six modes | [`single`] |
//! | `redis+sentinel://`, `rediss+sentinel://`, `redis-sentinel://`, `valkey+sentinel://` | the primary that Sentinels name, also after a failover | [`sentinel`] |
//! | `redis-cluster://`, `rediss-cluster://`, `valkey-cluster://` | a cluster: the locks are spread over its nodes | [`cluster`] |
//! | `redlock://` | N independent servers, of which a majority decides | [`redlock`] |
//!
//! Encrypted connections, as with `rediss`, require the feature `tls`.

mod call;
mod checkup;
pub mod cluster;
mod config;
mod connection;
mod driver_keys;
mod endpoint;
mod error;
mod flow;
#[cfg(test)]
mod fuzz;
mod hosts;
mod keys;
mod link;
mod queue;
pub mod redlock;
pub mod sentinel;
pub mod single;
mod tls;

pub use config::Allowed;
pub use redis;
