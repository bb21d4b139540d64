//! The configuration of a store, as the code that selects a store by URL needs it.

use std::sync::Arc;

use async_trait::async_trait;

use crate::{ConfigError, Result, Store};

/// The configuration of a store, read from a URL: the `Config` of each store crate, and those of third parties.
///
/// ```
/// use polylock_core::{ConfigError, Result, Store, StoreConfig, memory, url::{Keys, StoreUrl}};
///
/// /// `example:NAME`, with the key `polylock.example`.
/// #[derive(Debug)]
/// struct Config {
///     name: String,
///     example: Option<String>,
/// }
///
/// impl Config {
///     fn from_url(url: &StoreUrl, keys: &mut Keys) -> std::result::Result<Self, ConfigError> {
///         Ok(Self { name: url.rest().to_owned(), example: keys.text("polylock.example") })
///     }
/// }
///
/// #[async_trait::async_trait]
/// impl StoreConfig for Config {
///     async fn open(&self) -> Result<Store> {
///         Ok(memory::named(&self.name))
///     }
/// }
/// ```
#[async_trait]
pub trait StoreConfig: Send + Sync + 'static {
    /// Opens the store. It is called again while the store is unavailable.
    ///
    /// # Errors
    /// As the store's own `connect`: [`Error::Unavailable`](crate::Error::Unavailable) with a fault that states whether another
    /// attempt may succeed.
    ///
    /// # Cancel safety
    /// Dropping the future must leave nothing behind.
    async fn open(&self) -> Result<Store>;

    /// Returns true if the TTL of the URL is the timeout of a session that has the leases of all locks. The default lease is then
    /// the nearest one that the store grants, instead of an error.
    fn has_sessions(&self) -> bool {
        false
    }

    /// Returns the statements that create the store's tables, for an administrator; `None` for a store that needs none.
    ///
    /// # Errors
    /// [`ConfigError`] if the configuration is invalid.
    fn schema(&self) -> std::result::Result<Option<String>, ConfigError> {
        Ok(None)
    }

    /// Ends the start-up delay of new servers, and returns them; `None` for a store without such a delay. See Redlock's `admit`.
    ///
    /// # Errors
    /// As [`open`](Self::open), or because a lock is held.
    ///
    /// # Cancel safety
    /// Once polled, it is carried out even if it is dropped.
    async fn admit(&self) -> Result<Option<Vec<String>>> {
        Ok(None)
    }

    /// Returns the configuration of the namespace `name` in the same store, with locks of its own, for a program that tests the store and
    /// then [deletes](Self::delete_namespaces) what it has created. `name` is a letter, and then up to 40 lower-case letters, digits or
    /// `_`. `None`, the default, if the store has no namespaces that can be deleted.
    fn in_namespace(&self, _name: &str) -> Option<Arc<dyn StoreConfig>> {
        None
    }

    /// Deletes these namespaces with all their locks, and everything that was created for them: tables, keys, nodes or blobs. The caller
    /// must have created them through [`in_namespace`](Self::in_namespace), and no program may use them any more. A namespace that
    /// does not exist is skipped.
    ///
    /// # Errors
    /// As [`open`](Self::open). Another call deletes what is left.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the rest undeleted.
    async fn delete_namespaces(&self, _names: &[String]) -> Result<()> {
        Ok(())
    }
}
