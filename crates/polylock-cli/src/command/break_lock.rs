//! `break`.

use std::time::Duration;

use polylock::{Clock, Entry, Label, LockName, Locks, OwnerId, SystemClock};

use super::{is_confirmed, open, require_terminal};
use crate::{
    args::{Break, Global},
    exit::{Failure, NOT_ACQUIRED, USAGE},
    output::{Event, Output, What, described, lock_text, milliseconds, notice_text, seconds},
    user,
};

/// How often `--wait` looks at the lock.
const LOOK: Duration = Duration::from_millis(200);

/// Breaks a lock, after a confirmation: has its holders stop and release it, or takes it from them by force.
pub(crate) async fn break_lock(global: &Global, order: &Break, output: &Output) -> Result<u8, Failure> {
    let name = LockName::new(&order.name)?;
    if let Some(reason) = &order.reason {
        Label::new(reason).map_err(|error| Failure::new(USAGE, format!("--reason: {}", error.problem)))?;
    }
    let (locks, _) = open(global, output).await?;
    if !order.yes && !is_wanted(&locks, &name, order.force, output).await? {
        return Ok(0);
    }
    let by = operator();
    let mut broken = locks.break_lock(&name).by(&by);
    if let Some(reason) = &order.reason {
        broken = broken.reason(reason);
    }
    if order.force {
        broken = broken.force();
    }
    let broken = broken.await?;

    let text = |entry| if order.force { forced_text(&name, entry) } else { told_text(&name, entry, &by) };
    let event = |entry: &Entry| {
        let mut event = Event::new(What::Broken, name.as_str(), entry.mode, &entry.owner, &entry.label);
        event.expires_in_ms = Some(milliseconds(entry.expires_in));
        event.backend = Some(locks.capabilities().backend);
        event.forced = Some(order.force);
        event.by = Some(by.to_string());
        event.reason = order.reason.clone();
        event.token(entry.token).to_json() + "\n"
    };
    output.data(
        &broken
            .iter()
            .map(|entry| if output.is_text() { text(entry) } else { event(entry) })
            .collect::<String>(),
    )?;
    if broken.is_empty() {
        output.note(format!("nobody holds {name}"));
    }
    match order.wait {
        Some(limit) => wait(&locks, &name, &broken, limit, output).await,
        None => Ok(0),
    }
}

/// Waits until none of the holds that were `broken` is left.
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
        let mut left =
            status.holders.iter().filter(|holder| broken.iter().any(|entry| entry.token == holder.token));
        let Some(holder) = left.next() else { return Ok(0) };
        let now = SystemClock.now();
        if now >= until {
            output.note(format!(
                "{name} is still held by {}, for {} at most",
                described(holder),
                seconds(holder.expires_in)
            ));
            return Ok(NOT_ACQUIRED);
        }
        SystemClock.sleep_until(until.min(now + LOOK)).await;
    }
}

/// What a cooperative break has done to the hold `entry`.
fn told_text(name: &LockName, entry: &Entry, by: &OwnerId) -> String {
    let earlier = entry.broken.as_ref().filter(|notice| notice.by.as_ref() != Some(by));
    let done = match earlier {
        Some(notice) => format!("{} was told to stop before: {}", described(entry), notice_text(notice)),
        None => format!("told {} to stop", described(entry)),
    };
    format!(
        "{name}: {done}; the lock is free when it has stopped, in {} at the latest\n",
        seconds(entry.expires_in)
    )
}

/// What a break by force has done to the hold `entry`.
fn forced_text(name: &LockName, entry: &Entry) -> String {
    format!(
        "{name}: taken from {} by force; it may go on working until it notices, at its next renewal\n",
        described(entry)
    )
}

/// Shows who holds the lock and asks for a confirmation.
async fn is_wanted(locks: &Locks, name: &LockName, force: bool, output: &Output) -> Result<bool, Failure> {
    require_terminal()?;
    let status = locks.inspect(name).await?;
    if status.holders.is_empty() {
        return Ok(true);
    }
    let consequence = if force {
        "Its holder may go on working beside the next one until its next renewal. Break it by force?"
    } else {
        "Its holder is told to stop, and keeps the lock until it has stopped. Break it?"
    };
    is_confirmed(&format!("{}{consequence}", lock_text(&status)), output)
}

/// `user@host:pid`, as the environment tells the user.
fn operator() -> OwnerId {
    let process = OwnerId::process();
    OwnerId::sanitized(&format!("{}@{process}", user::name()))
}

#[cfg(test)]
mod tests {
    use polylock::{BreakNotice, FencingToken, Mode};

    use super::*;

    #[test]
    fn a_break_says_what_was_done_and_when_the_lock_is_free() {
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
            told_text(&name, &entry(Some(BreakNotice::new(by.clone(), reason.clone()))), &by),
            "orders: told host-a:1 (nightly) to stop; the lock is free when it has stopped, in 27s at the latest\n"
        );
        let earlier = BreakNotice::new(OwnerId::new("eva@host-c:3").unwrap(), reason);
        assert_eq!(
            told_text(&name, &entry(Some(earlier)), &by),
            "orders: host-a:1 (nightly) was told to stop before: broken by eva@host-c:3 (it hangs); the lock is free when it has \
             stopped, in 27s at the latest\n"
        );
        assert!(
            forced_text(&name, &entry(None)).starts_with("orders: taken from host-a:1 (nightly) by force; ")
        );
        assert!(operator().as_str().ends_with(OwnerId::process().as_str()));
    }
}
