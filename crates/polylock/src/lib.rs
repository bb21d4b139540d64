//! One lock API, many lock stores: the URL decides which store holds the lock.
//!
//! ```
//! # async fn update(_token: polylock::FencingToken) {}
//! use polylock::Locks;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> polylock::Result<()> {
//! let locks = Locks::connect("memory:").await?;               // the URL picks the store
//! let guard = locks.lock("orders/42").acquire().await?;       // waits its turn
//! update(guard.fencing_token()).await;                        // the store of record checks the token
//! guard.release().await?;                                     // or drop it
//! # Ok(()) }
//! ```
//!
//! What a lease promises, what it can't, and what a fencing token is for is told in [`polylock_core`], where all of
//! this is written; the part that is here picks a store.
//!
//! # Stores
//!
//! | URL | feature | who can reach it |
//! |---|---|---|
//! | `memory:` (alone) or `memory:NAME` (shared by that name) | always there | the tasks of this process |
//! | `sqlite:///absolute/path.db` | `sqlite` | the processes of this machine |
//! | `postgres://user:password@host/database` | `postgres` | programs on many machines |
//! | `mysql://user:password@host/database`, also `mariadb:` | `mysql` | programs on many machines |
//! | `redis://user:password@host/0`, also `rediss:`, `valkey:`, `valkeys:`, `unix:///socket` | `redis` | programs on many machines |
//! | `redis+sentinel://user:password@sentinel1,sentinel2,sentinel3/primary/0`, also `rediss+sentinel:`, `redis-sentinel:`, `rediss-sentinel:`, `valkey+sentinel:`, `valkeys+sentinel:` | `redis` | programs on many machines |
//! | `redis-cluster://user:password@host1,host2,host3`, also `rediss-cluster:`, `valkey-cluster:`, `valkeys-cluster:` | `redis` | programs on many machines |
//! | `redlock://user:password@host1,host2,host3/0` | `redis` | programs on many machines |
//! | `zookeeper://user:password@host1,host2,host3/path`, also `zk:`, `zookeeper+tls:`, `zk+tls:` | `zookeeper` | programs on many machines |
//! | `az://container@account/path`, also `azblob:` | `azure`; but for its emulator with `tls` | programs on many machines |
//!
//! # Features
//!
//! | feature | |
//! |---|---|
//! | `sqlite`, `postgres`, `mysql`, `redis`, `zookeeper`, `azure` | a store each |
//! | `tls` | encrypted connections to servers, with the system's root certificates or a CA of your own |
//! | `sasl` | SASL (DIGEST-MD5) with ZooKeeper |
//! | `serde` | [`LocksConfig`] can be deserialized |
//! | `metrics` | measurements go to the `metrics` crate's global recorder: see [`metrics`] for their names |
//!
//! Every acquisition is a `tracing` span, and so is every hold; losses are logged at ERROR, failed renewals and breaks at WARN,
//! everything else at DEBUG. Log writers and recorders run on a thread of their own, so one that blocks costs no lock.
//!
//! Keys for every store, all with the prefix `polylock.`: `polylock.ttl`, `polylock.wait` and `polylock.outage` (see
//! [`Options`]). An unknown key is an error with a suggestion, never ignored.
//!
//! The same as a table of a config file, with the feature `serde`: [`LocksConfig`].
#![cfg_attr(docsrs, feature(doc_cfg))]

mod config;
mod connect;

pub use config::LocksConfig;
pub use connect::{Locks, LocksBuilder, admit, schema, schemes};
pub use polylock_core::{
    self as core, BreakLock, BreakNotice, Capabilities, Carrier, Clock, ConfigError, Entry, Error, Fault,
    Fencing, FencingToken, Guard, InvalidName, Label, Lock, LockName, LockStatus, LostReason, Mode, Modes,
    Moment, NotAcquired, Operation, Options, Order, Outage, OwnerId, Progress, Reach, Result, Store,
    SystemClock, Unavailable, UnknownMode, WakeUp, duration, metrics, url::StoreUrl,
};

/// Tables of your own that refuse late writes: see [`polylock_sql::optimistic`].
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub use polylock_sql::optimistic;

/// Writes to your own ZooKeeper nodes that refuse to be late, and the driver for them: see [`polylock_zookeeper::fence`].
#[cfg(feature = "zookeeper")]
pub use polylock_zookeeper::{fence, zookeeper_client};

/// Azure Blob Storage's own settings, for what a URL can't say: a token credential, a bell. See [`polylock_azure`].
#[cfg(feature = "azure")]
pub use polylock_azure as azure;

/// The examples of the project's README are compiled and run, too.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
