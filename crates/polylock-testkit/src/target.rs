//! The interface that the author of a store implements to test it.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use polylock_core::{Capabilities, Result, Store};

/// A store under test: one isolated namespace.
///
/// Every case creates its own target, and cases run in parallel, so a new target must share nothing with another: a file in a new
/// directory, a new key prefix.
#[async_trait]
pub trait Target: Send + Sync + 'static {
    /// Opens a new, independent connection to the same store and namespace, as another process would.
    ///
    /// It is called on the `polylock-io` thread, to which connections belong.
    ///
    /// # Errors
    /// The error of the store's own `connect`; every case fails with it.
    async fn connect(&self) -> Result<Store>;

    /// Returns the number of entries that the store keeps in this namespace, holders and waiters, expired ones included; `None`, the
    /// default, if it can't be counted.
    ///
    /// Data for other purposes (a counter for tokens, for instance) do not count, within the bounds that the store's documentation
    /// states. Without this method, leaks are detected with [`Inspect`](polylock_core::Inspect), which returns live entries only.
    ///
    /// # Errors
    /// If the store can't be queried; every case that uses it fails.
    async fn leftovers(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Describes the [`leftovers`](Self::leftovers), for the message of a case that has found some; nothing by default.
    async fn leftovers_text(&self) -> Option<String> {
        None
    }

    /// Returns the errors that the store's server has logged because of this namespace: statements that it refused, for instance, which
    /// no caller notices because they ran in the background. A case fails if there is one; none by default.
    async fn errors_logged(&self) -> Vec<String> {
        Vec::new()
    }

    /// Deletes everything that the store keeps in this namespace while programs use it, counters for tokens included, as an operator or a
    /// clean-up job may do. Returns true if it did; `false`, the default, if the target can't do that.
    ///
    /// # Errors
    /// If it fails; the case fails with it.
    async fn empty(&self) -> Result<bool> {
        Ok(false)
    }

    /// Returns a target in the same kind of store on a server of its own, which persists acknowledged writes and may be killed; `None`,
    /// the default, if there is none.
    ///
    /// # Errors
    /// If it can't be started; the case fails with it.
    async fn on_own_server(&self) -> Result<Option<Arc<dyn OwnServer>>> {
        Ok(None)
    }

    /// A short lease for the cases that wait until one runs out: 400 ms by default, or the store's shortest.
    fn short_ttl(&self, capabilities: &Capabilities) -> Duration {
        Duration::from_millis(400).max(*capabilities.ttl.start())
    }

    /// The time limit of a case, after which it counts as hung: two minutes by default. The suite adds 40 short leases. Each step of a
    /// case has a time limit, too: `POLYLOCK_TESTKIT_TIMEOUT` seconds, 30 by default.
    fn time_limit(&self) -> Duration {
        Duration::from_secs(120)
    }

    /// Texts that must not appear in any output: the password of the URL, for instance. None by default.
    fn secrets(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A target on a server of its own.
#[async_trait]
pub trait OwnServer: Target {
    /// Kills the server without warning, starts it again with its persistent data, and waits until it answers.
    async fn restart(&self);
}

/// Creates a new target for every case.
#[derive(Clone)]
pub struct TargetFactory(Arc<dyn Fn() -> TargetFuture + Send + Sync>);

type TargetFuture = Pin<Box<dyn Future<Output = Result<Arc<dyn Target>, Missing>> + Send>>;

impl TargetFactory {
    /// Creates one from a closure such as `|| async { MyTarget::new() }`, which may also return `Result<MyTarget, Missing>`.
    pub fn new<C, F>(create: C) -> Self
    where
        C: Fn() -> F + Send + Sync + 'static,
        F: Future<Output: IntoTarget> + Send + 'static,
    {
        Self(Arc::new(move || {
            let target = create();
            Box::pin(async move { target.await.into_target() })
        }))
    }

    pub(crate) async fn create(&self) -> Result<Arc<dyn Target>, Missing> {
        (self.0)().await
    }
}

impl fmt::Debug for TargetFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TargetFactory")
    }
}

/// The reason why a target is not available: its server is not installed, for instance.
///
/// Such a case is reported as missing, not as passed. With `POLYLOCK_TEST_REQUIRE=all` in the environment it fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing(pub String);

/// A possible output of a [`TargetFactory`]'s closure: a [`Target`], or a `Result` of one or [`Missing`].
pub trait IntoTarget {
    /// Returns the target.
    ///
    /// # Errors
    /// [`Missing`] if it is not available.
    fn into_target(self) -> Result<Arc<dyn Target>, Missing>;
}

impl<T: Target> IntoTarget for T {
    fn into_target(self) -> Result<Arc<dyn Target>, Missing> {
        Ok(Arc::new(self))
    }
}

impl<T: Target> IntoTarget for Result<T, Missing> {
    fn into_target(self) -> Result<Arc<dyn Target>, Missing> {
        self.map(|target| Arc::new(target) as Arc<dyn Target>)
    }
}
