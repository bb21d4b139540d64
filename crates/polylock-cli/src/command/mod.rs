//! The commands that inspect locks, break them, or describe polylock and its tables.

mod break_lock;
mod describe;
mod inspect;

use polylock::Locks;

pub(crate) use break_lock::break_lock;
pub(crate) use describe::{completions, man, schema};
pub(crate) use inspect::{list, status};

use crate::{args::Global, exit::Failure, store};

/// Opens the store that is meant.
async fn open(global: &Global) -> Result<Locks, Failure> {
    Ok(Locks::from_config(store::choose(global)?.config).await?)
}
