//! The commands that inspect locks, break them, or describe polylock and its tables.

mod break_lock;
mod describe;
mod inspect;

use polylock::Locks;

pub(crate) use break_lock::break_lock;
pub(crate) use describe::{completions, man, schema};
pub(crate) use inspect::{list, status};

use crate::{args::Global, exit::Failure, output::Output, store};

/// Opens the store that is meant. Returns its name, without secrets, with it.
async fn open(global: &Global, output: &Output) -> Result<(Locks, String), Failure> {
    let store = store::choose(global, output)?;
    Ok((Locks::from_config(store.config).await?, store.shown))
}
