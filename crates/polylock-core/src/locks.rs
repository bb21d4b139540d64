//! The door to a store's locks.

use std::{
    future::Future,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use tokio::sync::Semaphore;

use crate::{
    BreakLock, Capabilities, Clock, Error, Inspect, Label, Lock, LockName, LockStatus, Operation, Options,
    OwnerId, Result, Store, SystemClock,
    engine::{Foreground, Front, Keeper, Pending, Reentry, Shared},
    io,
    metrics::Metrics,
    observer,
};

/// The locks of one store. Cheap to clone; clones share everything.
///
/// It works from any async executor: the store is spoken to on a thread of the library's own ([`io`]).
///
/// When the last `Locks`, [`Lock`] and [`Guard`](crate::Guard) on a store is dropped, it waits up to 500 ms for releases
/// in the background to arrive; so does the end of a thread that has opened the store or dropped guards, which covers a
/// `Locks` in a `static`. [`close`](Self::close) waits as long as it is told to.
///
/// ```
/// use polylock_core::{Locks, memory};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locks = Locks::new(memory::connect());
/// let guard = locks.lock("orders/42").acquire().await?;
/// assert!(locks.lock("orders/42").try_acquire().await?.is_none());
/// guard.release().await?;
/// # Ok::<(), polylock_core::Error>(()) }).unwrap();
/// ```
#[derive(Debug, Clone)]
pub struct Locks {
    front: Arc<Front>,
}

impl Locks {
    /// The locks of `store`, with the default options.
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self::builder(store).build()
    }

    /// The locks of `store`, with something to be set first.
    pub fn builder(store: Store) -> LocksBuilder {
        let mut options = Options::default();
        options.ttl = store.backend.capabilities().nearest_ttl(options.ttl);
        LocksBuilder { store, options, owner: None, label: None, clock: None, metrics: None }
    }

    /// The lock `name`, to be acquired. A name that can't be one is reported then.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(self.front.clone(), name.as_ref())
    }

    /// What the store can do.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        self.front.0.store.backend.capabilities()
    }

    /// What locks are asked for with, unless said otherwise.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.front.0.options
    }

    /// Who holds the lock `name` and who waits for it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the store can't be inspected; [`Error::InvalidName`]; [`Error::Unavailable`].
    ///
    /// # Cancel safety
    /// May be dropped at any point.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<LockStatus> {
        let name = LockName::new(name)?;
        inspect_with(&self.front, Operation::Inspect, |store| async move { store.inspect(&name).await }).await
    }

    /// The status of every lock in use whose name starts with `prefix`, in the order of the names.
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    /// May be dropped at any point.
    pub async fn list(&self, prefix: impl AsRef<str>) -> Result<Vec<LockStatus>> {
        let prefix = prefix.as_ref().to_owned();
        inspect_with(&self.front, Operation::Inspect, |store| async move { store.list(&prefix).await }).await
    }

    /// Breaks the lock `name`: notifies its holders, which stop and release, or removes their holds by
    /// [`force`](BreakLock::force). See [`BreakLock`] for errors and an example.
    pub fn break_lock(&self, name: impl AsRef<str>) -> BreakLock {
        BreakLock::new(self.front.clone(), name.as_ref())
    }

    /// Waits until everything that was begun in the background, releases above all, is done, and was logged and measured;
    /// `false` if `within` was over first.
    ///
    /// It ends nothing: holds stay held and are renewed as long as their guards live, and acquisitions that wait in other tasks
    /// go on waiting. To shut down, stop those tasks and drop their guards first.
    ///
    /// # Cancel safety
    /// May be dropped at any point; the work goes on.
    pub async fn close(self, within: Duration) -> bool {
        let shared = self.front.0.clone();
        let closing = io::run(shared.backend(), async move {
            let by = shared.now() + within;
            let done = async {
                shared.pending.none_left().await;
                observer::flushed().await;
            };
            tokio::select! {
                biased;
                () = done => true,
                () = shared.until(by) => false,
            }
        });
        closing.await.unwrap_or(false)
    }
}

/// Runs `call` on what inspects the store.
pub(crate) async fn inspect_with<T, F>(
    front: &Front,
    operation: Operation,
    call: impl FnOnce(Arc<dyn Inspect>) -> F,
) -> Result<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let shared = &front.0;
    let backend = shared.backend();
    let Some(inspect) = shared.store.inspect.clone() else {
        return Err(Error::Unsupported { backend, capability: "inspection" });
    };
    shared.begin(operation, call(inspect))?.await.map_err(|cause| io::failed(backend, operation, cause))?
}

/// Sets up [`Locks`].
#[derive(Debug)]
#[must_use = "nothing is set up until `build`"]
pub struct LocksBuilder {
    store: Store,
    options: Options,
    owner: Option<OwnerId>,
    label: Option<Label>,
    clock: Option<Arc<dyn Clock>>,
    metrics: Option<Arc<dyn Metrics>>,
}

impl LocksBuilder {
    /// What locks are asked for with, unless said otherwise.
    pub const fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Who acquires, unless a lock [says otherwise](Lock::owner): `host:pid` by default.
    pub fn owner(mut self, owner: &OwnerId) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    /// What locks are for, unless a lock [says otherwise](Lock::label).
    pub fn label(mut self, label: Label) -> Self {
        self.label = Some(label);
        self
    }

    /// The clock of the deadlines. For tests; the default is the machine's, which counts suspend.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Where to send measurements.
    pub fn metrics(mut self, metrics: Arc<dyn Metrics>) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// The locks.
    #[must_use]
    pub fn build(self) -> Locks {
        let claims_at_once = self.store.backend.capabilities().claims_at_once.max(1);
        let shared = Shared {
            store: self.store,
            options: self.options,
            owner: self.owner,
            label: self.label,
            is_system_clock: self.clock.is_none(),
            clock: self.clock.unwrap_or_else(|| Arc::new(SystemClock)),
            metrics: self.metrics,
            gauges: Default::default(),
            pending: Pending::of_new_store(),
            reentry: Reentry::default(),
            io: Default::default(),
            keeper: Keeper::default(),
            local_queues: Default::default(),
            claims: Arc::new(Semaphore::new(claims_at_once)),
            foreground: Foreground::default(),
            answers: AtomicU64::default(),
        };
        let shared = Arc::new(shared);
        if let Some(alerts) = &shared.store.alerts {
            let listener = Arc::downgrade(&shared);
            alerts.listen(move |name| {
                listener.upgrade().map(|shared| shared.keeper.check(&shared, name)).is_some()
            });
        }
        Locks { front: Arc::new(Front(shared)) }
    }
}
