//! A store and its settings as a table of a config file.

use std::{collections::BTreeMap, fmt};

use polylock_core::{ConfigError, url::StoreUrl};

/// A store and its settings, as a table of a config file in any format that serde reads:
///
/// ```toml
/// store = "sqlite:///var/lib/app/locks.db"
/// ttl = "30s"
/// ```
///
/// is exactly the URL `sqlite:///var/lib/app/locks.db?polylock.ttl=30s`: each key but `store` is one of the URL's
/// keys without the prefix `polylock.`.
///
/// `Debug` shows no secret, and there is no `Serialize`, because a URL may hold one.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
pub struct LocksConfig {
    store: String,
    #[cfg_attr(feature = "serde", serde(flatten, deserialize_with = "values"))]
    keys: BTreeMap<String, String>,
}

impl LocksConfig {
    /// The store that this URL names.
    #[must_use]
    pub fn new(store: impl Into<String>) -> Self {
        Self { store: store.into(), keys: BTreeMap::new() }
    }

    /// Sets `key`, without the prefix `polylock.`. A key that the store does not know is refused when it is opened.
    #[must_use]
    pub fn set(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.keys.insert(key.into(), value.into());
        self
    }

    /// The URL that says the same.
    ///
    /// # Errors
    /// [`ConfigError`] if `store` is no URL, or on a key that is given both in the URL and beside it.
    pub fn into_url(self) -> Result<StoreUrl, ConfigError> {
        let mut url = StoreUrl::parse(&self.store)?;
        for (key, value) in self.keys {
            url.set(format!("polylock.{key}"), value)?;
        }
        Ok(url)
    }

    /// The statements that make what this store needs in its database: [`schema`](crate::schema) of the same URL.
    ///
    /// # Errors
    /// As [`Locks::from_config`](crate::Locks::from_config), for what is wrong with the settings themselves.
    pub fn schema(self) -> Result<Option<String>, ConfigError> {
        crate::connect::schema_at(&self.into_url()?)
    }

    /// Ends the start-up delay of the servers of this Redlock: [`admit`](crate::admit) of the same URL.
    ///
    /// # Errors
    /// As [`admit`](crate::admit).
    ///
    /// # Cancel safety
    /// Once polled, it is carried out even if it is dropped.
    pub async fn admit(self) -> polylock_core::Result<Vec<String>> {
        crate::connect::admit_at(&self.into_url()?).await
    }
}

impl fmt::Debug for LocksConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = StoreUrl::parse(&self.store).map(|url| url.to_string());
        f.debug_struct("LocksConfig")
            .field("store", &store.unwrap_or_else(|_| "no URL".to_owned()))
            .field("keys", &self.keys.keys())
            .finish()
    }
}

/// Numbers and truth values are as good as their text: `ttl = 30` is `ttl = "30"`.
#[cfg(feature = "serde")]
fn values<'de, D: serde::Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    #[derive(serde::Deserialize)]
    #[serde(untagged, expecting = "a text, a number or true/false")]
    enum Value {
        Text(String),
        Whole(i64),
        Fraction(f64),
        Truth(bool),
    }

    let table: BTreeMap<String, Value> = serde::Deserialize::deserialize(from)?;
    Ok(table
        .into_iter()
        .map(|(key, value)| {
            let value = match value {
                Value::Text(text) => text,
                Value::Whole(number) => number.to_string(),
                Value::Fraction(number) => number.to_string(),
                Value::Truth(truth) => truth.to_string(),
            };
            (key, value)
        })
        .collect())
}
