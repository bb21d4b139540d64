//! Exit codes, and error messages: one line, with the causes and a remedy.

use polylock::{ConfigError, Error, Fault, InvalidName, Operation};

/// Wrong use of the command line.
pub(crate) const USAGE: u8 = 64;
/// The store is unreachable or fails.
pub(crate) const UNAVAILABLE: u8 = 69;
/// The lock is held by another process, or the wait timed out.
pub(crate) const NOT_ACQUIRED: u8 = 75;
/// The lock was lost.
pub(crate) const LOST: u8 = 79;
/// An internal error.
pub(crate) const INTERNAL: u8 = 70;
/// The status file can't be written.
pub(crate) const CANT_CREATE: u8 = 73;
/// The store refuses the credentials, or the permissions of the file forbid access.
pub(crate) const DENIED: u8 = 77;
/// An invalid or unsupported URL or setting, also one of the server, or a store that was not compiled in.
pub(crate) const CONFIG: u8 = 78;
/// The command was stopped because of `--max-hold`, as by timeout(1).
pub(crate) const MAX_HOLD: u8 = 124;
/// The command exists but can't be run.
pub(crate) const CANT_RUN: u8 = 126;
/// The command does not exist.
pub(crate) const NOT_FOUND: u8 = 127;
/// The offset that is added to the number of a signal.
pub(crate) const SIGNAL: u8 = 128;

/// The reason for which polylock itself, not the command, fails.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (code, hint) = match &error {
            Error::NotAcquired { .. } => (NOT_ACQUIRED, ""),
            Error::Lost { .. } => (LOST, ""),
            Error::Unavailable(unavailable) => match unavailable.fault {
                Fault::Denied | Fault::Revoked => (DENIED, ""),
                // Most causes have advice of their own.
                Fault::Temporary if !error.chain().contains("check ") => {
                    (UNAVAILABLE, "; check that the store is running and that the URL is correct")
                }
                Fault::Permanent
                    if unavailable.operation == Operation::Connect && !is_full(&error.chain()) =>
                {
                    (CONFIG, "")
                }
                _ => (UNAVAILABLE, ""),
            },
            Error::Unsupported { .. } | Error::Config(_) => (CONFIG, ""),
            Error::InvalidName(_) | Error::InvalidTtl { .. } | Error::Reentry { .. } => (USAGE, ""),
            _ => (INTERNAL, ""),
        };
        Self { code, message: error.chain() + hint }
    }
}

/// Returns true if the disk of the store is full: that is no setting.
fn is_full(message: &str) -> bool {
    ["disk is full", "No space left"].iter().any(|words| message.contains(words))
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Error::from(error).into()
    }
}

impl From<InvalidName> for Failure {
    fn from(error: InvalidName) -> Self {
        Error::from(error).into()
    }
}

#[cfg(test)]
mod tests {
    use polylock::Unavailable;

    use super::*;

    #[test]
    fn each_error_has_its_exit_code_and_its_causes_in_one_line() {
        let failed = |operation, fault, cause: &'static str| {
            Error::from(Unavailable::new("sqlite", operation, fault, cause))
        };
        let unavailable = |fault| failed(Operation::Connect, fault, "no such file");
        for (error, code) in [
            (unavailable(Fault::Temporary), UNAVAILABLE),
            // Something must be corrected before a retry helps.
            (unavailable(Fault::Permanent), CONFIG),
            (failed(Operation::Connect, Fault::Permanent, "the disk is full"), UNAVAILABLE),
            (failed(Operation::Claim, Fault::Permanent, "no such file"), UNAVAILABLE),
            (unavailable(Fault::Denied), DENIED),
            (unavailable(Fault::Revoked), DENIED),
            (ConfigError::new("store", "no scheme").into(), CONFIG),
            (InvalidName::Empty.into(), USAGE),
        ] {
            assert_eq!(Failure::from(error).code, code);
        }
        let message = Failure::from(unavailable(Fault::Permanent)).message;
        assert!(
            message.starts_with("sqlite could not connect") && message.ends_with(": no such file"),
            "{message}"
        );
    }

    #[test]
    fn a_cause_of_several_lines_is_shortened() {
        let message = |cause: &'static str| {
            let cause = Unavailable::new("postgres", Operation::Connect, Fault::Denied, cause);
            Failure::from(Error::from(cause)).message
        };
        let plain = message("");
        assert_eq!(message("the statements are:\nCREATE TABLE x"), plain);
        assert_eq!(message("timed out\nat line 3"), format!("{plain}: timed out"));
    }
}
