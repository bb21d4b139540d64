//! The commands that inspect locks, break them, or describe polylock and its tables.

mod admit;
mod break_lock;
mod describe;
mod handles;
mod inspect;
mod watch;

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use polylock::Locks;

pub(crate) use admit::admit;
pub(crate) use break_lock::break_lock;
#[cfg(feature = "top")]
pub(crate) use break_lock::{break_text, nothing_broken, operator};
pub(crate) use describe::{completions, man, schema};
pub(crate) use handles::{acquire, keeper, release, renew};
pub(crate) use inspect::{list, status};
pub(crate) use watch::watch;

use crate::{
    args::Global,
    exit::{Failure, USAGE},
    output::Output,
    store,
};

/// Opens the chosen store. Returns it with its name, without secrets.
pub(crate) async fn open(global: &Global, output: &Output) -> Result<(Locks, String), Failure> {
    let store = store::choose(global, output)?;
    // These commands are interactive, so a failure is reported at once.
    let locks = Locks::builder_from_config(store.config).outage(Duration::ZERO).connect().await?;
    Ok((locks, store.display_name))
}

/// Checks that a confirmation is possible.
///
/// # Errors
/// If stdin is not a terminal.
fn require_terminal() -> Result<(), Failure> {
    let problem = "a confirmation requires a terminal, and stdin is not a terminal: add --yes to skip it";
    if io::stdin().is_terminal() { Ok(()) } else { Err(Failure::new(USAGE, problem)) }
}

/// Requests a confirmation on the terminal.
///
/// # Errors
/// If there is no terminal.
fn is_confirmed(question: &str, output: &Output) -> Result<bool, Failure> {
    require_terminal()?;
    output.question(&format!("{question} [y/N] "));
    let mut answer = String::new();
    let result = io::stdin().read_line(&mut answer);
    Ok(result.is_ok() && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
