//! The configuration of a [transitional store](polylock_core::transition), `both:OLD;NEW`.

use std::sync::Arc;

use async_trait::async_trait;
use polylock_core::{
    ConfigError, Result, Store, StoreConfig,
    transition::{both, ensure_distinct},
    url::StoreUrl,
};

/// The configurations of the old and the new store.
pub(crate) struct Transition {
    old: Arc<dyn StoreConfig>,
    new: Arc<dyn StoreConfig>,
}

impl Transition {
    /// Reads the configurations of both stores with `read`.
    ///
    /// # Errors
    /// [`ConfigError`] if a URL or a key is invalid.
    pub(crate) fn from_url(
        url: &StoreUrl,
        read: impl Fn(&StoreUrl) -> Result<Arc<dyn StoreConfig>, ConfigError>,
    ) -> Result<Self, ConfigError> {
        let [old, new] = url.stores() else { return Err(ConfigError::new("store", "write both:OLD;NEW")) };
        // Two URLs of in-memory stores may name two stores without a name.
        if old == new && old.scheme() != "memory" {
            let problem = "both:OLD;NEW names one store twice: name the store that is left and the one that replaces it, or use its URL alone";
            return Err(ConfigError::new("store", problem));
        }
        Ok(Self { old: read(old)?, new: read(new)? })
    }

    fn stores(&self) -> [&Arc<dyn StoreConfig>; 2] {
        [&self.old, &self.new]
    }
}

#[async_trait]
impl StoreConfig for Transition {
    async fn open(&self) -> Result<Store> {
        let (old, new) = (self.old.open().await?, self.new.open().await?);
        let store = both(old.clone(), new.clone())?;
        ensure_distinct(&old, &new).await?;
        Ok(store)
    }

    fn has_sessions(&self) -> bool {
        self.stores().iter().any(|store| store.has_sessions())
    }

    /// The statements of each store, below a comment that names it.
    fn schema(&self) -> Result<Option<String>, ConfigError> {
        let mut text = String::new();
        for (store, which) in self.stores().into_iter().zip(["old", "new"]) {
            if let Some(schema) = store.schema()? {
                text += &format!("-- The {which} store:\n{schema}");
            }
        }
        Ok(Some(text).filter(|text| !text.is_empty()))
    }

    async fn admit(&self) -> Result<Option<Vec<String>>> {
        let mut admitted: Option<Vec<String>> = None;
        for store in self.stores() {
            if let Some(servers) = store.admit().await? {
                admitted.get_or_insert_default().extend(servers);
            }
        }
        Ok(admitted)
    }

    fn in_namespace(&self, name: &str) -> Option<Arc<dyn StoreConfig>> {
        Some(Arc::new(Self { old: self.old.in_namespace(name)?, new: self.new.in_namespace(name)? }))
    }

    async fn delete_namespaces(&self, names: &[String]) -> Result<()> {
        // What can be deleted is deleted, even if one of the stores is unavailable.
        let (old, new) = (self.old.delete_namespaces(names).await, self.new.delete_namespaces(names).await);
        old.and(new)
    }
}
