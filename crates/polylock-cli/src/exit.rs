//! Exit codes, and errors as people read them: one line, with the causes and what to do next.

use polylock::{ConfigError, Error, Fault, InvalidName};

/// Wrong use of the command line.
pub(crate) const USAGE: u8 = 64;
/// The store can't be reached or can't do its work.
pub(crate) const UNAVAILABLE: u8 = 69;
/// The lock is held by another, or a wait for it was in vain.
pub(crate) const NOT_ACQUIRED: u8 = 75;
/// The lock was lost.
pub(crate) const LOST: u8 = 79;
/// Something that should not happen.
pub(crate) const INTERNAL: u8 = 70;
/// The status file can't be written.
pub(crate) const CANT_CREATE: u8 = 73;
/// The store refuses the credentials or the file's rights.
pub(crate) const DENIED: u8 = 77;
/// A bad or unsupported URL or setting, or a store that was not compiled in.
pub(crate) const CONFIG: u8 = 78;
/// The command was stopped because of `--max-hold`, as by timeout(1).
pub(crate) const MAX_HOLD: u8 = 124;
/// The command is there but can't be run.
pub(crate) const CANT_RUN: u8 = 126;
/// There is no such command.
pub(crate) const NOT_FOUND: u8 = 127;
/// Added to the number of a signal.
pub(crate) const SIGNAL: u8 = 128;

/// Why polylock itself, not the command, ends without success.
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
                Fault::Denied => (DENIED, ""),
                Fault::Temporary => (UNAVAILABLE, "; is the store up, and the URL right?"),
                _ => (UNAVAILABLE, ""),
            },
            Error::Unsupported { .. } | Error::Config(_) => (CONFIG, ""),
            Error::InvalidName(_) | Error::InvalidTtl { .. } | Error::Reentry { .. } => (USAGE, ""),
            _ => (INTERNAL, ""),
        };
        Self { code, message: error.chain() + hint }
    }
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
    use polylock::{Operation, Unavailable};

    use super::*;

    #[test]
    fn each_kind_of_error_has_its_code_and_its_chain_in_one_line() {
        let away = |fault| Error::from(Unavailable::new("sqlite", Operation::Connect, fault, "no such file"));
        for (error, code) in [
            (away(Fault::Temporary), UNAVAILABLE),
            (away(Fault::Permanent), UNAVAILABLE),
            (away(Fault::Denied), DENIED),
            (ConfigError::new("store", "no scheme").into(), CONFIG),
            (InvalidName::Empty.into(), USAGE),
        ] {
            assert_eq!(Failure::from(error).code, code);
        }
        let message = Failure::from(away(Fault::Permanent)).message;
        assert!(
            message.starts_with("sqlite could not connect") && message.ends_with(": no such file"),
            "{message}"
        );
    }

    #[test]
    fn a_cause_of_many_lines_does_not_hide_the_others() {
        let of = |cause: &'static str| {
            let cause = Unavailable::new("postgres", Operation::Connect, Fault::Denied, cause);
            Failure::from(Error::from(cause)).message
        };
        let plain = of("");
        assert_eq!(of("the statements are:\nCREATE TABLE x"), plain);
        assert_eq!(of("no luck\nat line 3"), format!("{plain}: no luck"));
    }
}
