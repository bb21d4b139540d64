//! The bodies of the optional operations of a store, and their replies.

use std::time::Duration;

use polylock_core::{
    BreakOrder, Conversion, ConversionOutcome, FencingToken, LockName, Record, RecordVersion, Request,
    StoredRecord,
};
use serde::{Deserialize, Serialize};

use crate::{
    BreakNoticeBody, InvalidBody, LostBody, RequestBody, micros,
    values::{mode_of, name_of, token_of},
};

/// A change of the mode of a hold.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConvertBody {
    /// The request that holds the lock.
    pub request: RequestBody,
    from: u64,
    held: String,
    to: String,
    waits: bool,
}

impl ConvertBody {
    /// Creates the body for `conversion` of the hold of `request`.
    #[must_use]
    pub fn new(request: &Request, conversion: &Conversion) -> Self {
        Self {
            request: request.into(),
            from: conversion.from.get(),
            held: conversion.held.code().to_owned(),
            to: conversion.to.code().to_owned(),
            waits: conversion.waits,
        }
    }

    /// Returns the conversion.
    ///
    /// # Errors
    /// [`InvalidBody`] for an invalid value, and for a conversion that is not [possible](Conversion::is_possible).
    pub fn conversion(&self) -> Result<Conversion, InvalidBody> {
        let (held, to) = (mode_of(&self.held)?, mode_of(&self.to)?);
        let conversion = Conversion::new(token_of(self.from)?, held, to).waits(self.waits);
        let claimed = Request::try_from(&self.request)?.mode;
        if !conversion.is_possible(claimed) {
            let problem = format!("a hold of a request in {claimed} is not converted from {held} to {to}");
            return Err(InvalidBody::new("to", problem));
        }
        Ok(conversion)
    }
}

/// The reply to a conversion.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum ConvertReply {
    /// The hold has the new mode.
    Converted {
        /// The new token.
        token: u64,
    },
    /// Another holder is in the way.
    Blocked {
        /// The time after which the conversion is to be repeated.
        recheck_after_us: u64,
    },
    /// Two holds wait for each other.
    Deadlock,
    /// An earlier conversion was carried out.
    OtherToken {
        /// The token of the hold.
        token: u64,
    },
    /// There is no hold of the request.
    Lost(LostBody),
}

impl From<&ConversionOutcome> for ConvertReply {
    fn from(outcome: &ConversionOutcome) -> Self {
        match outcome {
            ConversionOutcome::Converted(token) => Self::Converted { token: token.get() },
            ConversionOutcome::Blocked { recheck_after } => {
                Self::Blocked { recheck_after_us: micros(*recheck_after) }
            }
            ConversionOutcome::Deadlock => Self::Deadlock,
            ConversionOutcome::OtherToken(token) => Self::OtherToken { token: token.get() },
            ConversionOutcome::Lost(reason) => Self::Lost(reason.into()),
        }
    }
}

impl TryFrom<&ConvertReply> for ConversionOutcome {
    type Error = InvalidBody;

    fn try_from(reply: &ConvertReply) -> Result<Self, InvalidBody> {
        Ok(match reply {
            ConvertReply::Converted { token } => Self::Converted(token_of(*token)?),
            ConvertReply::Blocked { recheck_after_us } => {
                Self::Blocked { recheck_after: Duration::from_micros(*recheck_after_us) }
            }
            ConvertReply::Deadlock => Self::Deadlock,
            ConvertReply::OtherToken { token } => Self::OtherToken(token_of(*token)?),
            ConvertReply::Lost(lost) => Self::Lost(lost.try_into()?),
        })
    }
}

/// The end of a hold at a later time.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParkBody {
    /// The request that holds the lock.
    pub request: RequestBody,
    token: u64,
    left_us: u64,
}

impl ParkBody {
    /// Creates the body for the hold of `request` with this token, which ends in `left`.
    #[must_use]
    pub fn new(request: &Request, token: FencingToken, left: Duration) -> Self {
        Self { request: request.into(), token: token.get(), left_us: micros(left) }
    }

    /// Returns the token of the hold.
    ///
    /// # Errors
    /// [`InvalidBody`] if it is none.
    pub fn token(&self) -> Result<FencingToken, InvalidBody> {
        token_of(self.token)
    }

    /// Returns the time until the end of the hold.
    #[must_use]
    pub const fn left(&self) -> Duration {
        Duration::from_micros(self.left_us)
    }
}

/// A raise of tokens.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RaiseBody {
    /// The request that holds the lock.
    pub request: RequestBody,
    /// The token that later ones exceed.
    pub to: u64,
}

impl RaiseBody {
    /// Returns the token.
    ///
    /// # Errors
    /// [`InvalidBody`] if it is none.
    pub fn token(&self) -> Result<FencingToken, InvalidBody> {
        token_of(self.to)
    }
}

/// The reply to a raise.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct RaiseReply {
    /// A number that no token of an earlier grant exceeds.
    pub last: u64,
}

impl RaiseReply {
    /// Returns the number.
    ///
    /// # Errors
    /// [`InvalidBody`] if it is no token.
    pub fn token(&self) -> Result<FencingToken, InvalidBody> {
        token_of(self.last)
    }
}

/// The name of a lock.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NameBody {
    name: String,
}

impl From<&LockName> for NameBody {
    fn from(name: &LockName) -> Self {
        Self { name: name.as_str().to_owned() }
    }
}

impl NameBody {
    /// Returns the name.
    ///
    /// # Errors
    /// [`InvalidBody`] if it is invalid.
    pub fn name(&self) -> Result<LockName, InvalidBody> {
        name_of(&self.name)
    }
}

/// The prefix of the names that are to be listed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListBody {
    /// The prefix.
    pub prefix: String,
}

/// A break.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BreakBody {
    name: String,
    notice: BreakNoticeBody,
    /// The tokens of the holds; `None` in a body of an earlier version, which names the lock alone.
    #[serde(default)]
    tokens: Option<Vec<Option<u64>>>,
    force: bool,
}

impl BreakBody {
    /// Creates the body of a break of `name`.
    #[must_use]
    pub fn new(name: &LockName, order: &BreakOrder) -> Self {
        let tokens = order.targets.iter().map(|token| token.map(FencingToken::get)).collect();
        Self {
            name: name.as_str().to_owned(),
            notice: (&order.notice).into(),
            tokens: Some(tokens),
            force: order.force,
        }
    }

    /// Returns the name of the lock, and the order.
    ///
    /// # Errors
    /// [`InvalidBody`] for an invalid value, and without the tokens of the holds, which clients of earlier versions do not send.
    pub fn order(&self) -> Result<(LockName, BreakOrder), InvalidBody> {
        let Some(tokens) = &self.tokens else {
            let problem = "missing: a break names the holds that it is for; update the client";
            return Err(InvalidBody::new("tokens", problem));
        };
        let tokens = tokens.iter().map(|token| token.map(token_of).transpose());
        let targets = tokens.collect::<Result<Vec<_>, _>>()?;
        let mut order = BreakOrder::new((&self.notice).into(), targets);
        order.force = self.force;
        Ok((name_of(&self.name)?, order))
    }
}

/// A [`Record`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordBody {
    token: u64,
    revision: u32,
    text: String,
}

impl From<&Record> for RecordBody {
    fn from(record: &Record) -> Self {
        let RecordVersion { token, revision } = record.version;
        Self { token: token.get(), revision, text: record.text.clone() }
    }
}

impl TryFrom<&RecordBody> for Record {
    type Error = InvalidBody;

    fn try_from(body: &RecordBody) -> Result<Self, InvalidBody> {
        if body.text.len() > Self::MAX_BYTES || body.text.contains('\0') {
            return Err(InvalidBody::new(
                "text",
                format!("longer than {} bytes, or with NUL", Self::MAX_BYTES),
            ));
        }
        let version = RecordVersion { token: token_of(body.token)?, revision: body.revision };
        Ok(Self { version, text: body.text.clone() })
    }
}

/// The reply to a read of a record.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RecordReply {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    record: Option<RecordBody>,
    /// The time of the store, since 1970 in UTC.
    now_us: u64,
}

impl From<&StoredRecord> for RecordReply {
    fn from(stored: &StoredRecord) -> Self {
        Self { record: stored.record.as_ref().map(Into::into), now_us: micros(stored.now) }
    }
}

impl TryFrom<&RecordReply> for StoredRecord {
    type Error = InvalidBody;

    fn try_from(reply: &RecordReply) -> Result<Self, InvalidBody> {
        let record = reply.record.as_ref().map(TryInto::try_into).transpose()?;
        Ok(Self { record, now: Duration::from_micros(reply.now_us) })
    }
}

/// The longest time for which a record is kept. The longest period of a job is ten years.
const LONGEST_KEEP: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A record to be written.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteRecordBody {
    name: String,
    record: RecordBody,
    keep_us: u64,
}

impl WriteRecordBody {
    /// Creates the body.
    #[must_use]
    pub fn new(name: &LockName, record: &Record, keep: Duration) -> Self {
        Self { name: name.as_str().to_owned(), record: record.into(), keep_us: micros(keep) }
    }

    /// Returns the name, the record, and the time for which it is kept.
    ///
    /// # Errors
    /// [`InvalidBody`] for an invalid value.
    pub fn record(&self) -> Result<(LockName, Record, Duration), InvalidBody> {
        let keep = Duration::from_micros(self.keep_us);
        if keep > LONGEST_KEEP {
            return Err(InvalidBody::new("keep_us", "a record is kept for at most a hundred years"));
        }
        Ok((name_of(&self.name)?, (&self.record).try_into()?, keep))
    }
}
