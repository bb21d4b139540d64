//! The settings of the store.

use polylock_core::{
    ConfigError,
    url::{Keys, StoreUrl},
};

/// The settings.
#[derive(Debug, Clone)]
pub struct Config {
    pub(crate) namespace: String,
}

impl Config {
    /// Locks in `namespace`.
    #[must_use]
    pub fn new(namespace: impl Into<String>) -> Self {
        Self { namespace: namespace.into() }
    }

    /// Reads `template:NAMESPACE`. A store with settings of its own takes their keys from `keys`.
    ///
    /// # Errors
    /// [`ConfigError`] if the namespace is missing.
    pub fn from_url(url: &StoreUrl, _keys: &mut Keys) -> Result<Self, ConfigError> {
        if url.rest().is_empty() {
            return Err(ConfigError::new("store", "names no namespace: write template:NAMESPACE"));
        }
        Ok(Self::new(url.rest()))
    }
}
