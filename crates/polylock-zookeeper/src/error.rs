//! Classification of the driver's errors, with remedies.

use polylock_core::{Fault, Operation};
use zookeeper_client::Error;

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
pub(crate) fn diagnose(error: &Error, operation: Operation) -> (Fault, Option<&'static str>) {
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
    fn an_unknown_outcome_is_not_a_refusal() {
        assert_eq!(outcome(&Error::ConnectionLoss), Outcome::Unknown);
        assert_eq!(outcome(&Error::SessionMoved), Outcome::Unknown);
        assert_eq!(outcome(&Error::UnexpectedErrorCode(-4)), Outcome::Unknown);
        assert_eq!(outcome(&Error::NoNode), Outcome::Refused);
        assert_eq!(outcome(&Error::SessionExpired), Outcome::Ended);
    }
}
