//! Classifies the service's replies, and adds advice.

use std::time::Duration;

use azure_core::{
    error::ErrorKind,
    http::{StatusCode, headers::HeaderName},
};
use polylock_core::{Error, Fault, Operation, failure::At, url::is_untrusted};

use crate::{NAME, wire::RESENT};

/// A refusal by the service. The request has had no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    NoBlob,
    NoContainer,
    /// The container was deleted, and its name is not free yet.
    ContainerBeingDeleted,
    /// Another client has the lease.
    Leased,
    /// The request's own lease was broken, and keeps others out for its remaining time.
    Breaking,
    /// The lease of the request does not exist, or belongs to another client.
    NotHeld,
    /// The lease was broken.
    Broken,
    /// The blob has changed in the meantime.
    Changed,
    /// The blob or container to create exists already.
    Exists,
}

/// The cause of a failed request.
#[derive(Debug)]
pub(crate) enum Cause {
    Refused(Refusal, ServiceError),
    /// A reply, or the lack of one, that does not reveal the state of the lock.
    Failed(azure_core::Error),
    /// The request timed out after this long.
    TimedOut(Duration),
    /// The container can't be used in its present state. The text is the advice.
    Unusable(Fault, String),
}

/// The service's error reply. Its text is left out, because it repeats the request, including ids.
#[derive(Debug, thiserror::Error)]
#[error("the service replied {status} {code} (x-ms-request-id {request})")]
pub(crate) struct ServiceError {
    status: u16,
    code: String,
    request: String,
    /// True if the request had been sent before, on a connection that ended without a reply.
    resent: bool,
}

impl ServiceError {
    fn new(status: StatusCode, error: &azure_core::Error) -> Self {
        let request = header(error, "x-ms-request-id").unwrap_or_else(|| "none".to_owned());
        let resent = header(error, RESENT).is_some();
        Self { status: status.into(), code: code(error).unwrap_or_default().to_owned(), request, resent }
    }
}

/// Returns the service's code of the error.
pub(crate) fn code(error: &azure_core::Error) -> Option<&str> {
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

impl From<azure_core::Error> for Cause {
    fn from(error: azure_core::Error) -> Self {
        let Some(status) = error.http_status() else { return Self::Failed(error) };
        let refusal = match code(&error) {
            Some("BlobNotFound") => Refusal::NoBlob,
            Some("ContainerNotFound") => Refusal::NoContainer,
            Some("ContainerBeingDeleted") => Refusal::ContainerBeingDeleted,
            Some("LeaseAlreadyPresent") => Refusal::Leased,
            Some("LeaseIsBreakingAndCannotBeAcquired") => Refusal::Breaking,
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
            ) => Refusal::NotHeld,
            Some("ConditionNotMet") => Refusal::Changed,
            Some("BlobAlreadyExists" | "ContainerAlreadyExists") => Refusal::Exists,
            _ => return Self::Failed(error),
        };
        Self::Refused(refusal, ServiceError::new(status, &error))
    }
}

impl Cause {
    /// Returns the cause of a change that other changes of the same hold have overtaken every time.
    pub(crate) fn lease_keeps_changing() -> Self {
        let advice = "other processes keep changing the lease of this hold: try again";
        Self::Unusable(Fault::Temporary, advice.to_owned())
    }

    /// Returns the refusal, if it is one.
    pub(crate) const fn refusal(&self) -> Option<Refusal> {
        if let Self::Refused(refusal, _) = self { Some(*refusal) } else { None }
    }

    /// Returns true for the refusal of a request that had been sent before: that copy may have been executed, or may be executed later.
    pub(crate) const fn was_resent(&self) -> bool {
        matches!(self, Self::Refused(_, ServiceError { resent: true, .. }))
    }

    /// Returns true if a retry may help.
    pub(crate) fn is_temporary(&self) -> bool {
        match self {
            Self::Unusable(fault, _) => *fault == Fault::Temporary,
            Self::TimedOut(_) => true,
            Self::Refused(refusal, _) => *refusal != Refusal::NoContainer,
            Self::Failed(error) => match error.http_status() {
                Some(status) => diagnose(status, code(error)).0 == Fault::Temporary,
                None => matches!(error.kind(), ErrorKind::Connection | ErrorKind::Io) && !is_untrusted(error),
            },
        }
    }

    /// Returns the pause that the service requests (`Retry-After`).
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        let Self::Failed(error) = self else { return None };
        let number = |name| header(error, name)?.parse::<u64>().ok();
        let millis = number("x-ms-retry-after-ms").or_else(|| number("retry-after-ms"));
        millis.map(Duration::from_millis).or_else(|| number("retry-after").map(Duration::from_secs))
    }

    /// Converts the cause into an error of `operation` at `endpoint`.
    pub(crate) fn at(self, operation: Operation, endpoint: &str) -> Error {
        let at = At { backend: NAME, operation, endpoint };
        match self {
            Self::Unusable(fault, advice) => at.advise(fault, advice),
            Self::TimedOut(timeout) => {
                let advice = format!("no reply within {timeout:?}: the service is busy or can't be reached");
                at.advise(Fault::Temporary, advice)
            }
            Self::Refused(refusal, reply) => {
                let (fault, advice) = match refusal {
                    Refusal::NoContainer => {
                        (Fault::Permanent, "there is no such container: create it, or check its name")
                    }
                    Refusal::ContainerBeingDeleted => (
                        Fault::Temporary,
                        "the container is being deleted: its name is free again in half a minute",
                    ),
                    // These refusals are reported only by their meaning for a lock. A retry resolves them.
                    _ => (
                        Fault::Temporary,
                        "another client changed the lock's blob at the same time: try again",
                    ),
                };
                at.failed(fault, Some(advice.to_owned()), reply)
            }
            Self::Failed(error) => match error.http_status() {
                Some(status) => {
                    let (fault, advice) = diagnose(status, code(&error));
                    let rejected = rejects_credentials(code(&error));
                    let source = ServiceError::new(status, &error);
                    at.failed(fault, advice.map(str::to_owned), source).rejecting_credentials(rejected)
                }
                None => {
                    let (fault, advice) = match error.kind() {
                        _ if is_untrusted(&error) => (
                            Fault::Permanent,
                            Some(
                                "the server's certificate is not trusted: name its authority in polylock.tls_ca",
                            ),
                        ),
                        ErrorKind::Credential => {
                            (Fault::Denied, Some("no access token: check the credential"))
                        }
                        ErrorKind::Connection => (
                            Fault::Temporary,
                            Some("can't be reached: check the account's name and the network"),
                        ),
                        ErrorKind::Io => (Fault::Temporary, None),
                        _ => (Fault::Permanent, None),
                    };
                    let rejected = matches!(error.kind(), ErrorKind::Credential);
                    at.failed(fault, advice.map(str::to_owned), error).rejecting_credentials(rejected)
                }
            },
        }
    }
}

/// Returns true if the service does not accept the credentials. `AuthorizationFailure` is also the code of the account's firewall, and the
/// only one of the emulator.
fn rejects_credentials(code: Option<&str>) -> bool {
    matches!(code, Some("AuthenticationFailed" | "AuthorizationFailure"))
}

/// Returns the fault of a reply, and the advice.
fn diagnose(status: StatusCode, code: Option<&str>) -> (Fault, Option<&'static str>) {
    match (u16::from(status), code) {
        (_, code) if rejects_credentials(code) => (
            Fault::Denied,
            Some(
                "the service does not accept the credentials: check the account and its key, whether the signature has \
                 expired, whether this machine's clock is right within 15 minutes, and the account's firewall",
            ),
        ),
        // This is not the code for a missing blob or container.
        (_, Some("ResourceNotFound")) => (
            Fault::Denied,
            Some("there is no such account, or it allows no access: check its name and its settings"),
        ),
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

/// Returns true if a lease has definitely ended or never existed.
pub(crate) fn is_gone(cause: &Cause) -> bool {
    use Refusal::{Broken, NoBlob, NoContainer, NotHeld};
    matches!(cause.refusal(), Some(NoBlob | NoContainer | NotHeld | Broken))
}

/// Treats "already exists" as success.
pub(crate) fn ignore_exists(reply: Result<(), Cause>) -> Result<(), Cause> {
    match reply {
        // The service may also return the last two for an existing blob, leased or not.
        Err(cause)
            if matches!(cause.refusal(), Some(Refusal::Exists | Refusal::NotHeld | Refusal::Changed)) =>
        {
            Ok(())
        }
        reply => reply,
    }
}

/// Treats the release of a lease that has ended as success.
pub(crate) fn ignore_gone(reply: Result<(), Cause>) -> Result<(), Cause> {
    reply.or_else(|cause| if is_gone(&cause) { Ok(()) } else { Err(cause) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(status: u16, code: &str) -> Cause {
        let kind = ErrorKind::HttpResponse {
            status: status.into(),
            error_code: Some(code.to_owned()),
            raw_response: None,
        };
        Cause::from(kind.into_error())
    }

    fn fault(cause: Cause) -> Fault {
        match cause.at(Operation::Claim, "endpoint") {
            Error::Unavailable(unavailable) => unavailable.fault,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_definite_error_codes_mean_a_loss() {
        assert_eq!(reply(409, "LeaseIdMismatchWithLeaseOperation").refusal(), Some(Refusal::NotHeld));
        assert_eq!(reply(404, "BlobNotFound").refusal(), Some(Refusal::NoBlob));
        for (status, code) in [(503, "ServerBusy"), (500, "OperationTimedOut"), (403, "AuthorizationFailure")]
        {
            assert_eq!(reply(status, code).refusal(), None, "{code}");
        }
    }

    #[test]
    fn the_page_has_the_fault_of_each_error() {
        for (code, wanted, rejected) in polylock_core::failure::checks::errors(include_str!("docs.md")) {
            let reply = match code.parse() {
                Ok(status) => reply(status, "Other"),
                // The status says nothing of these.
                Err(_) => reply(400, code),
            };
            assert_eq!(fault(reply), wanted, "{code}");
            assert_eq!(rejects_credentials(Some(code)), rejected, "{code}");
        }
        assert_eq!(fault(reply(599, "Other")), Fault::Temporary);
        assert_eq!(fault(Cause::TimedOut(Duration::from_secs(1))), Fault::Temporary);
    }
}
