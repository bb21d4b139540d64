//! The context of a case: a target, connections to it, and common checks.

mod raw;
mod waiting;

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    thread,
    time::Duration,
};

use polylock_core::{
    Backend, Capabilities, Clock, Guard, Inspect, LockStatus, Locks, Mode, Options, Order, Park, Result,
    Store, SystemClock,
};

pub use self::waiting::set_timeout;
use self::{raw::on_io, waiting::pause};
pub(crate) use self::{
    raw::{Raw, lock_name},
    waiting::{SOON, pass, soon, timeout, until, within},
};
use crate::{
    ManualClock, OwnServer, Target,
    faults::{self, Recording},
};

/// The reason why a case can't be run.
#[derive(Debug)]
pub(crate) struct Unsupported(pub(crate) String);

/// The outcome of a case. A broken promise is a panic.
pub(crate) type Outcome = Result<(), Unsupported>;

type Wrapper = Arc<dyn Fn(Arc<dyn Backend>) -> Arc<dyn Backend> + Send + Sync>;

/// One case's view of its target.
#[derive(Clone)]
pub(crate) struct Trial {
    target: Arc<dyn Target>,
    pub(crate) bare: Store,
    wrapper: Option<Wrapper>,
}

impl Trial {
    pub(crate) async fn new(target: Arc<dyn Target>) -> Self {
        let bare = connect(&target).await;
        Self { target, bare, wrapper: None }
    }

    /// Returns a trial of the same target with every further connection behind a fault.
    pub(crate) fn behind<B: Backend>(
        &self,
        wrapper: impl Fn(Arc<dyn Backend>) -> B + Send + Sync + 'static,
    ) -> Self {
        let wrapper: Wrapper = Arc::new(move |inner| Arc::new(wrapper(inner)));
        Self { wrapper: Some(wrapper), ..self.clone() }
    }

    pub(crate) fn capabilities(&self) -> &Capabilities {
        self.bare.backend.capabilities()
    }

    /// Returns the number of claimants if `count` requests for one lock wait in one process: only the first claims if the store keeps no
    /// queue.
    pub(crate) fn in_queue(&self, count: usize) -> usize {
        if self.capabilities().order == Order::Fifo { count } else { count.min(1) }
    }

    /// The modes that the store grants, weakest first.
    pub(crate) fn modes(&self) -> impl Iterator<Item = Mode> + Clone {
        let modes = self.capabilities().modes;
        Mode::ALL.into_iter().filter(move |mode| modes.contains(*mode))
    }

    /// Opens a new connection.
    pub(crate) async fn store(&self) -> Store {
        let store = connect(&self.target).await;
        match &self.wrapper {
            Some(wrapper) => Store { backend: wrapper(store.backend), ..store },
            None => store,
        }
    }

    /// Deletes everything that the store keeps. Returns false if the target can't do that.
    pub(crate) async fn empty(&self) -> bool {
        let target = self.target.clone();
        self.on_io(async move { target.empty().await }).await
    }

    /// Returns a trial of a target on a server of its own, if there is one.
    pub(crate) async fn on_own_server(&self) -> Option<(Self, Arc<dyn OwnServer>)> {
        let own = self.target.on_own_server().await;
        let own = own.unwrap_or_else(|error| panic!("can't start the server: {}", error.chain()))?;
        Some((Self::new(own.clone()).await, own))
    }

    /// Returns locks on a new connection, with a long lease.
    pub(crate) async fn locks(&self) -> Locks {
        self.open(self.store().await)
    }

    /// Returns locks on `store`, with a long lease.
    pub(crate) fn open(&self, store: Store) -> Locks {
        Locks::builder(store).options(self.options(self.long())).build()
    }

    /// Returns locks on `store` with deadlines by `clock`.
    pub(crate) fn open_by(&self, store: Store, clock: &ManualClock) -> Locks {
        Locks::builder(store).options(self.options(self.long())).clock(Arc::new(clock.clone())).build()
    }

    /// Returns locks on a new connection, and a recording of their requests to the store.
    pub(crate) async fn recorded(&self) -> (Locks, Arc<Recording>) {
        let (store, recording) = watched(self.store().await, Recording::new);
        (self.open(store), recording)
    }

    /// Returns the default options with this lease.
    pub(crate) fn options(&self, ttl: Duration) -> Options {
        let mut options = Options::default();
        options.ttl = ttl;
        options
    }

    /// Returns a lease that does not run out during a case, so that it can't hide a leak.
    pub(crate) fn long(&self) -> Duration {
        self.within_range(Duration::from_secs(60))
    }

    /// Returns a lease for cases that wait until it runs out.
    pub(crate) fn short(&self) -> Duration {
        self.within_range(self.target.short_ttl(self.capabilities()))
    }

    /// Returns a lease that is short, but long enough for timely renewals on a busy machine.
    pub(crate) fn renewable(&self) -> Duration {
        self.within_range(self.short().max(Duration::from_millis(2400)))
    }

    fn within_range(&self, ttl: Duration) -> Duration {
        ttl.clamp(*self.capabilities().ttl.start(), *self.capabilities().ttl.end())
    }

    pub(crate) fn secrets(&self) -> Vec<String> {
        self.target.secrets()
    }

    /// Opens a connection for calls without core.
    pub(crate) async fn raw(&self) -> Raw {
        Raw(self.store().await.backend)
    }

    /// Returns the existing connection for calls without core, without faults.
    pub(crate) fn bare(&self) -> Raw {
        Raw(self.bare.backend.clone())
    }

    /// Runs `future` on the I/O thread of the store; its error fails the case.
    pub(crate) async fn on_io<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> T {
        on_io(self.capabilities().backend, future).await
    }

    /// Returns true if the store carries out the messages of a request in an order that a late copy does not change. Azure Blob Storage has none.
    pub(crate) fn orders_messages(&self) -> bool {
        self.capabilities().backend != "az"
    }

    pub(crate) fn park(&self) -> Arc<dyn Park> {
        self.bare.park.clone().unwrap_or_else(|| panic!("a case that parks holds must need Park"))
    }

    pub(crate) fn inspect(&self) -> Arc<dyn Inspect> {
        self.bare
            .inspect
            .clone()
            .unwrap_or_else(|| panic!("a case that inspects the store must need Inspect"))
    }

    /// Returns the holders and waiters of `name`.
    pub(crate) async fn status(&self, name: &str) -> LockStatus {
        let (inspect, name) = (self.inspect(), lock_name(name));
        self.on_io(async move { inspect.inspect(&name).await }).await
    }

    /// Returns the number of entries in the store; `None` if neither the target nor the store can count them.
    pub(crate) async fn count(&self) -> Option<u64> {
        let (target, inspect) = (self.target.clone(), self.bare.inspect.clone());
        let counted = async move || -> Result<Option<u64>> {
            if let Some(count) = target.leftovers().await? {
                return Ok(Some(count));
            }
            let Some(inspect) = &inspect else { return Ok(None) };
            let entries = |status: LockStatus| (status.holders.len() + status.waiters.len()) as u64;
            Ok(Some(inspect.list("").await?.into_iter().map(entries).sum()))
        };
        self.on_io(async move {
            let limit = SystemClock.now() + SOON;
            loop {
                match counted().await {
                    // A server on a busy machine may be late. What is counted does not change by that.
                    Err(error) if error.is_temporary() && SystemClock.now() < limit => pause().await,
                    outcome => return outcome,
                }
            }
        })
        .await
    }

    /// Waits until the store keeps `count` entries, for less time than a lease takes to run out. Skipped if entries can't be counted.
    pub(crate) async fn assert_entries(&self, count: u64, what: &str) {
        let mut found = None;
        let limit = SystemClock.now() + SOON;
        while SystemClock.now() < limit {
            found = self.count().await;
            if found.is_none_or(|found| found == count) {
                return;
            }
            pause().await;
        }
        let shown = self.bare.inspect.clone().map(|inspect| async move { inspect.list("").await });
        let shown = match shown {
            Some(list) => self.on_io(list).await,
            None => Vec::new(),
        };
        let target = self.target.clone();
        let text = on_io("testkit", async move { Ok(target.leftovers_text().await) }).await;
        panic!(
            "{what}: expected {count} entries in the store, found {} after {SOON:?}{}; inspection shows {shown:?}",
            found.unwrap_or_default(),
            text.map_or_else(String::new, |text| format!(" ({text})")),
        );
    }

    /// Waits until the store is empty, for less time than a lease takes to run out, and checks that each of `names` is free.
    pub(crate) async fn assert_empty(&self, names: &[&str], what: &str) {
        self.assert_entries(0, what).await;
        let raw = self.bare();
        for name in names {
            raw.assert_free(name, what).await;
        }
    }
}

async fn connect(target: &Arc<dyn Target>) -> Store {
    let target = target.clone();
    on_io("testkit", async move { target.connect().await }).await
}

/// Returns `store` behind a fault, and the handle of the fault.
pub(crate) fn watched<B: Backend>(
    store: Store,
    fault: impl FnOnce(Arc<dyn Backend>) -> B,
) -> (Store, Arc<B>) {
    let mut handle = None;
    let store = faults::wrap(store, |inner| handle.insert(Arc::new(fault(inner))).clone());
    let handle = handle.unwrap_or_else(|| unreachable!("`wrap` calls its wrapper once"));
    (store, handle)
}

/// Acquires a lock, which must succeed within [`timeout`].
pub(crate) async fn acquired(lock: polylock_core::Lock) -> Guard {
    soon("acquire", lock.acquire()).await.unwrap_or_else(|error| panic!("acquire: {}", error.chain()))
}

/// Acquires a lock while `clock` runs, so that a claim is retried that has failed on a busy machine.
pub(crate) async fn acquired_by(clock: &ManualClock, lock: polylock_core::Lock) -> Guard {
    while_running(clock, acquired(lock)).await
}

/// Awaits `future` while `clock` runs, so that an operation is retried that has failed on a busy machine.
pub(crate) async fn while_running<T>(clock: &ManualClock, future: impl Future<Output = T>) -> T {
    const STEP: Duration = Duration::from_millis(20);
    let mut future = pin!(future);
    loop {
        tokio::select! {
            biased;
            output = &mut future => return output,
            () = pass(STEP) => clock.advance(STEP),
        }
    }
}

/// Releases a lock that a busy machine may lose first, because its lease is short.
pub(crate) async fn released_or_lost(guard: Guard) {
    if let Err(error) = soon("release", guard.release()).await {
        assert!(error.is_temporary() || error.lost().is_some(), "release: {}", error.chain());
    }
}

/// Releases a lock, which must succeed within [`timeout`].
pub(crate) async fn released(guard: Guard) {
    soon("release", guard.release()).await.unwrap_or_else(|error| panic!("release: {}", error.chain()));
}

/// Tries once, which must not fail.
pub(crate) async fn tried(lock: polylock_core::Lock) -> Option<Guard> {
    soon("try_acquire", lock.try_acquire())
        .await
        .unwrap_or_else(|error| panic!("try_acquire: {}", error.chain()))
}

/// Awaits a task, which must not panic.
pub(crate) async fn join<T>(task: tokio::task::JoinHandle<T>) -> T {
    match within(scaled(timeout()), "a task of the case", task).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Runs `work` on a thread without a runtime.
pub(crate) async fn outside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = thread::spawn(work);
    let joined = tokio::task::spawn_blocking(move || thread.join());
    match within(timeout() * 2, "a thread of the case", joined).await {
        Ok(Ok(value)) => value,
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// The point at which a future is dropped.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CancelAt {
    /// Right after its poll number `n` (0: before the first).
    AfterPoll(usize),
    /// After it has been woken following that poll, and before it is polled again.
    AfterWake(usize),
}

/// Polls `future` until it is ready or the point is reached; then drops it.
pub(crate) async fn cancel_at<F: Future>(future: F, point: CancelAt) -> Option<F::Output> {
    let mut future = pin!(future);
    let (limit, on_wake) = match point {
        CancelAt::AfterPoll(polls) => (polls, false),
        CancelAt::AfterWake(polls) => (polls, true),
    };
    let mut polls = 0;
    poll_fn(|context| {
        if polls == limit {
            return Poll::Ready(None);
        }
        polls += 1;
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        if polls == limit && !on_wake { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}

/// Returns a time limit for operations that take longer in longer cases.
pub(crate) fn scaled(limit: Duration) -> Duration {
    limit.saturating_mul(u32::try_from(scale()).unwrap_or(u32::MAX))
}

/// Returns the factor by which the long cases are repeated: `POLYLOCK_TESTKIT_SCALE`, 1 by default.
pub(crate) fn scale() -> usize {
    std::env::var("POLYLOCK_TESTKIT_SCALE").ok().and_then(|scale| scale.parse().ok()).unwrap_or(1)
}
