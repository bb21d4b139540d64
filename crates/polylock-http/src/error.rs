//! The failures of requests, and the errors that they are.

use std::error::Error as _;

use polylock_core::{Error, Fault, Operation, failure::At, url::is_untrusted};
use polylock_protocol::Problem;

use crate::NAME;

/// The outcome of a request that has no proper reply.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The server has not received the request, or has not carried it out: it may be sent to another server.
    #[error("{0}")]
    NotSent(String),
    /// The server may carry the request out.
    #[error("{0}")]
    Unanswered(String),
    /// The server has replied with a problem.
    #[error("{}", .0.detail.as_deref().unwrap_or(&.0.title))]
    Refused(Problem),
    /// The certificate of the server is not trusted.
    #[error("{0}; name the authority of the certificate with polylock.tls_ca")]
    Untrusted(String),
    /// The reply is not one of this version.
    #[error("{0}")]
    Invalid(String),
}

impl Failure {
    /// Returns the failure of a request.
    pub(crate) fn of(error: &reqwest::Error) -> Self {
        match error.is_connect() {
            true if is_untrusted(error) => Self::Untrusted(describe(error)),
            true => Self::NotSent(describe(error)),
            false => Self::Unanswered(describe(error)),
        }
    }

    /// Returns true if another server may do better.
    pub(crate) fn may_differ(&self) -> bool {
        match self {
            Self::NotSent(_) | Self::Unanswered(_) => true,
            Self::Refused(problem) => matches!(problem.status, 502..=504),
            Self::Untrusted(_) | Self::Invalid(_) => false,
        }
    }

    /// Returns true if the server may carry the request out later.
    pub(crate) const fn is_unanswered(&self) -> bool {
        matches!(self, Self::Unanswered(_))
    }

    /// Returns the error of `operation` at `endpoint`.
    pub(crate) fn at(self, operation: Operation, endpoint: &str) -> Error {
        let at = At { backend: NAME, operation, endpoint };
        match self {
            Self::NotSent(cause) | Self::Unanswered(cause) => at.advise(Fault::Temporary, cause),
            Self::Refused(problem) => problem.to_error(NAME, operation),
            error @ Self::Untrusted(_) => at.advise(Fault::Permanent, error.to_string()),
            Self::Invalid(cause) => at.advise(Fault::Permanent, cause),
        }
    }
}

/// Returns the innermost cause: those around it repeat the URL.
fn describe(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "no reply in time".to_owned();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    if error.source().is_none() { "the request failed".to_owned() } else { cause.to_string() }
}

#[cfg(test)]
mod tests {
    use polylock_core::failure::checks;

    use super::*;

    /// Returns the failure with this code in the table.
    fn failure(code: &str) -> Failure {
        let problem = |kind: &str, status| Failure::Refused(Problem::new(kind, "refused", status, "refused"));
        match (code, code.parse()) {
            ("no connection", _) => Failure::NotSent(String::new()),
            ("no reply", _) => Failure::Unanswered(String::new()),
            ("certificate", _) => Failure::Untrusted(String::new()),
            ("reply", _) => Failure::Invalid(String::new()),
            (_, Ok(status)) => problem("", status),
            (word, Err(_)) => problem(word, 500),
        }
    }

    fn diagnose(failure: Failure) -> (Fault, bool) {
        match failure.at(Operation::Claim, "here") {
            Error::Unavailable(error) => (error.fault, error.rejects_credentials),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn the_page_has_the_fault_of_each_error() {
        let table = checks::errors(include_str!("docs.md"));
        for (code, fault, rejected) in &table {
            assert_eq!(diagnose(failure(code)), (*fault, *rejected), "{code}");
        }
        let is_listed = |status: u16| table.iter().any(|(code, ..)| *code == status.to_string());
        for status in (400..600).filter(|status| !is_listed(*status)) {
            assert_eq!(diagnose(failure(&status.to_string())), (Fault::Permanent, false), "{status}");
        }
    }
}
