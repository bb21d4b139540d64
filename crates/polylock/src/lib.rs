//! One lock API for many lock stores: the URL selects the store.
//!
//! ```
//! # async fn update(_token: polylock::FencingToken) {}
//! use polylock::Locks;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> polylock::Result<()> {
//! let locks = Locks::connect("memory:").await?;               // the URL selects the store
//! let guard = locks.lock("orders/42").acquire().await?;       // waits in the queue
//! update(guard.fencing_token()).await;                        // the resource refuses a smaller token
//! guard.release().await?;                                     // or drop it
//! # Ok(()) }
//! ```
//!
//! [`polylock_core`] implements the API; its page documents the guarantees and limits of a lease, and the use of a fencing token. This
//! crate selects a store.
//!
//! [`blocking`] is the same for programs without an async runtime.
//!
//! # Stores
//!
//! | URL | feature | scope |
//! |---|---|---|
//! | `memory:` (alone) or `memory:NAME` (shared by that name) | always available | tasks of one process |
//! | `sqlite:///absolute/path.db` | `sqlite` | processes on one machine |
//! | `postgres://user:password@host/database` | `postgres` | network |
//! | `mysql://user:password@host/database`, also `mariadb:` | `mysql` | network |
//! | `redis://user:password@host/0`, also `rediss:`, `valkey:`, `valkeys:`, `unix:///socket` | `redis` | network |
//! | `redis+sentinel://user:password@sentinel1,sentinel2,sentinel3/primary/0`, also `rediss+sentinel:`, `redis-sentinel:`, `rediss-sentinel:`, `valkey+sentinel:`, `valkeys+sentinel:` | `redis` | network |
//! | `redis-cluster://user:password@host1,host2,host3`, also `rediss-cluster:`, `valkey-cluster:`, `valkeys-cluster:` | `redis` | network |
//! | `redlock://user:password@host1,host2,host3/0` | `redis` | network |
//! | `zookeeper://user:password@host1,host2,host3/path`, also `zk:`, `zookeeper+tls:`, `zk+tls:` | `zookeeper` | network |
//! | `az://container@account/path`, also `azblob:` | `azure`, with `tls` except for the emulator | network |
//! | `polylock+http://host1,host2`, also `polylock+https:`: the lock service (`polylock serve`) in front of another store | `http` | network |
//! | `both:OLD;NEW`, the URLs of two stores: every lock is acquired in both, for the move from one to the other (see [`core::transition`]) | always available | the narrower one of the two |
//!
//! [`register`] adds the scheme of a store of your own.
//!
//! # Features
//!
//! | feature | effect |
//! |---|---|
//! | `sqlite`, `postgres`, `mysql`, `redis`, `zookeeper`, `azure`, `http` | the store of that name |
//! | `tls` | encrypted connections to servers, with the system's root certificates or your own CA |
//! | `sasl` | SASL (DIGEST-MD5) with ZooKeeper |
//! | `tower` | `tower`: a layer that refuses HTTP requests with a stale fencing token |
//! | `time-zones` | the periods of a job can be the days of a time zone: see `Once::time_zone` |
//! | `serde` | [`LocksConfig`] and `ConfigFile` can be deserialized |
//! | `metrics` | measurements go to the `metrics` crate's global recorder: see [`metrics`] for their names |
//!
//! Every acquisition and every hold is a `tracing` span; losses are logged at ERROR, failed renewals and breaks at WARN, all other events
//! at DEBUG. Log writers and recorders run on a thread of their own, so a blocking one does not cause the loss of a lock.
//!
//! Keys for every store, all with the prefix `polylock.`: `polylock.ttl`, `polylock.wait`, `polylock.outage` and `polylock.deadlock_check` (see
//! [`Options`]). An
//! unknown key is an error with a suggestion, never ignored.
//!
//! With the feature `serde`, [`LocksConfig`] is the equivalent table of a config file, and `ConfigFile` a file with profiles.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod blocking;
mod config;
#[cfg(feature = "serde")]
mod config_file;
mod connect;
mod fence_schema;
mod schemes;
mod setup;
mod transition;

pub use config::LocksConfig;
#[cfg(feature = "serde")]
pub use config_file::{ConfigFile, Settings};
pub use connect::{Locks, LocksBuilder};
pub use fence_schema::FenceSchema;
pub use polylock_core::{
    self as core, Attempt, BreakLock, BreakNotice, Capabilities, Change, ChangeKind, Clock, ConfigError,
    Election, Entry, Error, FailedRelease, Fault, Fencing, FencingToken, Guard, GuardEvent, GuardEvents,
    HoldHandle, HoldLifetime, InvalidHandle, InvalidName, Label, LastRun, Leader, LeaderWatch, Leadership,
    Lock, LockName, LockStatus, LostReason, Mode, Modes, Moment, MultiGuard, MultiLock, Namespaces,
    NotAcquired, Notifications, Once, OnceBegin, OnceOutcome, Operation, Options, Order, Outage, OwnerId,
    PastGrant, Progress, Renewals, Result, RunOutcome, RunReport, Scope, Semaphore, SemaphoreStatus,
    ShutdownReport, SlotGuard, SlotStatus, Store, StoreConfig, SystemClock, Term, Unavailable, UnknownMode,
    Upgrade, Watch, WatchEvent, WatchState, WatchedLock, duration, metrics,
    url::{Keys, StoreUrl},
};
#[cfg(feature = "time-zones")]
pub use polylock_core::{InvalidTimeZone, TimeZone};
pub use schemes::{read_url, register, schemes};
pub use setup::{admit, fence_schema, schema};

/// Fenced writes to your own tables: see [`polylock_sql::optimistic`].
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub use polylock_sql::optimistic;

/// Fenced writes to your own ZooKeeper nodes, and the driver for them: see [`polylock_zookeeper::fence`].
#[cfg(feature = "zookeeper")]
pub use polylock_zookeeper::{fence, zookeeper_client};

/// Settings of Azure Blob Storage that a URL can't contain: a token credential, a wake signal. See [`polylock_azure`].
#[cfg(feature = "azure")]
pub use polylock_azure as azure;

/// A tower layer that refuses HTTP requests with a stale fencing token: see [`polylock_tower`].
#[cfg(feature = "tower")]
pub use polylock_tower as tower;

/// The examples of the project's README, compiled and run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/quick-start.md")]
struct QuickStart;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/scaling.md")]
struct ScalingPage;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/recipes.md")]
struct RecipesPage;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/fencing.md")]
struct FencingPage;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/writing-a-store.md")]
struct WritingAStorePage;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/migration.md")]
struct MigrationPage;
