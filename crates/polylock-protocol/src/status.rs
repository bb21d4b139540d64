//! The status of locks.

use std::time::Duration;

use polylock_core::{BreakNotice, Entry, Label, LockStatus, OwnerId, PastGrant};
use serde::{Deserialize, Serialize};

use crate::{
    InvalidBody, micros,
    values::{mode_of, name_of, token_of},
};

/// A [`LockStatus`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StatusBody {
    name: String,
    holders: Vec<EntryBody>,
    waiters: Vec<EntryBody>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    last_grant: Option<PastGrantBody>,
}

impl From<&LockStatus> for StatusBody {
    fn from(status: &LockStatus) -> Self {
        Self {
            name: status.name.as_str().to_owned(),
            holders: status.holders.iter().map(Into::into).collect(),
            waiters: status.waiters.iter().map(Into::into).collect(),
            last_grant: status.last_grant.as_ref().map(Into::into),
        }
    }
}

impl TryFrom<&StatusBody> for LockStatus {
    type Error = InvalidBody;

    fn try_from(body: &StatusBody) -> Result<Self, InvalidBody> {
        let name = name_of(&body.name)?;
        let entries = |of: &[EntryBody]| of.iter().map(TryInto::try_into).collect::<Result<Vec<Entry>, _>>();
        let last_grant = body.last_grant.as_ref().map(TryInto::try_into).transpose()?;
        Ok(Self::new(name, entries(&body.holders)?, entries(&body.waiters)?).last_grant(last_grant))
    }
}

/// An [`Entry`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EntryBody {
    mode: String,
    owner: String,
    label: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    token: Option<u64>,
    age_us: u64,
    expires_in_us: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    broken: Option<BreakNoticeBody>,
}

impl From<&Entry> for EntryBody {
    fn from(entry: &Entry) -> Self {
        Self {
            mode: entry.mode.code().to_owned(),
            owner: entry.owner.as_str().to_owned(),
            label: entry.label.clone(),
            token: entry.token.map(|token| token.get()),
            age_us: micros(entry.age),
            expires_in_us: micros(entry.expires_in),
            broken: entry.broken.as_ref().map(Into::into),
        }
    }
}

impl TryFrom<&EntryBody> for Entry {
    type Error = InvalidBody;

    fn try_from(body: &EntryBody) -> Result<Self, InvalidBody> {
        let (age, expires_in) =
            (Duration::from_micros(body.age_us), Duration::from_micros(body.expires_in_us));
        let token = body.token.map(token_of).transpose()?;
        let owner = OwnerId::sanitized(&body.owner);
        let entry = Self::new(mode_of(&body.mode)?, owner, &body.label, token, age, expires_in);
        Ok(entry.broken(body.broken.as_ref().map(Into::into)))
    }
}

/// A [`PastGrant`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PastGrantBody {
    owner: String,
    label: String,
    token: u64,
    age_us: u64,
}

impl From<&PastGrant> for PastGrantBody {
    fn from(grant: &PastGrant) -> Self {
        Self {
            owner: grant.owner.as_str().to_owned(),
            label: grant.label.clone(),
            token: grant.token.get(),
            age_us: micros(grant.age),
        }
    }
}

impl TryFrom<&PastGrantBody> for PastGrant {
    type Error = InvalidBody;

    fn try_from(body: &PastGrantBody) -> Result<Self, InvalidBody> {
        let (owner, age) = (OwnerId::sanitized(&body.owner), Duration::from_micros(body.age_us));
        Ok(Self::new(owner, &body.label, token_of(body.token)?, age))
    }
}

/// A [`BreakNotice`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BreakNoticeBody {
    /// The owner that has broken the lock.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub by: Option<String>,
    /// The reason.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
}

impl From<&BreakNotice> for BreakNoticeBody {
    fn from(notice: &BreakNotice) -> Self {
        Self {
            by: notice.by.as_ref().map(|owner| owner.as_str().to_owned()),
            reason: notice.reason.as_ref().map(|reason| reason.as_str().to_owned()),
        }
    }
}

impl From<&BreakNoticeBody> for BreakNotice {
    fn from(body: &BreakNoticeBody) -> Self {
        let mut notice = Self::default();
        notice.by = body.by.as_deref().map(OwnerId::sanitized);
        notice.reason = body.reason.as_deref().map(Label::sanitized);
        notice
    }
}
