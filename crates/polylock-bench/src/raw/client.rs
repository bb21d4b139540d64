//! The interface of the drivers.

use async_trait::async_trait;
use polylock::{ConfigError, Options, StoreUrl, core::url::Keys};

use crate::Result;

/// A driver with a connection, a pool or a session.
#[async_trait]
pub trait RawClient: Send + Sync {
    /// Returns the statements of a pair, for people.
    fn description(&self) -> &'static str;

    /// Does what an acquisition and a release of a free lock can't do without.
    ///
    /// # Errors
    /// [`Error::Raw`](crate::Error::Raw).
    async fn pair(&mut self, name: &str, owner: [u8; 16]) -> Result<()>;

    /// Does one round trip that changes nothing, if a hand-over is compared with that instead of a pair. Returns false otherwise.
    ///
    /// # Errors
    /// [`Error::Raw`](crate::Error::Raw).
    async fn trip(&mut self, _name: &str) -> Result<bool> {
        Ok(false)
    }

    /// Returns the same pool, connection or session for another task, if tasks can share it.
    fn share(&self) -> Option<Box<dyn RawClient>>;

    /// Removes the table, if this client has created one. Other objects are deleted with the namespace.
    ///
    /// # Errors
    /// [`Error::Raw`](crate::Error::Raw).
    async fn remove(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The use of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Floor {
    /// As programs use it: on a pool, if there is a server; with the durability of the store.
    Usual,
    /// The least that could be: on connections of its own, and with a release that is no more durable than polylock's; in ZooKeeper with
    /// the first two requests at once. Not every store has it.
    Least,
}

/// Returns the keys of a URL that its store reads.
#[allow(dead_code, reason = "without features, no store reads keys")]
pub(super) fn store_keys(url: &StoreUrl) -> Result<Keys, ConfigError> {
    let mut keys = url.keys();
    Options::from_keys(&mut keys)?;
    Ok(keys)
}
