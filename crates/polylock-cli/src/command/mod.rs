//! The commands that inspect locks, break them, or describe polylock and its tables.

mod break_lock;
mod describe;
mod inspect;

use std::time::Duration;

use polylock::Locks;

pub(crate) use break_lock::break_lock;
pub(crate) use describe::{completions, man, schema};
pub(crate) use inspect::{list, status};

use crate::{args::Global, exit::Failure, output::Output, store};

/// Opens the store that is meant. Returns its name, without secrets, with it.
async fn open(global: &Global, output: &Output) -> Result<(Locks, String), Failure> {
    let store = store::choose(global, output)?;
    // Somebody wants to know now.
    let locks = Locks::builder_of(store.config).outage(Duration::ZERO).connect().await?;
    Ok((locks, store.shown))
}
