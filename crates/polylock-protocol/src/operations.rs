//! The bodies of the operations of every store, and their replies.

use std::time::Duration;

use polylock_core::{
    BreakNotice, ClaimOutcome, Grant, HoldTerms, KeepAlive, LostReason, QueuePosition, Release, Request, Wake,
};
use serde::{Deserialize, Serialize};

use crate::{
    BreakNoticeBody, InvalidBody, ServerTime, micros,
    values::{id_of, label_of, mode_of, name_of, owner_of, token_of},
};

/// A [`Request`]. It contains its secret id.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestBody {
    /// The id, as 32 hexadecimal digits.
    id: String,
    name: String,
    mode: String,
    ttl_us: u64,
    queues: bool,
    wants_position: bool,
    owner: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    label: Option<String>,
}

impl std::fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestBody")
            .field("name", &self.name)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

impl From<&Request> for RequestBody {
    fn from(request: &Request) -> Self {
        Self {
            id: format!("{:032x}", u128::from_be_bytes(request.id.to_bytes())),
            name: request.name.as_str().to_owned(),
            mode: request.mode.code().to_owned(),
            ttl_us: micros(request.ttl),
            queues: request.queues,
            wants_position: request.wants_position,
            owner: request.owner.as_str().to_owned(),
            label: request.label.as_ref().map(|label| label.as_str().to_owned()),
        }
    }
}

impl TryFrom<&RequestBody> for Request {
    type Error = InvalidBody;

    /// Returns the request. Its hold may outlive the server that sends it to the store, because another server may continue with it.
    fn try_from(body: &RequestBody) -> Result<Self, InvalidBody> {
        let ttl = Duration::from_micros(body.ttl_us);
        let mut request = Self::new(name_of(&body.name)?, mode_of(&body.mode)?, ttl);
        request.id = id_of(&body.id)?;
        request.queues = body.queues;
        request.outlives_process = true;
        request.wants_position = body.wants_position;
        request.owner = owner_of(&body.owner)?;
        request.label = body.label.as_deref().map(label_of).transpose()?;
        Ok(request)
    }
}

/// A claim.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimBody {
    /// The request.
    pub request: RequestBody,
    /// The time by the clock of the server after which the claim must not be executed: the client has given it up.
    pub expires: ServerTime,
}

/// The reply to a claim.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum ClaimReply {
    /// The request holds the lock.
    Granted(GrantBody),
    /// Another request is ahead.
    Queued(PositionBody),
    /// The claim had expired by the clock of the server, or was meant for another server, and was not executed.
    Late,
}

/// A [`Grant`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct GrantBody {
    token: u64,
    lease_us: u64,
}

impl From<Grant> for GrantBody {
    fn from(grant: Grant) -> Self {
        Self { token: grant.token.get(), lease_us: micros(grant.lease) }
    }
}

impl TryFrom<GrantBody> for Grant {
    type Error = InvalidBody;

    fn try_from(body: GrantBody) -> Result<Self, InvalidBody> {
        Ok(Self::new(token_of(body.token)?, Duration::from_micros(body.lease_us)))
    }
}

/// A [`QueuePosition`].
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct PositionBody {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    ahead: Option<u32>,
    recheck_after_us: u64,
    may_be_granted_late: bool,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    number: Option<u64>,
}

impl From<&ClaimOutcome> for ClaimReply {
    fn from(outcome: &ClaimOutcome) -> Self {
        match outcome {
            ClaimOutcome::Granted(grant) => Self::Granted((*grant).into()),
            ClaimOutcome::Queued(position) => Self::Queued(PositionBody {
                ahead: position.ahead,
                recheck_after_us: micros(position.recheck_after),
                may_be_granted_late: position.may_be_granted_late,
                number: position.number,
            }),
        }
    }
}

impl ClaimReply {
    /// Returns the outcome; `None` for a claim that was not executed.
    ///
    /// # Errors
    /// [`InvalidBody`] for an invalid value.
    pub fn outcome(self) -> Result<Option<ClaimOutcome>, InvalidBody> {
        Ok(Some(match self {
            Self::Granted(grant) => ClaimOutcome::Granted(grant.try_into()?),
            Self::Queued(body) => {
                let position = QueuePosition::new(body.ahead, Duration::from_micros(body.recheck_after_us));
                let position = position.may_be_granted_late(body.may_be_granted_late).number(body.number);
                ClaimOutcome::Queued(position)
            }
            Self::Late => return Ok(None),
        }))
    }
}

/// The reply to a wait.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(tag = "wake", rename_all = "kebab-case")]
pub enum WakeReply {
    /// Claim again.
    Stale,
    /// The store has granted the lock.
    Granted(GrantBody),
}

impl From<Wake> for WakeReply {
    fn from(wake: Wake) -> Self {
        match wake {
            Wake::Stale => Self::Stale,
            Wake::Granted(grant) => Self::Granted(grant.into()),
        }
    }
}

impl TryFrom<WakeReply> for Wake {
    type Error = InvalidBody;

    fn try_from(reply: WakeReply) -> Result<Self, InvalidBody> {
        Ok(match reply {
            WakeReply::Stale => Self::Stale,
            WakeReply::Granted(grant) => Self::Granted(grant.try_into()?),
        })
    }
}

/// Requests to be kept alive.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeepAliveBody {
    /// The requests.
    pub requests: Vec<RequestBody>,
}

/// The reply to a keep-alive.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KeepAliveReply {
    /// One outcome for each request, in their order.
    pub outcomes: Vec<KeepAliveOutcome>,
}

/// The [`HoldTerms`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TermsBody {
    token: u64,
    mode: String,
}

impl From<HoldTerms> for TermsBody {
    fn from(terms: HoldTerms) -> Self {
        Self { token: terms.token.get(), mode: terms.mode.code().to_owned() }
    }
}

impl TryFrom<&TermsBody> for HoldTerms {
    type Error = InvalidBody;

    fn try_from(body: &TermsBody) -> Result<Self, InvalidBody> {
        Ok(Self::new(token_of(body.token)?, mode_of(&body.mode)?))
    }
}

/// A [`KeepAlive`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum KeepAliveOutcome {
    /// The request holds the lock.
    Held {
        /// The lease, counted from the time at which the client has sent the keep-alive.
        lease_us: u64,
        /// The terms of the hold, if another process can change them.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        terms: Option<TermsBody>,
    },
    /// The request waits.
    Queued,
    /// The request has no hold any more.
    Lost(LostBody),
    /// Nothing is known.
    Unknown,
}

impl From<&KeepAlive> for KeepAliveOutcome {
    fn from(outcome: &KeepAlive) -> Self {
        match outcome {
            KeepAlive::Held { lease, terms } => {
                Self::Held { lease_us: micros(*lease), terms: terms.map(Into::into) }
            }
            KeepAlive::Queued => Self::Queued,
            KeepAlive::Lost(reason) => Self::Lost(reason.into()),
            KeepAlive::Unknown => Self::Unknown,
        }
    }
}

impl TryFrom<&KeepAliveOutcome> for KeepAlive {
    type Error = InvalidBody;

    fn try_from(outcome: &KeepAliveOutcome) -> Result<Self, InvalidBody> {
        Ok(match outcome {
            KeepAliveOutcome::Held { lease_us, terms } => Self::Held {
                lease: Duration::from_micros(*lease_us),
                terms: terms.as_ref().map(TryInto::try_into).transpose()?,
            },
            KeepAliveOutcome::Queued => Self::Queued,
            KeepAliveOutcome::Lost(lost) => Self::Lost(lost.try_into()?),
            KeepAliveOutcome::Unknown => Self::Unknown,
        })
    }
}

/// A [`LostReason`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostBody {
    /// The reason, as one word: [`LostReason::kind`].
    pub reason: String,
    /// The notice of a break.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub notice: Option<BreakNoticeBody>,
}

impl From<&LostReason> for LostBody {
    fn from(reason: &LostReason) -> Self {
        let notice = if let LostReason::Broken(notice) = reason { Some(notice.into()) } else { None };
        Self { reason: reason.kind().to_owned(), notice }
    }
}

impl TryFrom<&LostBody> for LostReason {
    type Error = InvalidBody;

    fn try_from(body: &LostBody) -> Result<Self, InvalidBody> {
        Ok(match &*body.reason {
            "deadline" => Self::DeadlineReached,
            "gone" => Self::Gone,
            "broken" => Self::Broken(body.notice.as_ref().map(BreakNotice::from).unwrap_or_default()),
            "session" => Self::SessionEnded,
            "watchdog" => Self::WatchdogFailed,
            "max_hold" => Self::MaxHold,
            "shutdown" => Self::ShutDown,
            other => return Err(InvalidBody::new("reason", format!("{other:?} is unknown"))),
        })
    }
}

/// The reply to a release.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum ReleaseReply {
    /// An entry of the request was removed.
    Released,
    /// There was no entry of the request.
    Lost(LostBody),
}

impl From<&Release> for ReleaseReply {
    fn from(release: &Release) -> Self {
        match release {
            Release::Released => Self::Released,
            Release::Lost(reason) => Self::Lost(reason.into()),
        }
    }
}

impl TryFrom<&ReleaseReply> for Release {
    type Error = InvalidBody;

    fn try_from(reply: &ReleaseReply) -> Result<Self, InvalidBody> {
        Ok(match reply {
            ReleaseReply::Released => Self::Released,
            ReleaseReply::Lost(lost) => Self::Lost(lost.try_into()?),
        })
    }
}
