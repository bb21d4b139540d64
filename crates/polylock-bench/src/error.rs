//! The errors of a measurement.

use polylock_testkit::history::Violation;

/// A failed measurement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store has failed.
    #[error(transparent)]
    Store(polylock::Error),
    /// The driver without polylock has failed.
    #[error("the raw driver has failed")]
    Raw(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A child process has failed.
    #[error("a process of the benchmark has failed: {0}")]
    Child(String),
    /// The history of the measurement breaks a promise of the store, so its numbers mean nothing. `polylock check` examines the store.
    #[error("the store has broken a promise, so nothing was measured: {0}; run polylock check")]
    Violation(String),
}

/// The result of a measurement.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<polylock::Error> for Error {
    fn from(error: polylock::Error) -> Self {
        Self::Store(error)
    }
}

impl From<polylock::ConfigError> for Error {
    fn from(error: polylock::ConfigError) -> Self {
        Self::Store(error.into())
    }
}

impl From<Violation> for Error {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation.to_string())
    }
}

impl Error {
    /// Returns the error of the raw driver.
    #[allow(dead_code, reason = "without features, no store has a driver")]
    pub(crate) fn raw(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Raw(error.into())
    }

    /// Returns the error with its causes, in one line and without secrets.
    #[must_use]
    pub fn chain(&self) -> String {
        match self {
            Self::Store(error) => error.chain(),
            // Drivers show statements and addresses in later lines; the first one is for people.
            Self::Raw(cause) => {
                let cause = cause.to_string();
                format!("{self}: {}", cause.lines().next().unwrap_or_default())
            }
            Self::Child(_) | Self::Violation(_) => self.to_string(),
        }
    }
}
