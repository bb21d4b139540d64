//! The configuration of the store.

use std::{
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use polylock_core::{
    ConfigError, duration,
    url::{Keys, StoreUrl},
};

use crate::{
    engine::{table, version::NextVersion},
    optimistic::FenceScript,
};

/// The range of `polylock.operation_timeout`.
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(3600);

/// The path of the file and the options of the store. See the [module](super) for the meaning of each option.
///
/// ```
/// use polylock_sql::sqlite::{Config, Durability};
///
/// let config = Config::new("/var/lib/app/locks.db").namespace("app_locks").durability(Durability::Normal);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub(super) path: PathBuf,
    pub(super) table: String,
    pub(super) durability: Durability,
    pub(super) operation_timeout: Duration,
    /// An additional version of the tables, in tests.
    pub(super) next: Option<Arc<NextVersion>>,
}

/// The failures that a grant survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Durability {
    /// A grant is on the disk before it is reported, so fencing tokens keep growing after a power cut, too.
    #[default]
    Full,
    /// A grant survives the crash of any process, but a power cut may undo the last ones: then tokens may repeat. Several times faster
    /// where the disk is slow to sync.
    Normal,
}

impl Config {
    /// The default of [`namespace`](Self::namespace).
    pub const DEFAULT_NAMESPACE: &str = table::DEFAULT;
    /// The default of [`operation_timeout`](Self::operation_timeout).
    pub const DEFAULT_OPERATION_TIMEOUT: Duration = Duration::from_secs(5);
    /// The longest prefix of table names, in bytes.
    pub const MAX_NAMESPACE_BYTES: usize = table::MAX_BYTES;

    /// Creates the configuration for the file at `path`, which is created if it is missing, with its directories.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            table: Self::DEFAULT_NAMESPACE.to_owned(),
            durability: Durability::default(),
            operation_timeout: Self::DEFAULT_OPERATION_TIMEOUT,
            next: None,
        }
    }

    /// Reads `sqlite:path`, `sqlite://path` or `sqlite:///absolute/path`, and takes `polylock.namespace`,
    /// `polylock.durability` and `polylock.operation_timeout` from `keys`.
    ///
    /// # Errors
    /// [`ConfigError`] on a key with a value that is not valid.
    pub fn from_url(url: &StoreUrl, keys: &mut Keys) -> Result<Self, ConfigError> {
        let mut config = Self::new(url.file()?);
        if let Some(table) = keys.text("polylock.namespace") {
            config.table = table;
        }
        let durabilities = [("full", Durability::Full), ("normal", Durability::Normal)];
        if let Some(durability) = keys.choice("polylock.durability", &durabilities)? {
            config.durability = durability;
        }
        if let Some(timeout) = keys.duration("polylock.operation_timeout")? {
            config.operation_timeout = timeout;
        }
        config.check()?;
        Ok(config)
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets the prefix of the table names, so that several sets of locks, or other tables, can share a file: a letter or `_`, then up to 40
    /// letters, digits or `_`. The default is `polylock`.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.table = namespace.into();
        self
    }

    polylock_core::setters! {
        /// Sets the failures that a grant survives. The default includes a power cut.
        durability(durability: Durability) => durability;
        /// Sets the time for which an operation is retried while others keep the file locked: 5 s by default.
        operation_timeout(timeout: Duration) => operation_timeout;
    }

    /// Adds a version of the tables.
    #[doc(hidden)]
    #[must_use]
    pub fn next_version(mut self, next: NextVersion) -> Self {
        self.next = Some(Arc::new(next));
        self
    }

    /// Returns the statements of a fence in this database: `polylock_fence` and the table `polylock_fences`, with the prefix of
    /// [`namespace`](Self::namespace) in place of `polylock`. The locks may be in another store.
    ///
    /// # Errors
    /// [`ConfigError`] if a name in the configuration is not valid.
    pub fn fence_script(&self) -> Result<FenceScript<sqlx::Sqlite>, ConfigError> {
        self.check()?;
        Ok(FenceScript::new(None, &self.table))
    }

    /// Checks the values that the setters did not check.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let path = self.path.as_os_str().as_encoded_bytes();
        if path.is_empty() {
            return Err(ConfigError::new("store", "names no file"));
        }
        if path.starts_with(b":memory:") || path.starts_with(b"file:") {
            return Err(ConfigError::new(
                "store",
                "must be the path of a file: write memory: for locks in memory, and omit SQLite's file: prefix",
            ));
        }
        if path.contains(&0) || self.path.to_str().is_none() {
            return Err(ConfigError::new("store", "the path must be UTF-8 without NUL"));
        }
        table::check(&self.table)?;
        duration::check("polylock.operation_timeout", self.operation_timeout, &TIMEOUTS)
    }
}

#[cfg(test)]
mod tests {
    use polylock_core::url::{self, checks};

    use super::*;

    fn read(url: &str) -> Result<Config, ConfigError> {
        url::read(url, Config::from_url)
    }

    #[test]
    fn a_url_sets_the_same_options_as_the_setters() {
        let url = "sqlite:///tmp/a%20b.db?polylock.namespace=t_1&polylock.durability=normal&polylock.operation_timeout=250ms";
        let set = Config::new("/tmp/a b.db")
            .namespace("t_1")
            .durability(Durability::Normal)
            .operation_timeout(Duration::from_millis(250));
        checks::gives(read, url, &set);
        checks::gives(read, "sqlite:locks.db", &Config::new("locks.db"));
    }

    #[test]
    fn an_invalid_value_is_an_error_on_its_key() {
        let long = format!("sqlite:x?polylock.namespace={}", "t".repeat(42));
        let invalid = [
            ("sqlite:", "store"),
            ("sqlite::memory:", "store"),
            ("sqlite://:memory:", "store"),
            ("sqlite:file:x.db", "store"),
            ("sqlite:a%00b", "store"),
            ("sqlite:x?polylock.namespace=", "polylock.namespace"),
            ("sqlite:x?polylock.namespace=1x", "polylock.namespace"),
            ("sqlite:x?polylock.namespace=a;b", "polylock.namespace"),
            ("sqlite:x?polylock.namespace=sqlite_x", "polylock.namespace"),
            (&long, "polylock.namespace"),
            ("sqlite:x?polylock.durability=off", "polylock.durability"),
            ("sqlite:x?polylock.operation_timeout=soon", "polylock.operation_timeout"),
            ("sqlite:x?polylock.operation_timeout=0", "polylock.operation_timeout"),
            ("sqlite:x?polylock.tabel=x", "polylock.tabel"),
        ];
        checks::refuses(read, &invalid);
    }

    #[test]
    fn the_error_for_memory_names_the_memory_store() {
        assert!(read("sqlite::memory:").unwrap_err().problem.contains("memory:"));
    }
}
