//! Events as JSON lines: a stable format, documented in `polylock run --help`.

use polylock::{BreakNotice, FencingToken, Mode, OwnerId};
use serde::Serialize;

use super::writer::Weight;
use crate::wall_clock;

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum EventKind {
    Queued,
    Acquired,
    Renewed,
    Lost,
    Unkillable,
    Released,
    Expired,
    Broken,
    Dropped,
    Verdict,
}

impl EventKind {
    /// Returns the weight, by which an event may be dropped if its reader is too slow.
    pub(super) const fn weight(self) -> Weight {
        match self {
            Self::Queued | Self::Acquired | Self::Renewed | Self::Unkillable | Self::Broken => {
                Weight::Ordinary
            }
            Self::Lost | Self::Released | Self::Expired | Self::Dropped | Self::Verdict => Weight::Essential,
        }
    }
}

/// One line. The first ten keys are always present.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Event {
    pub(crate) ts: String,
    pub(crate) event: EventKind,
    pub(crate) name: String,
    pub(crate) mode: &'static str,
    pub(crate) owner: String,
    pub(crate) label: String,
    pub(crate) fencing_token: Option<u64>,
    pub(crate) expires_in_ms: Option<u64>,
    pub(crate) position: Option<usize>,
    pub(crate) backend: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) verdict: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit_code: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// The number of the slot of `--slots` that is held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) slot: Option<u32>,
    /// The locks of `--also`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) also: Vec<AlsoLock>,
    /// True if the lock was broken by force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) forced: Option<bool>,
    /// The owner that broke the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) by: Option<String>,
    /// The reason of the break.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) broken_reason: Option<String>,
    /// The number of events that were dropped here because the earlier ones had not been read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dropped: Option<u64>,
}

/// A lock of `--also`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct AlsoLock {
    pub(crate) name: String,
    pub(crate) fencing_token: Option<u64>,
}

impl Event {
    /// Creates an event of the current time.
    pub(crate) fn new(event: EventKind, name: &str, mode: Mode, owner: &OwnerId, label: &str) -> Self {
        Self {
            ts: wall_clock::timestamp(),
            event,
            name: name.to_owned(),
            mode: mode.code(),
            owner: owner.to_string(),
            label: label.to_owned(),
            fencing_token: None,
            expires_in_ms: None,
            position: None,
            backend: None,
            verdict: None,
            exit_code: None,
            reason: None,
            slot: None,
            also: Vec::new(),
            forced: None,
            by: None,
            broken_reason: None,
            dropped: None,
        }
    }

    /// Adds the notice of a break.
    pub(crate) fn broken(mut self, notice: &BreakNotice) -> Self {
        self.by = notice.by.as_ref().map(ToString::to_string);
        self.broken_reason = notice.reason.as_ref().map(|reason| reason.as_str().to_owned());
        self
    }

    pub(crate) fn token(mut self, token: Option<FencingToken>) -> Self {
        self.fencing_token = token.map(FencingToken::get);
        self
    }

    /// Returns one line of JSON without a line feed.
    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}
