//! Locks and their holders and waiters, as objects of JSON.

use std::time::Duration;

use polylock_core::{Entry, LockName, LockStatus};
use serde::Serialize;

/// The name of a lock, exactly: JSON can carry every name, and only a terminal needs an escaped one.
#[derive(Debug, Serialize)]
pub(crate) struct NameObject {
    name: String,
    /// The number of the slot, if the name is that of a semaphore.
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<u32>,
    /// True for the lock that the requests for a semaphore wait for.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    turnstile: bool,
}

/// A lock.
#[derive(Debug, Serialize)]
pub(crate) struct LockObject {
    #[serde(flatten)]
    name: NameObject,
    holders: Vec<EntryObject>,
    waiters: Vec<EntryObject>,
}

/// A holder or a waiter.
#[derive(Debug, Serialize)]
pub(crate) struct EntryObject {
    mode: &'static str,
    owner: String,
    label: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fencing_token: Option<u64>,
    age_ms: u64,
    expires_in_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    broken: Option<String>,
}

impl From<&LockName> for NameObject {
    fn from(name: &LockName) -> Self {
        Self {
            name: name.semaphore().unwrap_or(name.as_str()).to_owned(),
            slot: name.slot().map(|(_, slot)| slot),
            turnstile: name.is_turnstile(),
        }
    }
}

impl From<&LockStatus> for LockObject {
    fn from(status: &LockStatus) -> Self {
        Self {
            name: (&status.name).into(),
            holders: status.holders.iter().map(Into::into).collect(),
            waiters: status.waiters.iter().map(Into::into).collect(),
        }
    }
}

impl From<&Entry> for EntryObject {
    fn from(entry: &Entry) -> Self {
        Self {
            mode: entry.mode.code(),
            owner: entry.owner.as_str().to_owned(),
            label: entry.label.clone(),
            fencing_token: entry.token.map(|token| token.get()),
            age_ms: ms(entry.age),
            expires_in_ms: ms(entry.expires_in),
            broken: entry.broken.as_ref().map(ToString::to_string),
        }
    }
}

/// Returns whole milliseconds.
pub(crate) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
