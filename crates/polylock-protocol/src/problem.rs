//! Problem details (RFC 9457), and the errors of a store in them.

use std::time::Duration;

use polylock_core::{Error, Fault, Operation, Unavailable};
use serde::{Deserialize, Serialize};

use crate::micros;

/// The error for a body with an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} is invalid: {problem}")]
pub struct InvalidBody {
    field: &'static str,
    problem: String,
}

impl InvalidBody {
    /// Creates the error for `field`.
    #[must_use]
    pub fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self { field, problem: problem.into() }
    }

    /// Returns the name of the field.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        self.field
    }
}

/// Problem details of RFC 9457. It never contains a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The kind of problem: `urn:polylock:` and one word.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind of problem for a reader.
    pub title: String,
    /// The status code of HTTP.
    pub status: u16,
    /// The cause, and the remedy.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub detail: Option<String>,
    /// The time after which the store will be available, if it has stated it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub retry_after_us: Option<u64>,
    /// The reason for the loss of a lock, as one word.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
}

impl Problem {
    /// Creates a problem with the word `kind`.
    #[must_use]
    pub fn new(kind: &str, title: &str, status: u16, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:polylock:{kind}"),
            title: title.to_owned(),
            status,
            detail: Some(detail.into()),
            retry_after_us: None,
            reason: None,
        }
    }

    /// Returns the word of the kind.
    #[must_use]
    pub fn word(&self) -> &str {
        self.kind.strip_prefix("urn:polylock:").unwrap_or(&self.kind)
    }

    /// Returns the error of `operation` that this problem was created from.
    #[must_use]
    pub fn to_error(&self, backend: &'static str, operation: Operation) -> Error {
        let fault = match (self.word(), self.status) {
            ("unavailable", _) => Fault::Temporary,
            ("denied" | "unauthenticated" | "forbidden", _) | (_, 401 | 403) => Fault::Denied,
            (_, 408 | 429 | 502 | 503 | 504) => Fault::Temporary,
            _ => Fault::Permanent,
        };
        let source = self.detail.clone().unwrap_or_else(|| self.title.clone());
        let error = Unavailable::new(backend, operation, fault, source);
        let error: Error = match self.retry_after_us {
            Some(delay) => error.retry_after(Duration::from_micros(delay)).into(),
            None => error.into(),
        };
        // A caller without a right is `forbidden`.
        error.rejecting_credentials(matches!(self.word(), "denied" | "unauthenticated") || self.status == 401)
    }
}

impl From<&Error> for Problem {
    fn from(error: &Error) -> Self {
        let (kind, title, status) = match error {
            Error::NotAcquired { .. } => ("busy", "another request holds the lock", 409),
            Error::Deadlock { .. } => ("deadlock", "the wait would never end", 409),
            Error::Reentry { .. } => ("reentry", "the owner holds the lock in a weaker mode", 409),
            Error::Lost { .. } => ("lost", "the lock is lost", 410),
            Error::Unsupported { .. } => ("unsupported", "the store does not support this", 501),
            Error::InvalidName(_) => ("invalid-name", "the name of the lock is invalid", 422),
            Error::InvalidTtl { .. } => ("invalid-ttl", "the TTL is out of range", 422),
            Error::Config(_) => ("invalid-setting", "a setting is invalid", 422),
            Error::ShutDown => ("unavailable", "the server shuts down", 503),
            Error::Unavailable(Unavailable { fault: Fault::Temporary | Fault::Revoked, .. }) => {
                ("unavailable", "the store is unavailable for the moment", 503)
            }
            Error::Unavailable(Unavailable { fault: Fault::Denied, .. }) => {
                ("denied", "the store rejects the credentials of the server", 502)
            }
            _ => ("failed", "the store has failed permanently", 500),
        };
        let retry_after_us = error.retry_after().map(micros);
        Self { retry_after_us, ..Self::new(kind, title, status, error.chain()) }
    }
}

impl From<&InvalidBody> for Problem {
    fn from(error: &InvalidBody) -> Self {
        Self::new("invalid-body", "the body of the request is invalid", 422, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fault_of_an_error_survives_the_way() {
        for (fault, delay) in [
            (Fault::Temporary, None),
            (Fault::Temporary, Some(Duration::from_millis(70))),
            (Fault::Permanent, None),
            (Fault::Denied, None),
        ] {
            let mut error = Unavailable::new("redis", Operation::Claim, fault, "refused");
            error.retry_after = delay;
            let problem = Problem::from(&Error::from(error));
            let Error::Unavailable(found) = problem.to_error("polylock+http", Operation::Claim) else {
                panic!("{problem:?}")
            };
            assert_eq!((found.fault, found.retry_after), (fault, delay), "{problem:?}");
            assert!(found.source.to_string().ends_with("refused"), "{problem:?}");
        }
    }

    #[test]
    fn problems_of_a_proxy_are_temporary_and_missing_rights_are_not() {
        for (status, fault) in [
            (502, Fault::Temporary),
            (504, Fault::Temporary),
            (429, Fault::Temporary),
            (401, Fault::Denied),
            (404, Fault::Permanent),
        ] {
            let problem = Problem { kind: "about:blank".to_owned(), ..Problem::new("", "t", status, "d") };
            let Error::Unavailable(found) = problem.to_error("polylock+http", Operation::Renew) else {
                panic!("{problem:?}")
            };
            assert_eq!(found.fault, fault, "{problem:?}");
        }
    }
}
