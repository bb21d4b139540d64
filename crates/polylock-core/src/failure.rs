//! What a failed operation tells: where, and what to do. What each code of a driver means is the store's.

use std::fmt;

use crate::{Error, Fault, Operation, Unavailable};

/// Where an operation failed.
///
/// ```
/// use polylock_core::{Fault, Operation, failure::At};
///
/// let at = At { backend: "redis", operation: Operation::Connect, place: "db.example.com:6379" };
/// let error = at.ours(Fault::Permanent, "this is a replica: connect to the primary");
/// let cause = std::error::Error::source(&error).map(ToString::to_string);
/// assert_eq!(cause.as_deref(), Some("db.example.com:6379: this is a replica: connect to the primary"));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct At<'a> {
    /// The store's name.
    pub backend: &'static str,
    /// What it was to do.
    pub operation: Operation,
    /// The file or the server, without secrets.
    pub place: &'a str,
}

impl At<'_> {
    /// It failed for what `source`, the driver's own error, says; `advice` says what to do.
    pub fn failed(
        self,
        fault: Fault,
        advice: Option<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        self.error(fault, advice, Some(source.into()))
    }

    /// It failed for a reason of the store's own, which `advice` tells with what to do.
    pub fn ours(self, fault: Fault, advice: impl Into<String>) -> Error {
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

/// The cause of an [`Unavailable`]: which place, and what to do. The driver's own words are its source.
#[derive(Debug, thiserror::Error)]
struct Failure {
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
