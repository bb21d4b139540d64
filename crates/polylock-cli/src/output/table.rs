//! Locks as text and as JSON.

use std::{borrow::Cow, time::Duration};

use anstyle::{AnsiColor, Style};
use polylock::{
    BreakNotice, Entry, FencingToken, Label, LastRun, LockName, LockStatus, OwnerId, RunOutcome,
    SemaphoreStatus,
};
use serde::Serialize;

use crate::wall_clock;

const NAME: Style = Style::new().bold();
const HELD: Style = AnsiColor::Yellow.on_default();
const FREE: Style = AnsiColor::Green.on_default();

/// A lock as a JSON object; documented in `polylock status --help`.
#[derive(Debug, Serialize)]
struct LockObject<'a> {
    name: Cow<'a, str>,
    /// The number of the slot if this is one of a semaphore.
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<u32>,
    state: &'static str,
    backend: &'a str,
    store: &'a str,
    holders: Vec<EntryObject<'a>>,
    waiters: Vec<EntryObject<'a>>,
    last_grant: Option<PastObject<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    semaphore: Option<SemaphoreObject<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_run: Option<RunObject<'a>>,
}

/// The recipes with the name of a lock that are in use.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Recipes<'a> {
    pub(crate) semaphore: Option<&'a SemaphoreStatus>,
    pub(crate) last_run: Option<&'a LastRun>,
}

/// The last run of the job with the name of the lock.
#[derive(Debug, Serialize)]
struct RunObject<'a> {
    outcome: &'static str,
    reason: Option<&'a str>,
    owner: &'a str,
    label: &'a str,
    fencing_token: u64,
    attempt: u32,
    started_at_ms: u64,
    ended_at_ms: Option<u64>,
    next_due_ms: u64,
}

impl<'a> RunObject<'a> {
    fn new(run: &'a LastRun) -> Self {
        let (ended_at, reason) = match &run.outcome {
            RunOutcome::Succeeded { at } => (Some(*at), None),
            RunOutcome::Failed { at, reason } => (Some(*at), Some(reason.as_str())),
            _ => (None, None),
        };
        Self {
            outcome: run.outcome.as_str(),
            reason,
            owner: run.owner.as_str(),
            label: &run.label,
            fencing_token: run.token.get(),
            attempt: run.attempt,
            started_at_ms: milliseconds(run.started_at),
            ended_at_ms: ended_at.map(milliseconds),
            next_due_ms: milliseconds(run.next_due),
        }
    }
}

/// The semaphore with the name of the lock.
#[derive(Debug, Serialize)]
struct SemaphoreObject<'a> {
    slots: u32,
    held: Vec<SlotObject<'a>>,
    waiters: Vec<EntryObject<'a>>,
}

#[derive(Debug, Serialize)]
struct SlotObject<'a> {
    slot: u32,
    #[serde(flatten)]
    holder: EntryObject<'a>,
}

/// The last grant of a free lock.
#[derive(Debug, Serialize)]
struct PastObject<'a> {
    owner: &'a str,
    label: &'a str,
    fencing_token: u64,
    age_ms: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct EntryObject<'a> {
    mode: &'static str,
    owner: &'a str,
    label: &'a str,
    fencing_token: Option<u64>,
    age_ms: u64,
    expires_in_ms: u64,
    pub(super) position: Option<usize>,
    broken: Option<BrokenObject<'a>>,
}

/// The owner and the reason of a break, for a hold that has not ended yet.
#[derive(Debug, Serialize)]
struct BrokenObject<'a> {
    by: Option<&'a str>,
    reason: Option<&'a str>,
}

impl<'a> EntryObject<'a> {
    pub(super) fn new(entry: &'a Entry, position: Option<usize>) -> Self {
        Self {
            mode: entry.mode.code(),
            owner: entry.owner.as_str(),
            label: &entry.label,
            fencing_token: entry.token.map(FencingToken::get),
            age_ms: milliseconds(entry.age),
            expires_in_ms: milliseconds(entry.expires_in),
            position,
            broken: entry.broken.as_ref().map(|notice| BrokenObject {
                by: notice.by.as_ref().map(OwnerId::as_str),
                reason: notice.reason.as_ref().map(Label::as_str),
            }),
        }
    }
}

fn queue(waiters: &[Entry]) -> Vec<EntryObject<'_>> {
    waiters.iter().enumerate().map(|(index, entry)| EntryObject::new(entry, Some(index + 1))).collect()
}

/// Returns a name for JSON, and the number of the slot if it is that of a slot.
pub(super) fn name_and_slot(name: &LockName) -> (Cow<'_, str>, Option<u32>) {
    match name.slot() {
        Some((semaphore, slot)) => (semaphore.into(), Some(slot)),
        None if name.is_turnstile() => (name.to_string().into(), None),
        None => (name.as_str().into(), None),
    }
}

/// Returns a lock as a JSON object, with the recipes of the same name. `store` is the name of the store without secrets.
pub(crate) fn lock_object(status: &LockStatus, recipes: Recipes<'_>, backend: &str, store: &str) -> String {
    let semaphore = recipes.semaphore.and_then(|semaphore| {
        let held = semaphore.held.iter();
        let held =
            held.map(|slot| SlotObject { slot: slot.slot, holder: EntryObject::new(&slot.holder, None) });
        Some(SemaphoreObject {
            slots: semaphore.slots?,
            held: held.collect(),
            waiters: queue(&semaphore.waiters),
        })
    });
    let (name, slot) = name_and_slot(&status.name);
    let last_grant = status.last_grant.as_ref().map(|grant| PastObject {
        owner: grant.owner.as_str(),
        label: &grant.label,
        fencing_token: grant.token.get(),
        age_ms: milliseconds(grant.age),
    });
    let object = LockObject {
        name,
        slot,
        state: state(status),
        backend,
        store,
        holders: status.holders.iter().map(|entry| EntryObject::new(entry, None)).collect(),
        waiters: queue(&status.waiters),
        last_grant,
        semaphore,
        last_run: recipes.last_run.map(RunObject::new),
    };
    serde_json::to_string(&object).unwrap_or_default()
}

fn state(status: &LockStatus) -> &'static str {
    match (status.holders.is_empty(), status.waiters.is_empty()) {
        (false, _) => "held",
        (true, false) => "waiting",
        (true, true) => "free",
    }
}

/// Returns a lock as text: a line with its name, then one for each holder and waiter.
pub(crate) fn lock_text(status: &LockStatus) -> String {
    let state = state(status);
    let style = if state == "free" { FREE } else { HELD };
    let mut text = format!("{NAME}{}{NAME:#}: {style}{state}{style:#}\n", status.name);
    for entry in &status.holders {
        text += &format!(
            "  held by {}{}, {}, for {}, lease {}{}\n",
            owner_and_label(entry),
            entry.token.map_or_else(String::new, |token| format!(", token {token}")),
            entry.mode,
            seconds(entry.age),
            seconds(entry.expires_in),
            broken(entry)
        );
    }
    for (index, entry) in status.waiters.iter().enumerate() {
        text += &format!(
            "  {} in line: {}, {}, for {}\n",
            ordinal(index + 1),
            owner_and_label(entry),
            entry.mode,
            seconds(entry.age)
        );
    }
    if let Some(grant) = &status.last_grant {
        let owner = owner_with(&grant.owner, &grant.label);
        text +=
            &format!("  last held by {owner}, token {}, granted {} ago\n", grant.token, seconds(grant.age));
    }
    text
}

/// Returns the slots and the waiters of a semaphore that is in use as text.
pub(crate) fn semaphore_text(status: &SemaphoreStatus) -> String {
    let Some(slots) = status.slots else { return String::new() };
    let mut text = format!("  {} of {slots} slots held\n", status.held.len());
    for slot in &status.held {
        let holder = &slot.holder;
        text += &format!(
            "  slot {} held by {}{}, for {}, lease {}{}\n",
            slot.slot,
            owner_and_label(holder),
            holder.token.map_or_else(String::new, |token| format!(", token {token}")),
            seconds(holder.age),
            seconds(holder.expires_in),
            broken(holder)
        );
    }
    for (index, waiter) in status.waiters.iter().enumerate() {
        let (place, age) = (ordinal(index + 1), seconds(waiter.age));
        text += &format!("  {place} in line for a slot: {}, for {age}\n", owner_and_label(waiter));
    }
    text
}

/// Returns the last run of a job as text.
pub(crate) fn last_run_text(run: &LastRun) -> String {
    let outcome = match &run.outcome {
        RunOutcome::Succeeded { at } => format!("succeeded at {}", wall_clock::at(*at)),
        RunOutcome::Failed { at, reason } => format!("failed at {} ({reason})", wall_clock::at(*at)),
        _ => "has no recorded end".to_owned(),
    };
    format!(
        "  last run by {}, token {}, attempt {}: began at {}, {outcome}; the next period begins at {}\n",
        owner_with(&run.owner, &run.label),
        run.token,
        run.attempt,
        wall_clock::at(run.started_at),
        wall_clock::at(run.next_due)
    )
}

/// Returns the owner, with the label if there is one.
pub(crate) fn owner_and_label(entry: &Entry) -> String {
    owner_with(&entry.owner, &entry.label)
}

fn owner_with(owner: &OwnerId, label: &str) -> String {
    if label.is_empty() { owner.to_string() } else { format!("{owner} ({label})") }
}

/// Returns the owner and the reason of a break, and the end of the broken hold.
fn broken(entry: &Entry) -> String {
    entry.broken.as_ref().map_or_else(String::new, |notice| {
        format!("; {}, until it has stopped, {} at most", notice_text(notice), seconds(entry.expires_in))
    })
}

/// Returns `broken by root@host:1 (it hangs)`.
pub(crate) fn notice_text(notice: &BreakNotice) -> String {
    let by = notice.by.as_ref().map_or_else(String::new, |by| format!(" by {by}"));
    let reason = notice.reason.as_ref().map_or_else(String::new, |reason| format!(" ({})", reason.as_str()));
    format!("broken{by}{reason}")
}

/// Returns a time in whole seconds: `2m 3s`.
pub(crate) fn seconds(time: Duration) -> String {
    polylock::duration::format(Duration::from_secs(time.as_secs()))
}

/// Returns a rounded time, with milliseconds only if it is short: `4s`, `1m 30s`, `250ms`.
pub(crate) fn rounded(time: Duration) -> String {
    let unit = if time < Duration::from_secs(2) { 10 } else { 1000 };
    let time = (milliseconds(time).saturating_add(unit / 2)) / unit * unit;
    polylock::duration::format(Duration::from_millis(time))
}

/// Returns `1st`, `2nd`, `3rd`, `4th`, …, `11th`, …, `21st`.
pub(super) fn ordinal(number: usize) -> String {
    let ending = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

pub(crate) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use polylock::{LockName, Mode};

    use super::*;

    #[test]
    fn a_broken_hold_shows_the_owner_and_the_reason_of_the_break() {
        let notice =
            BreakNotice::new(OwnerId::new("root@host-b:7").unwrap(), Some(Label::new("it hangs").unwrap()));
        let second = Duration::from_secs(1);
        let holder = Entry::new(
            Mode::Exclusive,
            OwnerId::new("host-a:1").unwrap(),
            "",
            FencingToken::new(6),
            3 * second,
            27 * second,
        );
        let mut status = LockStatus::new(LockName::new("x").unwrap(), vec![holder.clone()], Vec::new());
        assert!(lock_object(&status, Recipes::default(), "memory", "memory:").contains("\"broken\":null"));
        status.holders = vec![holder.broken(Some(notice))];
        let text = anstream::adapter::strip_str(&lock_text(&status)).to_string();
        assert_eq!(
            text,
            "x: held\n  held by host-a:1, token 6, EX, for 3s, lease 27s; broken by root@host-b:7 (it hangs), until it has \
             stopped, 27s at most\n"
        );
        let object = lock_object(&status, Recipes::default(), "memory", "memory:");
        assert!(object.contains(r#""broken":{"by":"root@host-b:7","reason":"it hangs"}"#), "{object}");
    }

    #[test]
    fn ordinals() {
        for (number, text) in [
            (1, "1st"),
            (2, "2nd"),
            (3, "3rd"),
            (4, "4th"),
            (11, "11th"),
            (12, "12th"),
            (13, "13th"),
            (21, "21st"),
            (112, "112th"),
        ] {
            assert_eq!(ordinal(number), text);
        }
    }
}
