//! Where the file is and how it is used.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use polylock_core::{
    ConfigError,
    url::{Keys, StoreUrl},
};

use crate::engine::{table, version::Next};

/// Where the file is and how it is used. See the [module](super) for what each option means.
///
/// ```
/// use polylock_sql::sqlite::{Config, Durability};
///
/// let config = Config::new("/var/lib/app/locks.db").table("app_locks").durability(Durability::Normal);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub(super) path: PathBuf,
    pub(super) table: String,
    pub(super) durability: Durability,
    pub(super) busy_timeout: Duration,
    /// One version of the tables more, in tests.
    pub(super) next: Option<Arc<Next>>,
}

/// What a grant survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Durability {
    /// A grant is on the disk before it is reported, so fencing tokens grow over a power cut too.
    #[default]
    Full,
    /// A grant survives the crash of any process, but a power cut may undo the last ones: then tokens may repeat.
    /// Several times faster where the disk is slow to sync.
    Normal,
}

impl Config {
    /// The default of [`table`](Self::table).
    pub const DEFAULT_TABLE: &str = table::DEFAULT;
    /// The default of [`busy_timeout`](Self::busy_timeout).
    pub const DEFAULT_BUSY_TIMEOUT: Duration = Duration::from_secs(5);
    /// The longest prefix of table names, in bytes.
    pub const MAX_TABLE_BYTES: usize = table::MAX_BYTES;

    /// The file at `path`, which is created if it is missing, with its directories.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            table: Self::DEFAULT_TABLE.to_owned(),
            durability: Durability::default(),
            busy_timeout: Self::DEFAULT_BUSY_TIMEOUT,
            next: None,
        }
    }

    /// Reads `sqlite:path`, `sqlite://path` or `sqlite:///absolute/path`, and takes `polylock.table`,
    /// `polylock.durability` and `polylock.busy_timeout` from `keys`.
    ///
    /// # Errors
    /// [`ConfigError`] on what makes no sense.
    pub fn from_url(url: &StoreUrl, keys: &mut Keys) -> Result<Self, ConfigError> {
        let mut config = Self::new(url.file()?);
        if let Some(table) = keys.text("polylock.table") {
            config.table = table;
        }
        let durabilities = [("full", Durability::Full), ("normal", Durability::Normal)];
        if let Some(durability) = keys.choice("polylock.durability", &durabilities)? {
            config.durability = durability;
        }
        if let Some(timeout) = keys.duration("polylock.busy_timeout")? {
            config.busy_timeout = timeout;
        }
        config.check()?;
        Ok(config)
    }

    /// What the names of the tables begin with, so that several sets of locks, or other tables, can share a file:
    /// a letter or `_`, then up to 40 letters, digits or `_`. `polylock` by default.
    #[must_use]
    pub fn table(mut self, prefix: impl Into<String>) -> Self {
        self.table = prefix.into();
        self
    }

    /// What a grant survives: a power cut too, by default.
    #[must_use]
    pub const fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// How long an operation tries while others keep the file locked: 5 s by default.
    #[must_use]
    pub const fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// One version of the tables more.
    #[doc(hidden)]
    #[must_use]
    pub fn next_version(mut self, next: Next) -> Self {
        self.next = Some(Arc::new(next));
        self
    }

    /// What the setters did not look at.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let path = self.path.as_os_str().as_encoded_bytes();
        if path.is_empty() {
            return Err(ConfigError::new("store", "names no file"));
        }
        if path.starts_with(b":memory:") || path.starts_with(b"file:") {
            return Err(ConfigError::new(
                "store",
                "needs the path of a file: for locks in memory write memory:, and leave SQLite's own file: out",
            ));
        }
        if path.contains(&0) || self.path.to_str().is_none() {
            return Err(ConfigError::new("store", "the path must be UTF-8 without NUL"));
        }
        table::check(&self.table)?;
        if self.busy_timeout < Duration::from_millis(10) || self.busy_timeout > Duration::from_secs(3600) {
            return Err(ConfigError::new("polylock.busy_timeout", "must be 10ms to 1h"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Config, ConfigError> {
        let url = StoreUrl::parse(url)?;
        let mut keys = url.keys();
        let config = Config::from_url(&url, &mut keys)?;
        keys.finish()?;
        Ok(config)
    }

    #[test]
    fn a_url_gives_what_the_setters_give() {
        let url = "sqlite:///tmp/a%20b.db?polylock.table=t_1&polylock.durability=normal&polylock.busy_timeout=250ms";
        let set = Config::new("/tmp/a b.db")
            .table("t_1")
            .durability(Durability::Normal)
            .busy_timeout(Duration::from_millis(250));
        assert_eq!(read(url), Ok(set));
        assert_eq!(read("sqlite:locks.db"), Ok(Config::new("locks.db")));
    }

    #[test]
    fn what_makes_no_sense_names_its_key() {
        let long = format!("sqlite:x?polylock.table={}", "t".repeat(42));
        for (url, key) in [
            ("sqlite:", "store"),
            ("sqlite::memory:", "store"),
            ("sqlite://:memory:", "store"),
            ("sqlite:file:x.db", "store"),
            ("sqlite:a%00b", "store"),
            ("sqlite:x?polylock.table=", "polylock.table"),
            ("sqlite:x?polylock.table=1x", "polylock.table"),
            ("sqlite:x?polylock.table=a;b", "polylock.table"),
            ("sqlite:x?polylock.table=sqlite_x", "polylock.table"),
            (&long, "polylock.table"),
            ("sqlite:x?polylock.durability=off", "polylock.durability"),
            ("sqlite:x?polylock.busy_timeout=soon", "polylock.busy_timeout"),
            ("sqlite:x?polylock.busy_timeout=0", "polylock.busy_timeout"),
            ("sqlite:x?polylock.tabel=x", "polylock.tabel"),
        ] {
            assert_eq!(read(url).unwrap_err().key, key, "{url}");
        }
    }

    #[test]
    fn memory_is_pointed_to() {
        assert!(read("sqlite::memory:").unwrap_err().problem.contains("memory:"));
    }
}
