//! The implementation of locks on the I/O thread of a store: the acquisition, the hold, the release, and their shared context.

mod acquire;
mod acquisition;
mod acquisition_task;
mod adopt;
mod backoff;
mod connect;
mod context;
mod conversion;
mod first_claim;
mod foreground;
mod gauges;
mod hold;
mod hold_events;
mod hold_limits;
mod keeper;
mod known_semaphores;
mod lifecycle;
mod local_queue;
mod pending;
mod phase;
mod queue_reader;
mod shared_hold;
mod shutdown;

pub(crate) use acquire::acquire;
pub(crate) use acquisition::Limits;
pub(crate) use adopt::adopt;
pub(crate) use backoff::Backoff;
pub use connect::connect_within;
pub(crate) use context::StoreContext;
pub(crate) use hold::{Ended, Hold};
pub use hold_events::{GuardEvent, GuardEvents};
pub(crate) use hold_limits::HoldLimits;
pub(crate) use pending::Pending;
pub(crate) use phase::Phase;
pub(crate) use shared_hold::{SharedHold, StoreHandle};
pub(crate) use shutdown::shut_down;
