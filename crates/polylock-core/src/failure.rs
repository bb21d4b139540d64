//! The context of a failed operation: its endpoint and the advice for the reader. Each store maps the error codes of its driver
//! itself.

#[doc(hidden)]
pub mod checks;

use std::fmt;

use crate::{Error, Fault, Operation, Unavailable};

/// The context in which an operation failed.
///
/// ```
/// use polylock_core::{Fault, Operation, failure::At};
///
/// let at = At { backend: "redis", operation: Operation::Connect, endpoint: "db.example.com:6379" };
/// let error = at.advise(Fault::Permanent, "this is a replica: connect to the primary");
/// let cause = std::error::Error::source(&error).map(ToString::to_string);
/// assert_eq!(cause.as_deref(), Some("db.example.com:6379: this is a replica: connect to the primary"));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct At<'a> {
    /// The name of the store.
    pub backend: &'static str,
    /// The operation that failed.
    pub operation: Operation,
    /// The endpoint: a file or a server, without secrets.
    pub endpoint: &'a str,
}

impl At<'_> {
    /// Returns the error with `source`, the driver's error, as its cause; `advice` states the remedy.
    pub fn failed(
        self,
        fault: Fault,
        advice: Option<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        self.error(fault, advice, Some(source.into()))
    }

    /// Returns an error without a driver's error; `advice` states the reason and the remedy.
    pub fn advise(self, fault: Fault, advice: impl Into<String>) -> Error {
        self.error(fault, Some(advice.into()), None)
    }

    fn error(
        self,
        fault: Fault,
        advice: Option<String>,
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        let failure = Failure { endpoint: self.endpoint.to_owned(), advice, source };
        Unavailable::new(self.backend, self.operation, fault, failure).into()
    }
}

/// The cause of an [`Unavailable`]: the endpoint and the advice. Its source is the driver's error.
#[derive(Debug, thiserror::Error)]
struct Failure {
    endpoint: String,
    advice: Option<String>,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.endpoint)?;
        self.advice.as_ref().map_or(Ok(()), |advice| write!(f, ": {advice}"))
    }
}
