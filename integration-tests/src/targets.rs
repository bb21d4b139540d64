//! The stores of this machine that everything is tested on. This is the one list; a new store is added here and
//! nowhere else: to [`targets!`](crate::targets!) and as a function of the same name.
//!
//! Where a server is needed, `POLYLOCK_TEST_<STORE>_URL` names one to attach to; else a private one is started from
//! what is installed; else the target is missing, which fails if `POLYLOCK_TEST_REQUIRE=all` is set. Memory and SQLite
//! are never missing. `POLYLOCK_TEST_SQLITE_URL=sqlite:///directory` puts the files on another disk.

use async_trait::async_trait;
use polylock_core::{Result, Store, memory, url::StoreUrl};
use polylock_sql::sqlite;
use polylock_testkit::{Missing, Target};
use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};
use tempfile::TempDir;

/// Calls the macro `$then` with the names of all targets.
#[macro_export]
macro_rules! targets {
    ($then:ident) => {
        $then! { memory sqlite_full sqlite_normal }
    };
}

macro_rules! list {
    ($($name:ident)*) => {
        /// The names of all targets.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];

        /// A fresh one of the target `name`.
        ///
        /// # Errors
        /// [`Missing`] if its server is not there, or there is no such target.
        pub async fn make(name: &str) -> Result<Spot, Missing> {
            match name {
                $(stringify!($name) => $name().await,)*
                _ => Err(Missing(format!("there is no target {name:?}"))),
            }
        }
    };
}
crate::targets!(list);

/// A place in a store that nothing else uses.
#[derive(Debug)]
pub struct Spot {
    url: String,
    /// Kept for as long as the files in it are used.
    directory: Option<TempDir>,
}

/// Locks of this process alone.
///
/// # Errors
/// Never.
pub async fn memory() -> Result<Spot, Missing> {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let url = format!("memory:spot-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    Ok(Spot { url, directory: None })
}

/// A SQLite file whose grants survive a power cut: the default.
///
/// # Errors
/// [`Missing`] if there is no place for a file.
pub async fn sqlite_full() -> Result<Spot, Missing> {
    file("full")
}

/// A SQLite file whose grants survive the crash of processes.
///
/// # Errors
/// [`Missing`] if there is no place for a file.
pub async fn sqlite_normal() -> Result<Spot, Missing> {
    file("normal")
}

fn file(durability: &str) -> Result<Spot, Missing> {
    let directory = match std::env::var("POLYLOCK_TEST_SQLITE_URL") {
        Ok(url) => {
            let path = StoreUrl::parse(&url).and_then(|url| url.file());
            TempDir::new_in(path.map_err(|error| Missing(format!("POLYLOCK_TEST_SQLITE_URL: {error}")))?)
        }
        Err(_) => TempDir::new(),
    };
    let directory = directory.map_err(|error| Missing(format!("no directory for a file: {error}")))?;
    let path = directory.path().join("locks.db");
    let url = format!("sqlite://{}?polylock.durability={durability}", path.display());
    Ok(Spot { url, directory: Some(directory) })
}

impl Spot {
    /// Its URL, for [`polylock::Locks::connect`] here and in other processes.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its URL with one more key.
    #[must_use]
    pub fn url_with(&self, key: &str, value: &str) -> String {
        let joint = if self.url.contains('?') { '&' } else { '?' };
        format!("{}{joint}{key}={value}", self.url)
    }

    /// A fresh file beside the store's own, where it has any.
    #[must_use]
    pub fn file(&self, name: &str) -> Option<std::path::PathBuf> {
        self.directory.as_ref().map(|directory| directory.path().join(name))
    }
}

#[async_trait]
impl Target for Spot {
    async fn connect(&self) -> Result<Store> {
        let url = StoreUrl::parse(&self.url)?;
        if self.directory.is_none() {
            return Ok(memory::named(url.rest()));
        }
        sqlite::connect(sqlite::Config::from_url(&url, &mut url.keys())?).await
    }

    async fn leftovers(&self) -> Result<Option<u64>> {
        let Some(path) = self.file("locks.db") else { return Ok(None) };
        let count = "SELECT (SELECT count(*) FROM polylock_holds) + (SELECT count(*) FROM polylock_waiters)";
        let counted = async {
            let mut past_the_store =
                SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(path)).await?;
            let rows: i64 = sqlx::query_scalar(count).fetch_one(&mut past_the_store).await?;
            past_the_store.close().await?;
            Ok::<_, sqlx::Error>(u64::try_from(rows).unwrap_or(0))
        };
        match counted.await {
            Ok(rows) => Ok(Some(rows)),
            Err(error) => panic!("can't count the rows: {error}"),
        }
    }
}
