//! The commands that look at locks, break them, or describe polylock and its tables.

mod describe;
mod look;

use polylock::Locks;

pub(crate) use describe::{completions, man, schema};
pub(crate) use look::{break_lock, list, status};

use crate::{args::Global, exit::Failure, store};

/// Opens the store that is meant.
async fn open(global: &Global) -> Result<Locks, Failure> {
    Ok(Locks::from_config(store::choose(global)?.config).await?)
}
