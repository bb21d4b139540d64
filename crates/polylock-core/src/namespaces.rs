//! The namespaces of a program that tests a store, or measures it.

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use crate::{Result, StoreConfig, sync::lock};

/// The namespaces of a program that tests a store, or measures it: created one by one, and deleted together.
///
/// ```
/// # use std::sync::Arc;
/// # use polylock_core::{Namespaces, Result, Store, StoreConfig, memory};
/// # struct Config(String);
/// # #[async_trait::async_trait]
/// # impl StoreConfig for Config {
/// #     async fn open(&self) -> Result<Store> { Ok(memory::named(&self.0)) }
/// #     fn in_namespace(&self, name: &str) -> Option<Arc<dyn StoreConfig>> { Some(Arc::new(Self(name.to_owned()))) }
/// # }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// # let config = Arc::new(Config(String::new()));
/// let namespaces = Namespaces::new(config, "test_7f").expect("the store has namespaces");
/// let (first, second) = (namespaces.create(), namespaces.create());
/// assert_eq!((first.as_str(), second.as_str()), ("test_7f_0", "test_7f_1"));
/// let store = namespaces.config(&first).open().await?;
/// // … the test …
/// drop(store);
/// namespaces.delete_all().await?;
/// # Ok(()) }
/// ```
pub struct Namespaces {
    config: Arc<dyn StoreConfig>,
    prefix: String,
    names: Mutex<Vec<String>>,
}

impl fmt::Debug for Namespaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Namespaces")
            .field("prefix", &self.prefix)
            .field("names", &*lock(&self.names))
            .finish_non_exhaustive()
    }
}

impl Namespaces {
    /// Returns an empty set of namespaces in the store of `config`, with names that begin with `prefix`: a letter, and then up to 30
    /// lower-case letters, digits or `_`. Returns `None` if the store has no namespaces that can be deleted.
    #[must_use]
    pub fn new(config: Arc<dyn StoreConfig>, prefix: impl Into<String>) -> Option<Self> {
        let prefix = prefix.into();
        config.in_namespace(&prefix)?;
        Some(Self { config, prefix, names: Mutex::default() })
    }

    /// Returns the beginning of all names.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the name of a new namespace, which [`delete_all`](Self::delete_all) will delete.
    pub fn create(&self) -> String {
        let mut names = lock(&self.names);
        let name = format!("{}_{}", self.prefix, names.len());
        names.push(name.clone());
        name
    }

    /// Returns the names that were created so far.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        lock(&self.names).clone()
    }

    /// Returns the configuration of the namespace `name`.
    ///
    /// # Panics
    /// If the store has no such namespace, although it had that of the prefix.
    #[must_use]
    pub fn config(&self, name: &str) -> Arc<dyn StoreConfig> {
        let config = self.config.in_namespace(name);
        config.unwrap_or_else(|| panic!("the store has the namespace {:?}, but not {name:?}", self.prefix))
    }

    /// Deletes all namespaces with their locks. No program may use them any more.
    ///
    /// # Errors
    /// As [`StoreConfig::delete_namespaces`]. Another call deletes what is left.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the rest undeleted.
    pub async fn delete_all(&self) -> Result<()> {
        self.config.delete_namespaces(&self.names()).await
    }
}
