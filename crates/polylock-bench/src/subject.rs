//! A store that is measured, and the namespaces of the benchmark in it.

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use polylock::{
    ConfigError, Namespaces, Options, StoreConfig, StoreUrl,
    core::{Locks, sync::lock},
    duration, read_url,
};

use crate::{Floor, Opened, RawClient, Result, raw};

/// The beginning of the names of all namespaces of benchmarks.
pub const PREFIX: &str = "polylock_bench";

/// A store that is measured, in namespaces of its own. The benchmark changes nothing else in the store.
pub struct Subject {
    url: StoreUrl,
    options: Options,
    /// True if the TTL of the URL is the timeout of a session.
    has_sessions: bool,
    name: String,
    namespaces: Namespaces,
    opened: Opened,
    /// The namespaces with a table of the raw driver.
    with_raw: Mutex<Vec<String>>,
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("store", &self.name)
            .field("namespaces", &self.namespaces)
            .finish_non_exhaustive()
    }
}

impl Subject {
    /// Selects the store at `url`. `name` displays it, without secrets.
    ///
    /// # Errors
    /// [`ConfigError`] if the URL is invalid, or the store has no namespaces that can be deleted.
    pub fn new(url: StoreUrl, name: impl Into<String>) -> Result<Self, ConfigError> {
        let (name, (options, config)) = (name.into(), read_url(&url)?);
        let has_sessions = config.has_sessions();
        let prefix = format!("{PREFIX}_{:08x}", fastrand::u32(..));
        let namespaces = Namespaces::new(config, prefix).ok_or_else(|| {
            let problem =
                format!("{name} can't be measured, because it has no namespaces that can be deleted");
            ConfigError::new("store", problem)
        })?;
        let (opened, with_raw) = Default::default();
        Ok(Self { url, options, has_sessions, name, namespaces, opened, with_raw })
    }

    /// Returns the name of the store, without secrets.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the beginning of the names of the namespaces.
    #[must_use]
    pub fn prefix(&self) -> &str {
        self.namespaces.prefix()
    }

    /// Returns the TTL of the store's URL, or the default one.
    #[must_use]
    pub const fn ttl(&self) -> Duration {
        self.options.ttl
    }

    /// Returns true if the TTL of the URL is the timeout of a session that has the leases of all locks.
    #[must_use]
    pub const fn has_sessions(&self) -> bool {
        self.has_sessions
    }

    /// Returns true if a namespace was opened since the last clean-up.
    #[must_use]
    pub fn was_opened(&self) -> bool {
        !self.opened.is_empty()
    }

    /// Returns the name of a new namespace.
    pub fn create_namespace(&self) -> String {
        self.namespaces.create()
    }

    /// Opens a namespace of this subject, or of the one in the parent process; with another timeout of its session, if it has one.
    ///
    /// # Errors
    /// If the store can't be used.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing that [`clean_up`](Self::clean_up) does not delete.
    pub async fn open(&self, namespace: &str, session: Option<Duration>) -> Result<Locks> {
        let config = self.config(namespace, session)?;
        Ok(self.opened.open(config, session.unwrap_or(self.options.ttl)).await?)
    }

    fn config(&self, namespace: &str, session: Option<Duration>) -> Result<Arc<dyn StoreConfig>> {
        let Some(session) = session.filter(|_| self.has_sessions) else {
            return Ok(self.namespaces.config(namespace));
        };
        let mut url = self.url.clone();
        url.replace("polylock.ttl", duration::format(session));
        let config = read_url(&url)?.1.in_namespace(namespace);
        Ok(config.unwrap_or_else(|| self.namespaces.config(namespace)))
    }

    /// Opens the raw driver in a new namespace; `None` if the store has none.
    ///
    /// # Errors
    /// If the driver can't be used.
    ///
    /// # Cancel safety
    /// As [`open`](Self::open).
    pub async fn open_raw(&self) -> Result<Option<Box<dyn RawClient>>> {
        let namespace = self.create_namespace();
        // Before the table is created: the future may be dropped meanwhile.
        lock(&self.with_raw).push(namespace.clone());
        let (url, name) = (self.url.clone(), namespace.clone());
        let opened = self.opened.to_the_end(async move { raw::open(&url, &name, Floor::Usual).await }).await;
        if !matches!(opened, Ok(Some(_))) {
            lock(&self.with_raw).retain(|other| *other != namespace);
        }
        opened
    }

    /// Waits for the background work of all that was opened, for a limited time, and deletes the namespaces. The child processes must have
    /// ended.
    ///
    /// # Errors
    /// If a namespace can't be deleted. Another call deletes what is left.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the rest undeleted.
    pub async fn clean_up(&self) -> Result<()> {
        let _closed = self.opened.close().await;
        let with_raw = lock(&self.with_raw).clone();
        for namespace in with_raw {
            raw::remove(&self.url, &namespace).await?;
        }
        Ok(self.namespaces.delete_all().await?)
    }
}
