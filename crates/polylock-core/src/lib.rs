//! The contract of polylock, and everything that all stores share.
//!
//! Most programs use the facade crate `polylock`, which adds `Locks::connect(url)`. This crate is for authors of stores, and for
//! programs that use one store without the facade.
//!
//! ```
//! use polylock_core::{Locks, memory};
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let locks = Locks::new(memory::connect());
//! let guard = locks.lock("orders/42").acquire().await?;
//! println!("write with token {}", guard.fencing_token());
//! guard.release().await?;
//! # Ok::<(), polylock_core::Error>(()) }).unwrap();
//! ```
//!
//! # Leases
//!
//! A lock that lives outside its holder must end when the holder dies. So it is granted for a limited time, the *lease*, and
//! renewed while the holder lives. The store's clock decides when the lease ends for other processes. The holder uses its own
//! monotonic clock and an earlier *deadline*: the instant **before** the last successful claim or renewal was sent, plus the lease,
//! minus a margin (the larger of 10 ms and 1 %). So the holder detects a loss before the store can grant the lock to another
//! process, as long as both clocks run at nearly the same rate. The holder's clock keeps counting while the machine is suspended
//! ([`SystemClock`]).
//!
//! # Fencing tokens
//!
//! Nothing can stop a process that is paused in the middle of a write. So every grant carries a [`FencingToken`], strictly greater
//! than every earlier token of that lock name, and the resource rejects a token smaller than the greatest it has seen. With a
//! resource that checks tokens, two holders at once do no harm; without one, a lease only makes them very unlikely.
//!
//! # Threads
//!
//! [`Locks::lock`] returns a [`Lock`], and [`Lock::acquire`] returns a [`Guard`]. The acquisition, the renewals and the release run
//! on a thread of the library ([`io`]). So they continue if the caller's future is dropped, its executor is blocked or its runtime
//! ends. [`blocking`] is the same for programs without a runtime.
//!
//! # Tests with a paused clock
//!
//! `tokio::time::pause` and `start_paused` advance the clock of a runtime to its next timer as soon as the runtime is idle, and a
//! runtime that waits for the library's thread is idle. So a `tokio::time::timeout` around [`Lock::acquire`] ends at once, whatever
//! its duration. Limit the wait with [`Lock::wait`] instead: the library's timers run on its own thread and are not affected. A
//! test that controls the leases passes a `ManualClock` of `polylock-testkit` to [`LocksBuilder::clock`].
//!
//! # Users and store authors
//!
//! Users work with [`Locks`], [`Lock`] and [`Guard`]. Authors of a store implement [`Backend`] (five required methods; see
//! [`backend`] for the contract) and optionally [`Inspect`], and test the store against the contract with the crate
//! `polylock-testkit`. The interface for authors may change more often than the interface for users.

pub mod backend;
pub mod blocking;
mod break_lock;
mod break_notice;
mod bug;
mod capabilities;
pub mod clock;
mod config_error;
mod conversion;
pub mod deadline;
mod deadlock;
mod delays;
pub mod duration;
mod election;
mod engine;
mod error;
pub mod failure;
#[cfg(test)]
mod fuzz;
pub mod gate;
mod guard;
mod hold_alerts;
mod hold_handle;
pub mod invariant;
pub mod io;
mod job_record;
mod lock;
mod locks;
mod many;
pub mod memory;
pub mod metrics;
mod mode;
mod name;
mod namespaces;
mod observer;
mod once;
mod options;
mod owner;
mod per_runtime;
mod process;
mod progress;
pub mod queue;
mod random;
mod request;
pub mod requests;
mod semaphore;
pub mod server_clock;
mod shutdown;
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod simulation;
mod store_config;
pub mod sync;
pub mod time_limit;
mod token;
pub mod transition;
mod upgrade;
pub mod url;
pub mod waiter_queues;
pub mod wakeups;
mod watch;
mod watched;

pub use backend::{Backend, Entry, Inspect, LockStatus, Park, PastGrant, RaiseToken, Store};
pub use break_lock::BreakLock;
pub use break_notice::{BreakNotice, BreakOrder};
pub use capabilities::{
    Capabilities, Fencing, FirstStep, HoldLifetime, Modes, Notifications, Order, QueueLease, Scope,
};
pub use clock::{Clock, Moment, SystemClock};
pub use config_error::ConfigError;
pub use conversion::{Conversion, ConversionOutcome, Convert};
pub use election::{Election, Leader, LeaderWatch, Leadership, Term};
pub use engine::{GuardEvent, GuardEvents, connect_within};
pub use error::{Error, Fault, LostReason, NotAcquired, Operation, Result, Unavailable};
pub use guard::Guard;
pub use hold_alerts::HoldAlerts;
pub use hold_handle::{HoldHandle, InvalidHandle};
pub use job_record::{KeepRecord, Record, RecordVersion, StoredRecord};
pub use lock::Lock;
pub use locks::{Locks, LocksBuilder};
pub use many::{MultiGuard, MultiLock};
pub use mode::{Mode, UnknownMode};
pub use name::{InvalidName, LockName};
pub use namespaces::Namespaces;
pub use once::{Attempt, LastRun, Once, OnceBegin, OnceOutcome, RunOutcome, RunReport};
#[cfg(feature = "time-zones")]
pub use once::{InvalidTimeZone, TimeZone};
pub use options::Options;
pub use owner::{Label, OwnerId};
pub use per_runtime::PerRuntime;
pub use process::Executor;
pub use progress::{Outage, Progress};
pub use request::{
    ClaimOutcome, Grant, HoldTerms, KeepAlive, QueuePosition, Release, Request, RequestId, Wake,
};
pub use semaphore::{Semaphore, SemaphoreStatus, SlotGuard, SlotStatus};
pub use shutdown::{FailedRelease, ShutdownReport};
pub use store_config::StoreConfig;
pub use token::FencingToken;
pub use upgrade::Upgrade;
pub use watch::Watch;
pub use watched::{Change, ChangeKind, Renewals, WatchEvent, WatchState, WatchedLock};
