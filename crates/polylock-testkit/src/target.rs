//! What the author of a store gives to have it tested.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use polylock_core::{Capabilities, Result, Store};

/// A store to be tested: one namespace of its own, which nothing else uses.
///
/// Every case makes a target of its own, and cases run at the same time, so a new one must share nothing with another:
/// a file in a new directory, a key prefix that nobody has used.
#[async_trait]
pub trait Target: Send + Sync + 'static {
    /// A new, independent connection to the same store and namespace, such as another process would have.
    ///
    /// It is called on the `polylock-io` thread, where connections belong.
    ///
    /// # Errors
    /// What the store's own `connect` returns; every case fails with it.
    async fn connect(&self) -> Result<Store>;

    /// How many entries the store keeps in this namespace, holders and waiters, expired ones included; `None` if it
    /// can't be told, which is the default.
    ///
    /// What a store keeps for other purposes (a counter for tokens, for instance) does not count, within the bounds
    /// that its documentation names. Without it, leaks are looked for with [`Inspect`](polylock_core::Inspect), which
    /// sees live entries only.
    ///
    /// # Errors
    /// If the store can't be asked; every case that asks fails with it.
    async fn leftovers(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// The errors that the store's server has logged because of this namespace: statements that it refused, for instance, of
    /// which no caller is told because they ran in the background. A case fails if there is one; none by default.
    async fn errors_logged(&self) -> Vec<String> {
        Vec::new()
    }

    /// Deletes everything that the store keeps in this namespace while programs use it, counters for tokens included, as an operator
    /// or the clean-up of a test may do. Returns whether it has; `false` if the target has no way to, which is the default.
    ///
    /// # Errors
    /// If it fails; the case fails with it.
    async fn empty(&self) -> Result<bool> {
        Ok(false)
    }

    /// A place in the same kind of store on a server of its own, which keeps on its disk what it has acknowledged and may be killed;
    /// `None` if there is none, which is the default.
    ///
    /// # Errors
    /// If it can't be started; the case fails with it.
    async fn on_own_server(&self) -> Result<Option<Arc<dyn OwnServer>>> {
        Ok(None)
    }

    /// A short lease for the cases that wait until one runs out: 400 ms by default, or the shortest the store gives.
    fn short_ttl(&self, capabilities: &Capabilities) -> Duration {
        Duration::from_millis(400).max(*capabilities.ttl.start())
    }

    /// How long a case may take before it counts as hung: two minutes by default, and 40 short leases.
    fn time_limit(&self) -> Duration {
        Duration::from_secs(120)
    }

    /// Texts that may appear nowhere: the password of the URL, for instance. None by default.
    fn secrets(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A target on a server of its own.
#[async_trait]
pub trait OwnServer: Target {
    /// Kills the server without a warning, starts it again with what it has kept, and waits until it answers.
    async fn restart(&self);
}

/// Makes a new target for every case.
#[derive(Clone)]
pub struct Maker(Arc<dyn Fn() -> Making + Send + Sync>);

type Making = Pin<Box<dyn Future<Output = Result<Arc<dyn Target>, Missing>> + Send>>;

impl Maker {
    /// From a closure such as `|| async { MyTarget::new() }`, which may also return `Result<MyTarget, Missing>`.
    pub fn new<M, F>(make: M) -> Self
    where
        M: Fn() -> F + Send + Sync + 'static,
        F: Future<Output: Made> + Send + 'static,
    {
        Self(Arc::new(move || {
            let making = make();
            Box::pin(async move { making.await.made() })
        }))
    }

    pub(crate) async fn make(&self) -> Result<Arc<dyn Target>, Missing> {
        (self.0)().await
    }
}

impl fmt::Debug for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Maker")
    }
}

/// Why a target is not there to be tested: its server is not installed, for instance.
///
/// Such a case is reported as missing, not as passed. With `POLYLOCK_TEST_REQUIRE=all` in the environment it fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing(pub String);

/// What a [`Maker`]'s closure may return: a [`Target`], or a `Result` of one or [`Missing`].
pub trait Made {
    /// The target, if it is there.
    ///
    /// # Errors
    /// [`Missing`] if it is not.
    fn made(self) -> Result<Arc<dyn Target>, Missing>;
}

impl<T: Target> Made for T {
    fn made(self) -> Result<Arc<dyn Target>, Missing> {
        Ok(Arc::new(self))
    }
}

impl<T: Target> Made for Result<T, Missing> {
    fn made(self) -> Result<Arc<dyn Target>, Missing> {
        self.map(|target| Arc::new(target) as Arc<dyn Target>)
    }
}
