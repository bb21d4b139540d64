//! The contract of polylock, and everything that is the same for every store.
pub mod backend;
mod capabilities;
pub mod clock;
pub mod duration;
mod error;
pub mod hub;
pub mod invariant;
mod mode;
mod name;
mod options;
mod owner;
pub mod queue;
mod request;
mod token;
pub mod url;

pub use backend::{Backend, Entry, Inspect, LockStatus, Store};
pub use capabilities::{Capabilities, Fencing, Modes, Order, Reach, WakeUp};
pub use clock::{Clock, Moment, SystemClock};
pub use error::{ConfigError, Error, Fault, LostReason, NotAcquired, Operation, Result, Unavailable};
pub use mode::{Mode, UnknownMode};
pub use name::{InvalidName, LockName};
pub use options::Options;
pub use owner::{Label, OwnerId};
pub use request::{Grant, Place, Renewal, Request, RequestId, Standing, Wake};
pub use token::FencingToken;
