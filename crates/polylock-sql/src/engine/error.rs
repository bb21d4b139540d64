//! What a failed operation tells: where, and what to do. What each code of a driver means is the dialect's.

use std::fmt;

use polylock_core::{Error, Fault, Operation, Unavailable};

/// The cause of an [`Unavailable`]: which database, and what to do. The driver's own words are its source.
#[derive(Debug, thiserror::Error)]
pub(crate) struct Failure {
    place: String,
    advice: Option<String>,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place)?;
        self.advice.as_ref().map_or(Ok(()), |advice| write!(f, ": {advice}"))
    }
}

/// Where an operation failed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At<'a> {
    pub(crate) backend: &'static str,
    pub(crate) operation: Operation,
    /// The file or the server, without secrets.
    pub(crate) place: &'a str,
}

impl At<'_> {
    /// It failed for what `source` says.
    pub(crate) fn failed(
        self,
        fault: Fault,
        advice: Option<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        self.error(fault, advice, Some(source.into()))
    }

    /// It failed for a reason of our own.
    pub(crate) fn ours(self, fault: Fault, advice: impl Into<String>) -> Error {
        self.error(fault, Some(advice.into()), None)
    }

    fn error(
        self,
        fault: Fault,
        advice: Option<String>,
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        let failure = Failure { place: self.place.to_owned(), advice, source };
        Unavailable::new(self.backend, self.operation, fault, failure).into()
    }
}
