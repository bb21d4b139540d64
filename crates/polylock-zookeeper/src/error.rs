//! What the driver's errors mean, and what to do about them.

use polylock_core::{Fault, Operation};
use zookeeper_client::Error;

/// What is known of an operation that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was not carried out, and never will be.
    Refused,
    /// It may have been carried out. It is not under way any more once the session has another connection and is in step
    /// with the leader.
    Unknown,
    /// The session has ended, and so has whatever was made in it, or it will in a moment.
    Ended,
}

/// What `error` says about the operation that it answers.
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

/// What kind of fault it is, and what to do.
pub(crate) fn diagnose(error: &Error, operation: Operation) -> (Fault, Option<&'static str>) {
    match error {
        Error::NoAuth if operation == Operation::Break => {
            let advice = "its nodes are another user's, and a break writes or deletes them: check the user and the password, or \
                          see polylock.access";
            (Fault::Denied, Some(advice))
        }
        Error::NoAuth => {
            let advice =
                "its nodes are another user's: check the user and the password, or see polylock.access";
            (Fault::Denied, Some(advice))
        }
        Error::AuthFailed => (
            Fault::Denied,
            Some("the servers refuse them: check the user and the password, and polylock.auth"),
        ),
        Error::Unimplemented => {
            (Fault::Permanent, Some("the servers are too old: container nodes need ZooKeeper 3.5.3"))
        }
        Error::QuotaExceeded => (Fault::Permanent, Some("the quota of its path is used up")),
        Error::InvalidAcl => {
            let advice =
                "the servers take no such rights: with polylock.access=creator they need a user they know";
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
    fn what_is_not_known_is_not_taken_for_a_refusal() {
        assert_eq!(outcome(&Error::ConnectionLoss), Outcome::Unknown);
        assert_eq!(outcome(&Error::SessionMoved), Outcome::Unknown);
        assert_eq!(outcome(&Error::UnexpectedErrorCode(-4)), Outcome::Unknown);
        assert_eq!(outcome(&Error::NoNode), Outcome::Refused);
        assert_eq!(outcome(&Error::SessionExpired), Outcome::Ended);
    }
}
