//! The error of an invalid setting.

/// An invalid setting.
///
/// The problem is stated without the value if the value may contain a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct ConfigError {
    /// The key of the setting.
    pub key: String,
    /// The problem and its remedy.
    pub problem: String,
}

impl ConfigError {
    /// Creates the error for `key` with `problem`.
    #[must_use]
    pub fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { key: key.into(), problem: problem.into() }
    }
}
