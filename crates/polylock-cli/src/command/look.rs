//! `status`, `list` and `break`.

use std::io::{self, IsTerminal, Write as _};

use polylock::{LockName, LockStatus, Locks};

use super::open;
use crate::{
    args::{Format, Global},
    exit::{Failure, USAGE},
    output::{Event, Output, What, lock_object, lock_text, milliseconds},
};

/// Shows one lock.
pub(crate) async fn status(global: &Global, name: &str, output: &Output) -> Result<u8, Failure> {
    let name = LockName::new(name)?;
    let locks = open(global).await?;
    let status = locks.inspect(&name).await?;
    output.data(&match output.format {
        Format::Text => lock_text(&status),
        Format::Json | Format::Jsonl => format!("{}\n", lock_object(&status, locks.capabilities().backend)),
    })?;
    Ok(0)
}

/// Shows all locks in use.
pub(crate) async fn list(global: &Global, prefix: &str, output: &Output) -> Result<u8, Failure> {
    let locks = open(global).await?;
    let all = locks.list(prefix).await?;
    let object = |status: &LockStatus| lock_object(status, locks.capabilities().backend);
    let text = match output.format {
        Format::Text => all.iter().map(lock_text).collect(),
        Format::Jsonl => all.iter().map(|status| object(status) + "\n").collect(),
        Format::Json if all.is_empty() => "[]\n".to_owned(),
        Format::Json => format!("[\n{}\n]\n", all.iter().map(object).collect::<Vec<_>>().join(",\n")),
    };
    output.data(&text)?;
    if all.is_empty() {
        output.detail("no lock is in use");
    }
    Ok(0)
}

/// Takes a lock from its holder, after asking.
pub(crate) async fn break_lock(
    global: &Global,
    name: &str,
    yes: bool,
    reason: Option<&str>,
    output: &Output,
) -> Result<u8, Failure> {
    let name = LockName::new(name)?;
    let locks = open(global).await?;
    if !yes && !agreed(&locks, &name).await? {
        return Ok(0);
    }
    let broken = locks.break_lock(&name).await?;
    let mut text = String::new();
    for entry in &broken {
        if output.is_text() {
            let why = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
            text += &format!("{name}: taken from {}{why}\n", entry.owner);
        } else {
            let mut event = Event::new(What::Broken, name.as_str(), entry.mode, &entry.owner, &entry.label);
            event.expires_in_ms = Some(milliseconds(entry.expires_in));
            event.backend = Some(locks.capabilities().backend);
            event.reason = reason.map(ToOwned::to_owned);
            text += &(event.token(entry.token).to_json() + "\n");
        }
    }
    output.data(&text)?;
    if broken.is_empty() {
        output.note(format!("nobody holds {name}"));
    }
    Ok(0)
}

/// Shows who holds the lock and asks.
async fn agreed(locks: &Locks, name: &LockName) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::new(
            USAGE,
            "nobody is there to ask: add --yes to break the lock without a question",
        ));
    }
    let status = locks.inspect(name).await?;
    if status.holders.is_empty() {
        return Ok(true);
    }
    let mut stderr = anstream::stderr();
    let asked = write!(stderr, "{}Break it? [y/N] ", lock_text(&status)).and_then(|()| stderr.flush());
    let mut answer = String::new();
    let answered = asked.and_then(|()| io::stdin().read_line(&mut answer));
    Ok(answered.is_ok() && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
