//! An implementation of [`polylock_core::backend`] over a [`Dialect`]: interprets the replies to claims, schedules sweeps, registers the
//! waiters of this process, and sets the time after which they claim again.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    Backend, Capabilities, ClaimOutcome, FencingToken, Grant, KeepAlive, LostReason, Park, PerRuntime,
    QueuePosition, RaiseToken, Release, Request, Result, Store, Wake, wakeups::Wakeups,
};

use super::{
    background::Background,
    dialect::{Dialect, SWEEP_EVERY},
    poller::{PolledStore, StoreContext},
    rows::{ClaimRow, EntryState},
};

/// The store over a dialect.
pub(crate) struct LeaseBackend<D> {
    pub(super) inner: Arc<PolledStore<D>>,
    sweeps: Arc<Sweeps>,
    /// The same store on connections of the callers' runtimes.
    callers: PerRuntime<Self>,
}

/// The sweeps of a store.
#[derive(Debug)]
struct Sweeps {
    claims: AtomicU32,
    log: Background,
}

impl<D: Dialect> fmt::Debug for LeaseBackend<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.dialect.fmt(f)
    }
}

impl<D: Dialect> LeaseBackend<D> {
    fn new(dialect: D, context: Arc<StoreContext>, sweeps: Arc<Sweeps>) -> Self {
        Self { inner: Arc::new(PolledStore { dialect, context }), sweeps, callers: PerRuntime::default() }
    }

    /// Opens the store over `dialect`, and sweeps the first section of the tables.
    pub(crate) async fn open(dialect: D) -> Store {
        let sweeps =
            Sweeps { claims: AtomicU32::new(0), log: Background::new("could not delete expired locks") };
        let engine = Self::new(dialect, Arc::default(), Arc::new(sweeps));
        engine.sweep().await;
        let alerts = engine.inner.dialect.alerts().cloned();
        let engine = Arc::new(engine);
        let store = Store::inspectable(engine.clone())
            .raising(engine.clone())
            .recording(engine.clone())
            .converting(engine.clone())
            .parking(engine);
        match alerts {
            Some(alerts) => store.alerting(alerts),
            None => store,
        }
    }

    pub(super) fn wakeups(&self) -> &Arc<Wakeups> {
        &self.inner.context.wakeups
    }

    /// Deletes expired rows from the next section of the tables, if that is possible now.
    async fn sweep(&self) {
        match self.inner.dialect.sweep().await {
            Ok(()) => self.sweeps.log.succeeded(),
            // The next sweep makes up for a failed one, and the claim does not depend on it.
            Err(failure) => self.sweeps.log.failed(&failure),
        }
    }
}

#[async_trait]
impl<D: Dialect> Backend for LeaseBackend<D> {
    fn capabilities(&self) -> &Capabilities {
        self.inner.dialect.capabilities()
    }

    fn here(&self) -> Option<Arc<dyn Backend>> {
        let opening = self.inner.dialect.for_caller()?;
        let (context, sweeps) = (self.inner.context.clone(), self.sweeps.clone());
        let caller = self.callers.get(
            |caller: &Self| caller.inner.dialect.is_open(),
            || async { Ok(Self::new(opening.await?, context, sweeps)) },
        )?;
        // Otherwise the I/O thread uses the connections, and executes the operation.
        caller.inner.dialect.has_connection().then_some(caller as _)
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        if self.sweeps.claims.fetch_add(1, Ordering::Relaxed) % SWEEP_EVERY == SWEEP_EVERY - 1 {
            self.sweep().await;
        }
        let waiter = self.wakeups().register(request);
        let position = match self.inner.dialect.claim(request, &waiter, self.wakeups()).await? {
            ClaimRow::Held(token, lease) => {
                waiter.granted();
                return Ok(ClaimOutcome::Granted(Grant::new(token, lease)));
            }
            // At most a third of its TTL, so that the queue entry is refreshed before it expires.
            ClaimRow::Blocked { left, ahead } => {
                QueuePosition::new(ahead, left.min(request.queue_lease() / 3))
            }
            ClaimRow::Free => QueuePosition::new(None, Duration::from_millis(1)),
        };
        let is_late = self.inner.dialect.late_until(request.id).is_some();
        Ok(ClaimOutcome::Queued(position.number(waiter.position()).may_be_granted_late(is_late)))
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        self.inner.ensure_poller_running();
        Ok(self.wakeups().notified(request.id).await)
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        let dialect = &self.inner.dialect;
        let states = if requests.is_empty() { Vec::new() } else { dialect.keep_alive(requests).await? };
        let mut outcomes = Vec::with_capacity(states.len());
        for (request, state) in requests.iter().zip(states) {
            outcomes.push(match state {
                EntryState::Held(lease, terms) => KeepAlive::Held { lease, terms: Some(terms) },
                EntryState::Queued => KeepAlive::Queued,
                EntryState::Gone => {
                    // A waiter without an entry joins the queue again at its end, and those behind it wait for another request.
                    self.wakeups().notify(request.id);
                    KeepAlive::Lost(LostReason::Gone)
                }
                EntryState::Broken => dialect.loss(request).await.map_or(KeepAlive::Unknown, KeepAlive::Lost),
                EntryState::Contested => KeepAlive::Unknown,
            });
        }
        Ok(outcomes)
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        self.wakeups().remove(request.id);
        self.inner.dialect.release(request, self.wakeups()).await
    }

    fn drop_waiter(&self, request: &Request) {
        self.wakeups().remove(request.id);
    }

    fn request_records(&self) -> Option<usize> {
        Some(self.inner.dialect.request_records())
    }
}

#[async_trait]
impl<D: Dialect> Park for LeaseBackend<D> {
    async fn park(&self, request: &Request, token: FencingToken, left: Duration) -> Result<Release> {
        self.inner.dialect.park(request, token, left).await
    }
}

#[async_trait]
impl<D: Dialect> RaiseToken for LeaseBackend<D> {
    async fn raise(&self, request: &Request, to: FencingToken) -> Result<FencingToken> {
        self.inner.dialect.raise(&request.name, to).await
    }
}
