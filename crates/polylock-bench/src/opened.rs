//! The stores that a program has opened in the namespaces that it deletes at its end.

use std::{
    fmt,
    future::{Future, pending},
    panic::resume_unwind,
    sync::{Arc, Mutex},
    time::Duration,
};

use polylock::{
    Options, Progress, Store, StoreConfig,
    core::{Locks, connect_within, sync::lock},
};
use tokio::sync::{OwnedRwLockWriteGuard, RwLock};

/// The time for which a store may be unreachable: these programs are interactive.
const OUTAGE: Duration = Duration::from_secs(5);
/// The time limit for the end of background work.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The stores that a program has opened in its [`Namespaces`](polylock::Namespaces).
///
/// An opening goes on if its caller is dropped, and would create the tables of a namespace again after their deletion. So a program that
/// deletes its namespaces opens them with this, and [closes](Self::close) all of them first.
#[derive(Default)]
pub struct Opened {
    /// Shared by all openings.
    opening: Arc<RwLock<()>>,
    locks: Arc<Mutex<Vec<Locks>>>,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").field("stores", &lock(&self.locks).len()).finish_non_exhaustive()
    }
}

impl Opened {
    /// Opens a store, with the lease that is nearest to `ttl`. It must be called on a tokio runtime.
    ///
    /// # Errors
    /// If the store can't be used.
    ///
    /// # Cancel safety
    /// If the future is dropped, the opening goes on, and [`close`](Self::close) waits for its end.
    pub async fn open(&self, config: Arc<dyn StoreConfig>, ttl: Duration) -> polylock::Result<Locks> {
        let opened = self.locks.clone();
        self.to_the_end(async move {
            let store = connect(&*config).await?;
            let mut options = Options::default();
            options.ttl = store.backend.capabilities().nearest_ttl(ttl);
            let locks = Locks::builder(store).options(options).build();
            lock(&opened).push(locks.clone());
            Ok(locks)
        })
        .await
    }

    /// Creates what a store needs, such as its tables, before it is opened by a child process. A server goes on with the statements of a
    /// client that was killed, so a child process that creates tables may do that after their deletion.
    ///
    /// # Errors
    /// If the store can't be used.
    ///
    /// # Cancel safety
    /// As [`open`](Self::open).
    pub async fn prepare(&self, config: Arc<dyn StoreConfig>) -> polylock::Result<()> {
        self.to_the_end(async move { connect(&*config).await.map(drop) }).await
    }

    /// Runs `opening` to its end, also if the caller is dropped, as [`open`](Self::open) does.
    pub(crate) async fn to_the_end<T: Send + 'static>(
        &self,
        opening: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let shared = self.opening.clone().read_owned().await;
        let opening = tokio::spawn(async move {
            let opened = opening.await;
            drop(shared);
            opened
        });
        match opening.await.map_err(tokio::task::JoinError::try_into_panic) {
            Ok(opened) => opened,
            Err(Ok(panic)) => resume_unwind(panic),
            // The runtime ends, and drops this future too.
            Err(Err(_)) => pending().await,
        }
    }

    /// Returns true if nothing was opened since the last [`close`](Self::close).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        lock(&self.locks).is_empty()
    }

    /// Waits for the openings that have begun, and for the background work of all that was opened, for 10 s at most. Nothing is opened while
    /// the result exists, so the namespaces can be deleted.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the background work to itself.
    #[must_use = "another opening may begin when it is dropped"]
    pub async fn close(&self) -> OwnedRwLockWriteGuard<()> {
        let closed = self.opening.clone().write_owned().await;
        let opened = std::mem::take(&mut *lock(&self.locks));
        futures_util::future::join_all(opened.into_iter().map(|locks| locks.close(CLOSE_TIMEOUT))).await;
        closed
    }
}

async fn connect(config: &dyn StoreConfig) -> polylock::Result<Store> {
    connect_within("store", OUTAGE, &Progress::default(), || config.open()).await
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use futures_util::FutureExt as _;
    use polylock::core::{Result, memory};
    use tokio::sync::Semaphore;

    use super::*;

    /// A store that opens when the semaphore has a permit.
    struct Gate(Arc<Semaphore>);

    #[async_trait]
    impl StoreConfig for Gate {
        async fn open(&self) -> Result<Store> {
            let _permit = self.0.acquire().await;
            Ok(memory::named("gate"))
        }
    }

    #[tokio::test]
    async fn an_opening_without_a_caller_ends_before_the_namespaces_are_deleted() {
        let (opened, gate) = (Opened::default(), Arc::new(Semaphore::new(0)));
        let config = Arc::new(Gate(gate.clone()));
        let open = || opened.open(config.clone(), Duration::from_secs(5)).boxed();
        assert!(open().now_or_never().is_none());
        let mut closing = opened.close().boxed();
        for _ in 0..100 {
            tokio::task::yield_now().await;
            assert!((&mut closing).now_or_never().is_none());
        }
        gate.add_permits(1);
        let closed = closing.await;
        assert!(opened.is_empty());
        // Nothing is opened until the deletion has ended.
        assert!(open().now_or_never().is_none() && opened.is_empty());
        drop(closed);
        open().await.unwrap();
        assert!(!opened.is_empty());
    }
}
