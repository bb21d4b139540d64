//! The contract of polylock, and everything that is the same for every store, written once.
//!
//! Most programs use the facade, the crate `polylock`, which adds `Locks::connect(url)`. This crate is for authors of
//! stores, and for those who want one store without the facade.
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
//! # What a lease is
//!
//! A lock that lives outside its holder must end when the holder dies, so it is given for a time, the *lease*, and renewed
//! while the holder lives. The store's clock decides when it ends for others. The holder goes by its own monotonic clock, and
//! by a *deadline* that is earlier: the instant **before** the last successful claim or renewal was sent, plus the lease, minus
//! a margin (the larger of 10 ms and 1 %). So a holder knows that it has lost the lock before anyone else can have it, as long
//! as the two clocks run at nearly the same rate. That clock counts on while the machine sleeps ([`SystemClock`]).
//!
//! # What a fencing token is for
//!
//! Nothing can stop a process that is paused in the middle of a write. So every grant carries a [`FencingToken`], strictly
//! greater than every earlier one of that name, and the resource that is written to refuses a smaller token than it has seen.
//! With a resource that checks, two holders at once do no harm; without one, a lease only makes them very unlikely.
//!
//! # What runs where
//!
//! [`Locks::lock`] makes a [`Lock`], [`Lock::acquire`] starts an attempt, and the attempt becomes a [`Guard`]. The attempt, the
//! renewals and the release run on a thread of the library's own ([`io`]), so they go on when the caller's future is dropped,
//! its executor is blocked or its runtime ends.
//!
//! # Tests with a paused clock
//!
//! `tokio::time::pause` and `start_paused` advance the clock of a runtime to its next timer as soon as the runtime is idle, and a
//! runtime that waits for the library's thread is idle. So a `tokio::time::timeout` around [`Lock::acquire`] ends at once, whatever
//! its duration. Limit the waiting with [`Lock::wait`] instead: the library's timers run on its own thread and are not affected. A
//! test that controls the leases passes a `ManualClock` of `polylock-testkit` to [`LocksBuilder::clock`].
//!
//! # The two sides
//!
//! Users see [`Locks`], [`Lock`] and [`Guard`]. Authors of a store implement [`Backend`] (five methods; see [`backend`] for the
//! contract) and perhaps [`Inspect`], and hold it to the contract with the crate `polylock-testkit`. The authors' side may
//! change more often than the users'.

pub mod backend;
mod break_lock;
mod capabilities;
pub mod clock;
mod delays;
pub mod duration;
mod engine;
mod error;
pub mod failure;
mod guard;
mod hold_alerts;
pub mod hub;
pub mod invariant;
pub mod io;
pub mod line;
mod lock;
mod locks;
pub mod memory;
pub mod metrics;
mod mode;
mod name;
mod observer;
mod options;
mod owner;
mod per_runtime;
mod progress;
pub mod queue;
mod request;
pub mod server_clock;
mod token;
pub mod url;

pub use backend::{Backend, Entry, Inspect, LockStatus, Store};
pub use break_lock::{BreakLock, BreakNotice, BreakOrder};
pub use capabilities::{Capabilities, Carrier, Fencing, FirstStep, Modes, Order, QueueLease, Reach, WakeUp};
pub use clock::{Clock, Moment, SystemClock};
pub use engine::connect_within;
pub use error::{ConfigError, Error, Fault, LostReason, NotAcquired, Operation, Result, Unavailable};
pub use guard::Guard;
pub use hold_alerts::HoldAlerts;
pub use lock::Lock;
pub use locks::{Locks, LocksBuilder};
pub use mode::{Mode, UnknownMode};
pub use name::{InvalidName, LockName};
pub use options::Options;
pub use owner::{Label, OwnerId};
pub use per_runtime::PerRuntime;
pub use progress::{Outage, Progress};
pub use request::{Grant, KeepAlive, Place, Release, Request, RequestId, Standing, Wake};
pub use token::FencingToken;
