//! The locks of a store: the entry point of the library.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64},
    },
    time::Duration,
};

use crate::{
    Backend, BreakLock, Capabilities, Clock, Election, Error, Guard, HoldHandle, HoldTerms, Label, Lock,
    LockName, LockStatus, MultiLock, Once, Operation, Options, OwnerId, Result, Semaphore, SemaphoreStatus,
    ShutdownReport, Store, SystemClock, Watch,
    engine::{self, Pending, StoreContext, StoreHandle},
    io,
    metrics::Metrics,
    observer, semaphore,
    watch::Target,
};

/// The locks of one store. Cheap to clone; clones share everything.
///
/// It works from any async executor: a thread of the library communicates with the store ([`io`]).
///
/// The drop of the last `Locks`, [`Lock`] and [`Guard`](crate::Guard) on a store waits up to 500 ms for releases in the background
/// to arrive. So does the end of a thread that has opened the store or dropped guards, which covers a `Locks` in a `static`.
/// [`close`](Self::close) waits up to a given limit.
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
    handle: Arc<StoreHandle>,
}

impl Locks {
    /// Creates the locks of `store`, with the default options.
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self::builder(store).build()
    }

    /// Returns a builder for the locks of `store`.
    pub fn builder(store: Store) -> LocksBuilder {
        let mut options = Options::default();
        options.ttl = store.backend.capabilities().nearest_ttl(options.ttl);
        LocksBuilder {
            store,
            options,
            owner: None,
            label: None,
            clock: None,
            metrics: None,
            holds_outlive_process: false,
        }
    }

    /// Returns the lock `name`, to be acquired. An invalid name is an error of the acquisition.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(self.handle.clone(), name.as_ref())
    }

    /// Returns the locks `names`, to be acquired together: all of them or none. An invalid name is an error of the acquisition.
    ///
    /// Their order does not matter, and a name that appears twice is acquired once. See [`MultiLock`].
    pub fn lock_many<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        MultiLock::new(self.handle.clone(), self.lock(""), names.into_iter())
    }

    /// Returns the lock of a node in a tree, to be acquired: of `db/orders/42`, for example, which is below `db/orders` and `db`.
    ///
    /// A hold of a node excludes holds of its ancestors and of everything below it, but not those of other branches. Readers of a node, its
    /// ancestors and its descendants, with [`shared`](MultiLock::shared), hold at the same time.
    ///
    /// The node is locked in EX or PR, and its ancestors before it in the matching intention mode: CW for a writer, CR for a reader. So a plain [`lock`](Self::lock) of `db` excludes all holders in the tree `db`, too. The guard has a fencing token for
    /// each of these names; that of the node orders the holders of the node, and not those of its ancestors. If one lock is lost, all are.
    ///
    /// It needs a store with all six [modes](crate::Modes::AllSix), except for a node without ancestors. This is the hierarchical locking of
    /// Gray et al., *Granularity of Locks and Degrees of Consistency in a Shared Data Base* (1976), with the modes of the VMS lock manager.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let locks = polylock_core::Locks::new(polylock_core::memory::connect());
    /// let order = locks.tree("db/orders/42").acquire().await?;
    /// assert!(locks.tree("db/customers/7").try_acquire().await?.is_some());
    /// assert!(locks.tree("db/orders").shared().try_acquire().await?.is_none());
    /// order.release().await?;
    /// # Ok::<(), polylock_core::Error>(()) }).unwrap();
    /// ```
    pub fn tree(&self, path: impl AsRef<str>) -> MultiLock {
        MultiLock::of_path(self.handle.clone(), self.lock(""), path.as_ref())
    }

    /// Returns the semaphore `name` with this number of slots, to be acquired. An invalid name or number is an error of the acquisition.
    ///
    /// It is independent of the lock with the same name. All users of one semaphore must pass the same number. See [`Semaphore`].
    pub fn semaphore(&self, name: impl AsRef<str>, slots: u32) -> Semaphore {
        Semaphore::new(self.handle.clone(), self.lock(""), name.as_ref(), slots)
    }

    /// Returns the job `name`, which runs once per period over all processes. See [`Once`]. An invalid name is an error of the run.
    pub fn once(&self, name: impl AsRef<str>) -> Once {
        Once::new(self.handle.clone(), self.lock(name.as_ref()), name.as_ref())
    }

    /// Returns the election `name`, in which one of all candidates leads at a time. See [`Election`]. An invalid name is an error of
    /// the campaign.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(self.handle.clone(), name.as_ref())
    }

    /// Renews a hold that belongs to no process, with its own TTL, and returns its guard: see [`HoldHandle`]. The guard renews and releases the
    /// lock as any other does.
    ///
    /// Two processes that adopt the same hold both hold the lock; the first release ends it for both, and so does a conversion. The guard has
    /// the mode and the token that the hold has in the store, which a conversion may have changed since the handle was made. A renewal never
    /// shortens the lease: if another process has extended it for longer, it stays.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if the hold has ended, or was broken; [`Error::Unsupported`](crate::Error::Unsupported) if the holds of the
    /// store end with their session; [`Error::InvalidTtl`](crate::Error::InvalidTtl); [`Error::Unavailable`](crate::Error::Unavailable) if the store was
    /// unreachable for longer than [`Options::outage`].
    ///
    /// # Cancel safety
    /// The future may be dropped at any point. The hold then has its lease, or is renewed once.
    pub async fn adopt(&self, hold: &HoldHandle) -> Result<Guard> {
        self.adopt_for(hold, hold.ttl()).await
    }

    /// The same as [`adopt`](Self::adopt), with another TTL.
    ///
    /// # Errors
    /// The same.
    ///
    /// # Cancel safety
    /// The same.
    pub async fn adopt_for(&self, hold: &HoldHandle, ttl: Duration) -> Result<Guard> {
        let request = hold.request(ttl);
        let can = self.capabilities();
        if !can.ttl.contains(&ttl) {
            let (min, max) = (*can.ttl.start(), *can.ttl.end());
            return Err(Error::InvalidTtl { backend: can.backend, ttl, min, max });
        }
        let terms = HoldTerms::new(hold.fencing_token(), hold.mode());
        engine::adopt(self.handle.clone(), request, terms).await.map(Guard::new)
    }

    /// Releases a hold that belongs to no process: see [`HoldHandle`]. A hold that was [broken](Self::break_lock), or that ends at a
    /// [later time](crate::Guard::release_after), is released, too. Guards of it in other processes lose it at their next renewal.
    ///
    /// # Errors
    /// [`Error::Lost`](crate::Error::Lost) if the hold has ended before; [`Error::Unsupported`](crate::Error::Unsupported) if the holds of the store
    /// end with their session; [`Error::Unavailable`](crate::Error::Unavailable) if the store has not confirmed it within
    /// [`Options::outage`].
    ///
    /// # Cancel safety
    /// Once polled, the release continues if the future is dropped.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let locks = polylock_core::Locks::new(polylock_core::memory::connect());
    /// let handle = locks.lock("gpu").ttl(Duration::from_secs(2 * 3600)).acquire().await?.into_handle().await?;
    /// locks.release(&handle).await?;
    /// assert!(locks.inspect("gpu").await?.is_free());
    /// # Ok::<(), polylock_core::Error>(()) }).unwrap();
    /// ```
    pub async fn release(&self, hold: &HoldHandle) -> Result<()> {
        engine::release(self.handle.clone(), hold.request(hold.ttl())).await
    }

    /// Returns the capabilities of the store.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        self.handle.context.store.backend.capabilities()
    }

    /// Returns the default options of the locks.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.handle.context.options
    }

    /// Returns the holders and waiters of the lock `name`, which may be that of a [slot](LockName::of_slot).
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the store can't be inspected;
    /// [`Error::InvalidName`](crate::Error::InvalidName); [`Error::Unavailable`](crate::Error::Unavailable).
    ///
    /// # Cancel safety
    /// The future may be dropped at any point.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<LockStatus> {
        let name = LockName::from_store(name)?;
        self.handle.inspect(Operation::Inspect, |store| async move { store.inspect(&name).await }).await
    }

    /// Returns the holders and waiters of the semaphore `name`.
    ///
    /// # Errors
    /// The same as [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    /// The future may be dropped at any point.
    pub async fn inspect_semaphore(&self, name: impl AsRef<str>) -> Result<SemaphoreStatus> {
        semaphore::inspect(&self.handle, LockName::new(name)?).await
    }

    /// Returns the status of every lock in use with a name that starts with `prefix`, sorted by name.
    ///
    /// # Errors
    /// The same as [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    /// The future may be dropped at any point.
    pub async fn list(&self, prefix: impl AsRef<str>) -> Result<Vec<LockStatus>> {
        let prefix = prefix.as_ref().to_owned();
        self.handle.inspect(Operation::Inspect, |store| async move { store.list(&prefix).await }).await
    }

    /// Watches all locks with names that start with `prefix`: grants, waits, losses and breaks. See [`Watch`].
    ///
    /// # Errors
    /// The same as [`inspect`](Self::inspect), if the first read fails.
    ///
    /// # Cancel safety
    /// The future may be dropped at any point.
    pub async fn watch(&self, prefix: impl AsRef<str>) -> Result<Watch> {
        Watch::open(self.handle.clone(), Target::Prefix(prefix.as_ref().to_owned())).await
    }

    /// Watches the lock `name`. See [`Watch`].
    ///
    /// # Errors
    /// The same as [`inspect`](Self::inspect), if the first read fails.
    ///
    /// # Cancel safety
    /// The future may be dropped at any point.
    pub async fn watch_lock(&self, name: impl AsRef<str>) -> Result<Watch> {
        Watch::open(self.handle.clone(), Target::Lock(LockName::new(name)?)).await
    }

    /// Breaks the lock `name`: notifies its holders, which stop and release, or removes their holds with
    /// [`force`](BreakLock::force). The lock may be that of a [slot](LockName::of_slot). See [`BreakLock`] for errors and an example.
    pub fn break_lock(&self, name: impl AsRef<str>) -> BreakLock {
        BreakLock::new(self.handle.clone(), name.as_ref())
    }

    /// Carries `operation` out on the store itself, to its end, even if the returned future is dropped. This is for programs that offer
    /// the store to others, as a lock service does: it takes no lock, and it works after a [`shutdown`](Self::shutdown).
    ///
    /// `operation` must be idempotent, as the claim and the release of a request are. It is called again if its first attempt is slow,
    /// is dropped, or fails on a connection of the caller's runtime (see [`Backend::here`]); the first attempt may have been carried out.
    ///
    /// # Errors
    /// Those of `operation`; [`Error::Unavailable`](crate::Error::Unavailable) in a child process made by `fork`, or if `operation`
    /// panics.
    ///
    /// # Cancel safety
    /// Once polled, the operation continues in the background if the future is dropped. The end of the process does not wait for it.
    ///
    /// ```
    /// use polylock_core::{ClaimOutcome, LockName, Mode, Operation, Request};
    /// use std::{sync::Arc, time::Duration};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let locks = polylock_core::Locks::new(polylock_core::memory::connect());
    /// let ttl = Duration::from_secs(30);
    /// let request = Arc::new(Request::new(LockName::new("orders/42")?, Mode::Exclusive, ttl));
    /// let claimed = request.clone();
    /// let claim = locks.on_store(Operation::Claim, move |store| {
    ///     let request = claimed.clone();
    ///     async move { store.claim(&request).await }
    /// });
    /// assert!(matches!(claim.await?, ClaimOutcome::Granted(_)));
    /// # Ok::<(), polylock_core::Error>(()) }).unwrap();
    /// ```
    pub async fn on_store<T, F>(
        &self,
        kind: Operation,
        operation: impl Fn(Arc<dyn Backend>) -> F + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.handle.on_store(kind, operation).await
    }

    /// Waits until all background work, above all releases, is done, logged and measured. Returns `false` if `within` expired
    /// first.
    ///
    /// It ends nothing: holds are renewed as long as their guards live, and acquisitions in other tasks continue to wait.
    /// [`shutdown`](Self::shutdown) ends them.
    ///
    /// # Cancel safety
    /// The future may be dropped at any point; the background work continues.
    pub async fn close(self, within: Duration) -> bool {
        let context = self.handle.context.clone();
        let closing = io::run(context.backend(), async move {
            let by = context.now() + within;
            let done = async {
                context.pending.drained().await;
                observer::flushed().await;
            };
            tokio::select! {
                biased;
                () = done => true,
                () = context.until(by) => false,
            }
        });
        closing.await.unwrap_or(false)
    }

    /// Shuts these locks and all their clones down, for example at the end of a program: refuses new acquisitions, ends those that wait,
    /// and releases all holds. Returns when the store has confirmed that, with the number of releases and the failed ones.
    ///
    /// A guard that exists is [lost](crate::Guard::lost) with [`LostReason::ShutDown`](crate::LostReason::ShutDown) before its release
    /// is sent, so work under [`Guard::run`](crate::Guard::run) is dropped. Work that only checks its guard from time to time may
    /// continue until the next check, while another process has the lock: end it before the shutdown if it must not.
    ///
    /// An acquisition that waits, and every later one, returns [`Error::ShutDown`](crate::Error::ShutDown). Inspection, watches and breaks
    /// still work. A second call waits for the same shutdown, and returns the same report. If the store does not reply, this
    /// returns when the leases have expired.
    ///
    /// # Errors
    /// [`Error::Unavailable`](crate::Error::Unavailable) in a child process made by `fork`, which holds none of its parent's locks, or if the
    /// shutdown itself has failed.
    ///
    /// # Cancel safety
    /// Once polled, the shutdown continues in the background if the future is dropped.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let locks = polylock_core::Locks::new(polylock_core::memory::connect());
    /// let guard = locks.lock("orders/42").acquire().await?;
    /// let report = locks.shutdown().await?;
    /// assert!(report.released == 1 && report.is_complete());
    /// assert!(!guard.is_held());
    /// assert!(matches!(locks.lock("orders/42").acquire().await, Err(polylock_core::Error::ShutDown)));
    /// # Ok::<(), polylock_core::Error>(()) }).unwrap();
    /// ```
    pub async fn shutdown(&self) -> Result<ShutdownReport> {
        engine::shut_down(&self.handle.keeper).await
    }
}

/// A builder for [`Locks`].
#[derive(Debug)]
#[must_use = "nothing is set up until `build`"]
pub struct LocksBuilder {
    store: Store,
    options: Options,
    owner: Option<OwnerId>,
    label: Option<Label>,
    clock: Option<Arc<dyn Clock>>,
    metrics: Option<Arc<dyn Metrics>>,
    holds_outlive_process: bool,
}

impl LocksBuilder {
    /// Sets the default options of the locks.
    pub const fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Sets the default owner of the locks, which [`Lock::owner`] replaces; `host:pid` if it is not set.
    pub fn owner(mut self, owner: &OwnerId) -> Self {
        self.owner = Some(owner.clone());
        self
    }

    /// Sets the default label of the locks, which [`Lock::label`] replaces.
    pub fn label(mut self, label: Label) -> Self {
        self.label = Some(label);
        self
    }

    /// Keeps the holds until the end of their leases if this process ends, on every store: for a server that holds locks for its clients. By
    /// default, a store that [frees the locks of dead holders](crate::Capabilities::frees_dead_holders) may grant them at once.
    ///
    /// A lock that is lost here stays taken for its lease, too, until it is [released](Guard::release):
    /// 1. This server stops for longer than the lease.
    /// 2. Its client renews the hold, by its [id](crate::HoldHandle::id), on another server.
    /// 3. This server continues, and finds that its deadline has passed. A release would let another holder in.
    pub const fn holds_outlive_process(mut self) -> Self {
        self.holds_outlive_process = true;
        self
    }

    /// Sets the clock of the deadlines, for tests. The default is the machine's clock, which counts suspend.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets the receiver of the measurements.
    pub fn metrics(mut self, metrics: Arc<dyn Metrics>) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// Builds the locks.
    #[must_use]
    pub fn build(self) -> Locks {
        let claims_at_once = self.store.backend.capabilities().claims_at_once.max(1);
        let context = StoreContext {
            store: self.store,
            options: self.options,
            owner: self.owner,
            label: self.label,
            is_system_clock: self.clock.is_none(),
            clock: self.clock.unwrap_or_else(|| Arc::new(SystemClock)),
            metrics: self.metrics,
            holds_outlive_process: self.holds_outlive_process,
            gauges: Default::default(),
            pending: Pending::for_new_store(),
            io: Default::default(),
            local_queues: Default::default(),
            lifecycle: Default::default(),
            claims: Arc::new(tokio::sync::Semaphore::new(claims_at_once)),
            last_look: Default::default(),
            replies: AtomicU64::default(),
            was_accepted: AtomicBool::default(),
            holds: AtomicU64::default(),
        };
        Locks { handle: Arc::new(StoreHandle::new(Arc::new(context))) }
    }
}
