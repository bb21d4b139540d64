//! Classification of the driver's errors, with remedies.

use std::time::Duration;

use polylock_core::{self as core, Fault, Operation, failure::At};
use zookeeper_client::Error;

use crate::NAME;

/// The cause of a failed operation or of a missing session.
#[derive(Debug, Clone)]
pub(crate) enum Cause {
    /// An error of the driver.
    Driver(Error),
    /// No reply within this time.
    TimedOut(Duration),
    /// No session; the text lists the reason for each server.
    Unreachable(String),
    /// An error that this store detected itself.
    Detected(Fault, String),
}

impl Cause {
    /// Returns the error of `operation` at `endpoint`.
    pub(crate) fn at(self, operation: Operation, endpoint: &str) -> core::Error {
        let at = At { backend: NAME, operation, endpoint };
        match self {
            Self::Driver(error) => {
                let (fault, advice) = diagnose(&error, operation);
                let rejected = matches!(error, Error::AuthFailed);
                at.failed(fault, advice.map(str::to_owned), error).rejecting_credentials(rejected)
            }
            Self::TimedOut(time) => at.advise(
                Fault::Temporary,
                format!("no reply within {time:.1?}: the servers are busy or can't be reached"),
            ),
            Self::Unreachable(reasons) => at.advise(Fault::Temporary, reasons),
            Self::Detected(fault, advice) => at.advise(fault, advice),
        }
    }
}

impl From<Error> for Cause {
    fn from(error: Error) -> Self {
        Self::Driver(error)
    }
}

/// Returns the cause for a task that has panicked or was cancelled.
pub(crate) fn task_failed(error: &tokio::task::JoinError) -> Cause {
    Cause::Detected(Fault::Temporary, format!("the library's thread has ended: {error}"))
}

/// The outcome of a failed operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The operation was not carried out, and never will be.
    Refused,
    /// The operation may have been carried out. It is no longer pending once the session has another connection and has caught up with
    /// the leader.
    Unknown,
    /// The session has ended or is about to end, and its nodes with it.
    Ended,
}

/// Returns the outcome of an operation that failed with `error`.
pub(crate) const fn outcome(error: &Error) -> Outcome {
    match error {
        Error::SessionExpired | Error::ClientClosed | Error::AuthFailed => Outcome::Ended,
        Error::NoNode
        | Error::NoAuth
        | Error::BadVersion
        | Error::NoChildrenForEphemerals
        | Error::NodeExists
        | Error::NotEmpty
        | Error::InvalidAcl
        | Error::NotReadOnly
        | Error::QuotaExceeded
        | Error::Throttled
        | Error::MarshallingError
        | Error::Unimplemented
        | Error::BadArguments(_) => Outcome::Refused,
        _ => Outcome::Unknown,
    }
}

/// Returns the class of the fault and a remedy.
fn diagnose(error: &Error, operation: Operation) -> (Fault, Option<&'static str>) {
    match error {
        Error::NoAuth if operation == Operation::Break => {
            let advice = "a break writes or deletes nodes that belong to another user: check the user and the password, or see \
                          polylock.access";
            (Fault::Denied, Some(advice))
        }
        Error::NoAuth => {
            let advice =
                "the nodes belong to another user: check the user and the password, or see polylock.access";
            (Fault::Denied, Some(advice))
        }
        Error::AuthFailed => (
            Fault::Denied,
            Some("the servers refuse the credentials: check the user and the password, and polylock.auth"),
        ),
        Error::Unimplemented => {
            (Fault::Permanent, Some("the servers are too old: container nodes need ZooKeeper 3.5.3"))
        }
        Error::QuotaExceeded => {
            (Fault::Permanent, Some("the quota of the path is exhausted: raise it, or use another path"))
        }
        Error::InvalidAcl => {
            let advice =
                "the servers refuse the ACL: polylock.access=creator needs a user that the servers know";
            (Fault::Denied, Some(advice))
        }
        Error::BadArguments(_) | Error::NoChildrenForEphemerals => (Fault::Permanent, None),
        _ => (Fault::Temporary, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_the_fault_of_each_error() {
        let names = [
            ("AUTHFAILED", Error::AuthFailed),
            ("NOAUTH", Error::NoAuth),
            ("INVALIDACL", Error::InvalidAcl),
            ("CONNECTIONLOSS", Error::ConnectionLoss),
            ("OPERATIONTIMEOUT", Error::Timeout),
            ("SESSIONMOVED", Error::SessionMoved),
            ("SESSIONEXPIRED", Error::SessionExpired),
            ("NOTREADONLY", Error::NotReadOnly),
            ("THROTTLEDOP", Error::Throttled),
            ("QUOTAEXCEEDED", Error::QuotaExceeded),
            ("UNIMPLEMENTED", Error::Unimplemented),
            ("BADARGUMENTS", Error::BadArguments(&"")),
            ("NOCHILDRENFOREPHEMERALS", Error::NoChildrenForEphemerals),
        ];
        let table = polylock_core::failure::checks::errors(include_str!("docs.md"));
        assert_eq!(table.len(), names.len());
        for (name, error) in names {
            let row = table.iter().find(|(found, ..)| *found == name);
            let (_, fault, rejected) = row.unwrap_or_else(|| panic!("{name} is missing"));
            assert_eq!(diagnose(&error, Operation::Claim).0, *fault, "{name}");
            assert_eq!(matches!(error, Error::AuthFailed), *rejected, "{name}");
        }
    }

    #[test]
    fn an_unknown_outcome_is_not_a_refusal() {
        assert_eq!(outcome(&Error::ConnectionLoss), Outcome::Unknown);
        assert_eq!(outcome(&Error::SessionMoved), Outcome::Unknown);
        assert_eq!(outcome(&Error::UnexpectedErrorCode(-4)), Outcome::Unknown);
        assert_eq!(outcome(&Error::NoNode), Outcome::Refused);
        assert_eq!(outcome(&Error::SessionExpired), Outcome::Ended);
    }
}
