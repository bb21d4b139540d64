//! What runs behind a lock, on the `polylock-io` thread: the attempt, the hold, the release, and what they share.

mod backoff;
mod hold;
mod pending;
mod reentry;
mod shared;
mod tenure;
mod turn;

pub(crate) use hold::{Ended, Hold, Phase};
pub(crate) use pending::Pending;
pub(crate) use reentry::Reentry;
pub(crate) use shared::{Front, Shared};
pub(crate) use tenure::Tenure;
pub(crate) use turn::{Limits, acquire};
