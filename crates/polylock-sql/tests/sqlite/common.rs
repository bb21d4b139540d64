//! A separate file for each test, and the calls to a store.

use std::{path::PathBuf, time::Duration};

use polylock_core::{ClaimOutcome, Grant, KeepAlive, LockName, Mode, QueuePosition, Request, Store};
use polylock_sql::sqlite::{Config, connect};
use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};
use tempfile::TempDir;

pub(crate) struct TestFile {
    directory: TempDir,
}

impl TestFile {
    pub(crate) fn new() -> Self {
        Self { directory: TempDir::new().unwrap() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("locks.db")
    }

    pub(crate) fn config(&self) -> Config {
        Config::new(self.path())
    }

    pub(crate) async fn store(&self) -> Store {
        connect(self.config()).await.unwrap()
    }

    pub(crate) async fn store_or_error(&self) -> polylock_core::Result<Store> {
        connect(self.config()).await
    }

    /// Opens a connection to a file that may not exist yet.
    pub(crate) async fn raw_new(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new().filename(self.path()).create_if_missing(true);
        SqliteConnection::connect_with(&options).await.unwrap()
    }

    /// Opens a connection beside the store, as another program would have it.
    pub(crate) async fn raw(&self) -> SqliteConnection {
        SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(self.path())).await.unwrap()
    }

    /// Returns the number of rows, live or not.
    pub(crate) async fn rows(&self) -> i64 {
        let count = "SELECT (SELECT count(*) FROM polylock_holds) + (SELECT count(*) FROM polylock_waiters)";
        sqlx::query_scalar(count).fetch_one(&mut self.raw().await).await.unwrap()
    }
}

/// Returns a request for `name` with a TTL of ten seconds.
pub(crate) fn request(name: &str, mode: Mode) -> Request {
    request_with_ttl(name, mode, Duration::from_secs(10))
}

pub(crate) fn request_with_ttl(name: &str, mode: Mode, ttl: Duration) -> Request {
    Request::new(LockName::new(name).unwrap(), mode, ttl)
}

pub(crate) async fn held(store: &Store, request: &Request) -> Grant {
    match store.backend.claim(request).await.unwrap() {
        ClaimOutcome::Granted(grant) => grant,
        ClaimOutcome::Queued(position) => panic!("should hold, and waits: {position:?}"),
    }
}

pub(crate) async fn queued(store: &Store, request: &Request) -> QueuePosition {
    match store.backend.claim(request).await.unwrap() {
        ClaimOutcome::Queued(position) => position,
        ClaimOutcome::Granted(grant) => panic!("should wait, and holds: {grant:?}"),
    }
}

/// Claims again after every wake-up, as core does, until the lock is held.
pub(crate) async fn acquire(store: &Store, request: &Request) -> Grant {
    loop {
        match store.backend.claim(request).await.unwrap() {
            ClaimOutcome::Granted(grant) => return grant,
            ClaimOutcome::Queued(position) => {
                let recheck = position.recheck_after.min(QueuePosition::MAX_RECHECK);
                let wait = store.backend.wait(request);
                if let Ok(wake) = tokio::time::timeout(recheck, wait).await {
                    wake.unwrap();
                }
            }
        }
    }
}

/// Keeps one request alive.
pub(crate) async fn keep_alive(store: &Store, request: &Request) -> polylock_core::Result<KeepAlive> {
    store
        .backend
        .keep_alive(&[std::sync::Arc::new(request.clone())])
        .await
        .map(|mut outcomes| outcomes.remove(0))
}
