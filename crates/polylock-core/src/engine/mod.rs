//! The implementation of locks on the I/O thread of a store: the acquisition, the hold, the release, and their shared context.

mod acquire;
mod acquisition;
mod backoff;
mod connect;
mod context;
mod first_claim;
mod foreground;
mod gauges;
mod hold;
mod keeper;
mod local_queue;
mod pending;
mod reentry;
mod shared_hold;

pub(crate) use acquire::{Limits, acquire};
pub use connect::connect_within;
pub(crate) use context::{StoreContext, StoreHandle};
pub(crate) use foreground::Foreground;
pub(crate) use hold::{Ended, Hold, Phase};
pub(crate) use keeper::Keeper;
pub(crate) use pending::Pending;
pub(crate) use reentry::Reentry;
pub(crate) use shared_hold::SharedHold;
