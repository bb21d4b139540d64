//! `break`.

use std::time::Duration;

use polylock::{Clock, Entry, FencingToken, Label, LockName, LockStatus, Locks, OwnerId, SystemClock};

use super::{is_confirmed, open, require_terminal};
use crate::{
    args::{Break, Global},
    exit::{Failure, NOT_ACQUIRED, USAGE},
    output::{Event, EventKind, Output, lock_text, milliseconds, notice_text, owner_and_label, seconds},
    user,
};

/// The interval at which `--wait` checks the lock.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Breaks a lock, after a confirmation: notifies its holders so that they stop and release it, or removes their holds by force.
pub(crate) async fn break_lock(global: &Global, args: &Break, output: &Output) -> Result<u8, Failure> {
    let name = match args.slot {
        Some(slot) => LockName::of_slot(&args.name, slot)?,
        None => LockName::new(&args.name)?,
    };
    if let Some(reason) = &args.reason {
        Label::new(reason).map_err(|error| Failure::new(USAGE, format!("--reason: {}", error.problem)))?;
    }
    let (locks, _) = open(global, output).await?;
    let mut tokens: Vec<_> = args.tokens.iter().filter_map(|token| FencingToken::new(*token)).collect();
    if !args.yes {
        require_terminal()?;
        let mut status = locks.inspect(&name).await?;
        if !tokens.is_empty() {
            status.holders.retain(|holder| holder.token.is_some_and(|token| tokens.contains(&token)));
        }
        if status.holders.is_empty() {
            output.note(nothing_broken(&name, &tokens) + &held_slots(&locks, &name).await?);
            return Ok(0);
        }
        if !is_break_confirmed(&status, args.force, output)? {
            return Ok(0);
        }
        // Nobody who comes after the question is broken.
        tokens.extend(status.holders.iter().filter_map(|holder| holder.token));
    }
    let by = operator();
    let mut broken = tokens.iter().fold(locks.break_lock(&name).by(&by), |order, token| order.token(*token));
    if let Some(reason) = &args.reason {
        broken = broken.reason(reason);
    }
    if args.force {
        broken = broken.force();
    }
    let broken = broken.await?;

    let text = |entry| break_text(&name, entry, args.force, &by);
    let event = |entry: &Entry| {
        let mut event = Event::new(EventKind::Broken, name.as_str(), entry.mode, &entry.owner, &entry.label);
        event.expires_in_ms = Some(milliseconds(entry.expires_in));
        event.backend = Some(locks.capabilities().backend);
        event.forced = Some(args.force);
        event.by = Some(by.to_string());
        event.reason = args.reason.clone();
        event.token(entry.token).to_json() + "\n"
    };
    output.data(
        &broken
            .iter()
            .map(|entry| if output.is_text() { text(entry) } else { event(entry) })
            .collect::<String>(),
    )?;
    if broken.is_empty() {
        output.note(nothing_broken(&name, &tokens) + &held_slots(&locks, &name).await?);
    }
    match args.wait {
        Some(limit) => wait(&locks, &name, &broken, limit, output).await,
        None => Ok(0),
    }
}

/// Waits until all of the `broken` holds have ended.
async fn wait(
    locks: &Locks,
    name: &LockName,
    broken: &[Entry],
    limit: Duration,
    output: &Output,
) -> Result<u8, Failure> {
    let until = SystemClock.now() + limit;
    loop {
        let status = locks.inspect(name).await?;
        let mut remaining =
            status.holders.iter().filter(|holder| broken.iter().any(|entry| entry.token == holder.token));
        let Some(holder) = remaining.next() else { return Ok(0) };
        let now = SystemClock.now();
        if now >= until {
            output.note(format!(
                "{name} is still held by {}, for {} at most; wait longer, or use --force",
                owner_and_label(holder),
                seconds(holder.expires_in)
            ));
            return Ok(NOT_ACQUIRED);
        }
        SystemClock.sleep_until(until.min(now + POLL_INTERVAL)).await;
    }
}

/// Returns the text about a break of the holds with these tokens, or of any, that has found none.
pub(crate) fn nothing_broken(name: &LockName, tokens: &[FencingToken]) -> String {
    match tokens {
        [] => format!("lock {name} is not held"),
        [token] => format!("lock {name}: nothing is broken, because the hold with token {token} has ended"),
        _ => format!("lock {name}: nothing is broken, because these holds have ended"),
    }
}

/// Returns the text about the held slots with the name of a lock, of which nothing was broken: the lock is independent of them.
async fn held_slots(locks: &Locks, name: &LockName) -> Result<String, Failure> {
    if name.slot().is_some() {
        return Ok(String::new());
    }
    let held = locks.inspect_semaphore(name).await?.held;
    let numbers: Vec<_> = held.iter().map(|slot| slot.slot.to_string()).collect();
    Ok(match &*numbers {
        [] => String::new(),
        [slot] => format!("; slot {slot} of {name} is held: break it with --slot {slot}"),
        _ => format!("; slots {} of {name} are held: break one with --slot", numbers.join(", ")),
    })
}

/// Returns the text about the effect of a break on the hold `entry`.
pub(crate) fn break_text(name: &LockName, entry: &Entry, force: bool, by: &OwnerId) -> String {
    if force { forced_text(name, entry) } else { requested_text(name, entry, by) }
}

/// Returns the text about the effect of a cooperative break on the hold `entry`.
fn requested_text(name: &LockName, entry: &Entry, by: &OwnerId) -> String {
    let earlier = entry.broken.as_ref().filter(|notice| notice.by.as_ref() != Some(by));
    let effect = match earlier {
        Some(notice) => {
            format!("{} was already requested to stop: {}", owner_and_label(entry), notice_text(notice))
        }
        None => format!("requested {} to stop", owner_and_label(entry)),
    };
    format!(
        "{name}: {effect}; the lock is free when it has stopped, in {} at the latest\n",
        seconds(entry.expires_in)
    )
}

/// Returns the text about the effect of a forced break on the hold `entry`.
fn forced_text(name: &LockName, entry: &Entry) -> String {
    format!(
        "{name}: taken from {} by force; the former holder may continue to work until its next renewal\n",
        owner_and_label(entry)
    )
}

/// Shows the holders of the lock, and requests a confirmation.
fn is_break_confirmed(status: &LockStatus, force: bool, output: &Output) -> Result<bool, Failure> {
    let consequence = if force {
        "The holder may continue to work beside the next one until its next renewal. Break the lock by force?"
    } else {
        "The holder is requested to stop, and keeps the lock until it has stopped. Break the lock?"
    };
    is_confirmed(&format!("{}{consequence}", lock_text(status)), output)
}

/// Returns `user@host:pid`, with the user from the environment.
pub(crate) fn operator() -> OwnerId {
    let process = OwnerId::process();
    OwnerId::sanitized(&format!("{}@{process}", user::name()))
}

#[cfg(test)]
mod tests {
    use polylock::{BreakNotice, Mode};

    use super::*;

    #[test]
    fn a_break_reports_its_effect_and_when_the_lock_is_free() {
        let (name, by) = (LockName::new("orders").unwrap(), OwnerId::new("root@host-b:7").unwrap());
        let reason = Some(Label::new("it hangs").unwrap());
        let entry = |notice| {
            Entry::new(
                Mode::Exclusive,
                OwnerId::new("host-a:1").unwrap(),
                "nightly",
                FencingToken::new(41),
                Duration::from_secs(123),
                Duration::from_millis(27_900),
            )
            .broken(notice)
        };
        assert_eq!(
            requested_text(&name, &entry(Some(BreakNotice::new(by.clone(), reason.clone()))), &by),
            "orders: requested host-a:1 (nightly) to stop; the lock is free when it has stopped, in 27s at the latest\n"
        );
        let earlier = BreakNotice::new(OwnerId::new("eva@host-c:3").unwrap(), reason);
        assert_eq!(
            requested_text(&name, &entry(Some(earlier)), &by),
            "orders: host-a:1 (nightly) was already requested to stop: broken by eva@host-c:3 (it hangs); the lock is free when it has \
             stopped, in 27s at the latest\n"
        );
        assert!(
            forced_text(&name, &entry(None)).starts_with("orders: taken from host-a:1 (nightly) by force; ")
        );
        assert!(operator().as_str().ends_with(OwnerId::process().as_str()));
    }
}
