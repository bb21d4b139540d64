//! What the service's answers mean, and what to do about them.

use std::time::Duration;

use azure_core::{
    error::ErrorKind,
    http::{StatusCode, headers::HeaderName},
};
use polylock_core::{Error, Fault, Operation, failure::At};

use crate::{NAME, tls, wire::RESENT};

/// An answer that says no, and after which a request has had no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    NoBlob,
    NoContainer,
    /// Somebody has deleted the container, and its name is not free yet.
    ContainerGoing,
    /// Another has the lease.
    Taken,
    /// The lease that the request speaks of is not there, or another's.
    NotOurs,
    /// Somebody has broken it.
    Broken,
    /// The blob has changed since.
    Changed,
    /// What was to be made is there.
    Exists,
}

/// Why a request has not done what it should.
#[derive(Debug)]
pub(crate) enum Trouble {
    Refused(Refusal, Answered),
    /// An answer, or the lack of one, that says nothing about the lock.
    Failed(azure_core::Error),
    /// Nothing came in this time.
    Silent(Duration),
    /// The container can't be used as it is; with what to do.
    Unfit(Fault, String),
}

/// What the service has answered. Its own words are left out: they repeat the request, ids and all.
#[derive(Debug, thiserror::Error)]
#[error("the service answered {status} {code} (x-ms-request-id {request})")]
pub(crate) struct Answered {
    status: u16,
    code: String,
    request: String,
    /// Whether the request had been sent before, on a connection that ended without a reply.
    resent: bool,
}

impl Answered {
    fn new(status: StatusCode, error: &azure_core::Error) -> Self {
        let request = header(error, "x-ms-request-id").unwrap_or_else(|| "none".to_owned());
        let resent = header(error, RESENT).is_some();
        Self { status: status.into(), code: code(error).unwrap_or_default().to_owned(), request, resent }
    }
}

fn code(error: &azure_core::Error) -> Option<&str> {
    match error.kind() {
        ErrorKind::HttpResponse { error_code, .. } => error_code.as_deref(),
        _ => None,
    }
}

fn header(error: &azure_core::Error, name: &'static str) -> Option<String> {
    match error.kind() {
        ErrorKind::HttpResponse { raw_response: Some(response), .. } => {
            response.headers().get_optional_string(&HeaderName::from_static(name))
        }
        _ => None,
    }
}

impl From<azure_core::Error> for Trouble {
    fn from(error: azure_core::Error) -> Self {
        let Some(status) = error.http_status() else { return Self::Failed(error) };
        let refusal = match code(&error) {
            Some("BlobNotFound") => Refusal::NoBlob,
            Some("ContainerNotFound") => Refusal::NoContainer,
            Some("ContainerBeingDeleted") => Refusal::ContainerGoing,
            Some("LeaseAlreadyPresent" | "LeaseIsBreakingAndCannotBeAcquired") => Refusal::Taken,
            Some("LeaseIsBrokenAndCannotBeRenewed") => Refusal::Broken,
            Some(
                "LeaseAlreadyBroken"
                | "LeaseIdMismatchWithBlobOperation"
                | "LeaseIdMismatchWithLeaseOperation"
                | "LeaseIdMissing"
                | "LeaseIsBreakingAndCannotBeChanged"
                | "LeaseLost"
                | "LeaseNotPresentWithBlobOperation"
                | "LeaseNotPresentWithLeaseOperation",
            ) => Refusal::NotOurs,
            Some("ConditionNotMet") => Refusal::Changed,
            Some("BlobAlreadyExists" | "ContainerAlreadyExists") => Refusal::Exists,
            _ => return Self::Failed(error),
        };
        Self::Refused(refusal, Answered::new(status, &error))
    }
}

impl Trouble {
    /// The refusal, if it is one.
    pub(crate) const fn refusal(&self) -> Option<Refusal> {
        if let Self::Refused(refusal, _) = self { Some(*refusal) } else { None }
    }

    /// Whether this refuses a request that may have been carried out when it was sent before.
    pub(crate) const fn may_have_been_done(&self) -> bool {
        matches!(self, Self::Refused(_, Answered { resent: true, .. }))
    }

    /// Whether trying again may help.
    pub(crate) fn is_temporary(&self) -> bool {
        match self {
            Self::Unfit(fault, _) => *fault == Fault::Temporary,
            Self::Silent(_) => true,
            Self::Refused(refusal, _) => *refusal != Refusal::NoContainer,
            Self::Failed(error) => match error.http_status() {
                Some(status) => diagnose(status, code(error)).0 == Fault::Temporary,
                None => {
                    matches!(error.kind(), ErrorKind::Connection | ErrorKind::Io) && !tls::is_distrust(error)
                }
            },
        }
    }

    /// For how long the service wants to be left alone.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        let Self::Failed(error) = self else { return None };
        let number = |name| header(error, name)?.parse::<u64>().ok();
        let millis = number("x-ms-retry-after-ms").or_else(|| number("retry-after-ms"));
        millis.map(Duration::from_millis).or_else(|| number("retry-after").map(Duration::from_secs))
    }

    /// As an error of `operation` at `place`.
    pub(crate) fn at(self, operation: Operation, place: &str) -> Error {
        let at = At { backend: NAME, operation, place };
        match self {
            Self::Unfit(fault, advice) => at.ours(fault, advice),
            Self::Silent(patience) => {
                let advice =
                    format!("no answer within {patience:?}: the service is busy or can't be reached");
                at.ours(Fault::Temporary, advice)
            }
            Self::Refused(refusal, answered) => {
                let (fault, advice) = match refusal {
                    Refusal::NoContainer => {
                        (Fault::Permanent, "there is no such container: create it, or check its name")
                    }
                    Refusal::ContainerGoing => (
                        Fault::Temporary,
                        "somebody has deleted the container: its name is free in half a minute",
                    ),
                    // Nobody is told of these but by what they mean for a lock. Trying again settles them.
                    _ => (Fault::Temporary, "others change the lock's blob at the same time"),
                };
                at.failed(fault, Some(advice.to_owned()), answered)
            }
            Self::Failed(error) => match error.http_status() {
                Some(status) => {
                    let (fault, advice) = diagnose(status, code(&error));
                    at.failed(fault, advice.map(str::to_owned), Answered::new(status, &error))
                }
                None => {
                    let (fault, advice) = match error.kind() {
                        _ if tls::is_distrust(&error) => (
                            Fault::Permanent,
                            Some(
                                "the server's certificate is not trusted: name its authority in polylock.tls_ca",
                            ),
                        ),
                        ErrorKind::Credential => {
                            (Fault::Denied, Some("no token could be had: look at the credential"))
                        }
                        ErrorKind::Connection => (
                            Fault::Temporary,
                            Some("can't be reached: check the account's name and the network"),
                        ),
                        ErrorKind::Io => (Fault::Temporary, None),
                        _ => (Fault::Permanent, None),
                    };
                    at.failed(fault, advice.map(str::to_owned), error)
                }
            },
        }
    }
}

/// What kind of fault an answer tells of, and what to do.
fn diagnose(status: StatusCode, code: Option<&str>) -> (Fault, Option<&'static str>) {
    match (u16::from(status), code) {
        // The second one is that of the account's firewall, too, and the emulator has no other.
        (_, Some("AuthenticationFailed" | "AuthorizationFailure")) => (
            Fault::Denied,
            Some(
                "the service does not accept the credentials: check the account and its key, whether the signature has run \
                 out, that this machine's clock is right within 15 minutes, and whom the account's firewall lets in",
            ),
        ),
        // Not that of a blob or a container which is not there.
        (_, Some("ResourceNotFound")) => {
            (Fault::Denied, Some("there is no such account, or it shows nobody what it has: check its name"))
        }
        (401 | 403, _) => (
            Fault::Denied,
            Some(
                "the credentials do not allow this: the store reads, writes, creates and lists blobs, and creates the \
                 container if it is missing",
            ),
        ),
        (_, Some("InvalidHeaderValue" | "InvalidQueryParameterValue" | "OutOfRangeInput")) => {
            (Fault::Permanent, Some("the service does not understand the request: is it Azure Blob Storage?"))
        }
        (408 | 429 | 500..=599, _) => (Fault::Temporary, Some("the service is busy")),
        _ => (Fault::Permanent, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, code: &str) -> Trouble {
        let kind = ErrorKind::HttpResponse {
            status: status.into(),
            error_code: Some(code.to_owned()),
            raw_response: None,
        };
        Trouble::from(kind.into_error())
    }

    fn fault(trouble: Trouble) -> Fault {
        match trouble.at(Operation::Claim, "place") {
            Error::Unavailable(unavailable) => unavailable.fault,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_lock_is_lost_by_definite_words_alone() {
        assert_eq!(answer(409, "LeaseIdMismatchWithLeaseOperation").refusal(), Some(Refusal::NotOurs));
        assert_eq!(answer(404, "BlobNotFound").refusal(), Some(Refusal::NoBlob));
        for (status, code) in [(503, "ServerBusy"), (500, "OperationTimedOut"), (403, "AuthorizationFailure")]
        {
            assert_eq!(answer(status, code).refusal(), None, "{code}");
        }
    }

    #[test]
    fn faults() {
        for (status, code, wanted) in [
            (503, "ServerBusy", Fault::Temporary),
            (500, "OperationTimedOut", Fault::Temporary),
            (403, "AuthenticationFailed", Fault::Denied),
            (403, "AuthorizationPermissionMismatch", Fault::Denied),
            (404, "ResourceNotFound", Fault::Denied),
            (400, "InvalidHeaderValue", Fault::Permanent),
            (404, "ContainerNotFound", Fault::Permanent),
            (409, "ContainerBeingDeleted", Fault::Temporary),
        ] {
            assert_eq!(fault(answer(status, code)), wanted, "{code}");
        }
        assert_eq!(fault(Trouble::Silent(Duration::from_secs(1))), Fault::Temporary);
    }
}
