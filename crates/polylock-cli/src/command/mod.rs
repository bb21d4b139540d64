//! The commands that inspect locks, break them, or describe polylock and its tables.

mod admit;
mod break_lock;
mod describe;
mod inspect;

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use polylock::Locks;

pub(crate) use admit::admit;
pub(crate) use break_lock::break_lock;
pub(crate) use describe::{completions, man, schema};
pub(crate) use inspect::{list, status};

use crate::{
    args::Global,
    exit::{Failure, USAGE},
    output::Output,
    store,
};

/// Opens the store that is meant. Returns its name, without secrets, with it.
async fn open(global: &Global, output: &Output) -> Result<(Locks, String), Failure> {
    let store = store::choose(global, output)?;
    // Somebody wants to know now.
    let locks = Locks::builder_of(store.config).outage(Duration::ZERO).connect().await?;
    Ok((locks, store.shown))
}

/// # Errors
/// If nobody can be asked.
fn require_terminal() -> Result<(), Failure> {
    let problem = "stdin is no terminal to ask for a confirmation: add --yes to do it without one";
    if io::stdin().is_terminal() { Ok(()) } else { Err(Failure::new(USAGE, problem)) }
}

/// Asks for a confirmation on the terminal.
///
/// # Errors
/// If there is none.
fn is_confirmed(question: &str, output: &Output) -> Result<bool, Failure> {
    require_terminal()?;
    output.question(&format!("{question} [y/N] "));
    let mut answer = String::new();
    let answered = io::stdin().read_line(&mut answer);
    Ok(answered.is_ok() && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
