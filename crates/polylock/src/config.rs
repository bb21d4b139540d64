//! A store and its settings as a table of a config file.

use std::{collections::BTreeMap, fmt};

use polylock_core::{ConfigError, url::StoreUrl};

use crate::setup;

/// A store and its settings, as a table of a config file in any format that serde reads. For example,
///
/// ```toml
/// store = "sqlite:///var/lib/app/locks.db"
/// ttl = "30s"
/// ```
///
/// is equivalent to the URL `sqlite:///var/lib/app/locks.db?polylock.ttl=30s`: each key but `store` is a key of the URL without the
/// prefix `polylock.`.
///
/// `Debug` shows no secret, and there is no `Serialize`, because a URL may contain one.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
pub struct LocksConfig {
    store: String,
    #[cfg_attr(feature = "serde", serde(flatten, deserialize_with = "values"))]
    keys: BTreeMap<String, String>,
}

impl LocksConfig {
    /// Creates the configuration of the store with this URL.
    #[must_use]
    pub fn new(store: impl Into<String>) -> Self {
        Self { store: store.into(), keys: BTreeMap::new() }
    }

    /// Sets `key`, without the prefix `polylock.`. A key that is unknown to the store is refused when the store is opened.
    #[must_use]
    pub fn set(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.keys.insert(key.into(), value.into());
        self
    }

    /// Returns the equivalent URL.
    ///
    /// # Errors
    /// [`ConfigError`] if `store` is not a URL, or on a key that is given both in the URL and in the table.
    pub fn into_url(self) -> Result<StoreUrl, ConfigError> {
        let mut url = StoreUrl::parse(&self.store)?;
        for (key, value) in self.keys {
            url.set(format!("polylock.{key}"), value)?;
        }
        Ok(url)
    }

    /// Returns the statements that create the store's tables: [`schema`](crate::schema) of the same URL.
    ///
    /// # Errors
    /// As [`Locks::from_config`](crate::Locks::from_config), for invalid settings.
    pub fn schema(self) -> Result<Option<String>, ConfigError> {
        setup::schema_at(&self.into_url()?)
    }

    /// Ends the start-up delay of the servers of this Redlock: [`admit`](crate::admit) of the same URL.
    ///
    /// # Errors
    /// As [`admit`](crate::admit).
    ///
    /// # Cancel safety
    /// Once polled, it is carried out even if it is dropped.
    pub async fn admit(self) -> polylock_core::Result<Vec<String>> {
        setup::admit_at(&self.into_url()?).await
    }
}

impl fmt::Debug for LocksConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocksConfig")
            .field("store", &without_secrets(&self.store))
            .field("keys", &self.keys.keys())
            .finish()
    }
}

/// Returns the URL of a store for display.
pub(crate) fn without_secrets(store: &str) -> String {
    StoreUrl::parse(store).map_or_else(|_| "invalid URL".to_owned(), |url| url.to_string())
}

/// Converts numbers and booleans to text: `ttl = 30` is equivalent to `ttl = "30"`.
#[cfg(feature = "serde")]
pub(crate) fn values<'de, D: serde::Deserializer<'de>>(
    from: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Value {
        Text(String),
        Whole(i64),
        Fraction(f64),
        Boolean(bool),
        Other(serde::de::IgnoredAny),
    }

    let table: BTreeMap<String, Value> = serde::Deserialize::deserialize(from)?;
    let texts = table.into_iter().map(|(key, value)| {
        let value = match value {
            Value::Text(text) => text,
            Value::Whole(number) => number.to_string(),
            Value::Fraction(number) => number.to_string(),
            Value::Boolean(boolean) => boolean.to_string(),
            Value::Other(_) => {
                let problem = format!("{key} must be a string, a number or a boolean");
                return Err(serde::de::Error::custom(problem));
            }
        };
        Ok((key, value))
    });
    texts.collect()
}
