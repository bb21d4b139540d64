//! The part of the stores that all databases share: an implementation of [`polylock_core::backend`] over a [`Dialect`].
//!
//! A dialect owns the statements and the connections. The engine interprets the replies to claims, schedules sweeps, registers the waiters
//! of this process, and sets the time after which they claim again.

pub(crate) mod background;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod config;
pub(crate) mod gate;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod late;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod limit;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod literal;
mod poller;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod pool;
pub(crate) mod rows;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod source;
pub(crate) mod table;
pub(crate) mod version;

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    Backend, BreakOrder, Capabilities, ClaimOutcome, Clock, Entry, Grant, HoldAlerts, Inspect, KeepAlive,
    LockName, LockStatus, LostReason, Mode, Moment, PerRuntime, QueuePosition, Release, Request, RequestId,
    Result, Store, SystemClock, Wake, wakeups::Wakeups,
};

use background::Background;
use poller::Poller;
pub(crate) use poller::{PollInterval, PollOutcome};
pub(crate) use rows::{ClaimRow, EntryState};

/// The shortest TTL: far above the step of a database's clock and the margin of the deadline.
pub(crate) const MIN_TTL: Duration = Duration::from_millis(100);
/// The longest TTL: waiters wait this long for a holder that died.
pub(crate) const MAX_TTL: Duration = Duration::from_secs(24 * 3600);

/// The number of claims from one sweep to the next.
pub(crate) const SWEEP_EVERY: u32 = 256;
/// The number of rows of each table that one sweep examines: more than were added since the last one, so that the sweep reaches every row.
pub(crate) const SWEEP_ROWS: i64 = 1024;

/// The maximum number of rows of each table that one statement of a list returns, except for a lock with more entries.
pub(crate) const LIST_ROWS: i64 = 1000;

/// The operations that each database implements in its own way. Every operation is atomic, idempotent by the request's id and ends in
/// bounded time, as [`Backend`] requires.
#[async_trait]
pub(crate) trait Dialect: fmt::Debug + Send + Sync + 'static {
    fn capabilities(&self) -> &Capabilities;

    /// Returns a future that opens the same dialect on connections of the runtime that polls it, for claims and releases that the callers
    /// on that runtime drive; `None` if that saves nothing.
    fn for_caller(&self) -> Option<Pin<Box<dyn Future<Output = Result<Self>> + Send>>>
    where
        Self: Sized;

    /// Returns true if a connection for one more operation is idle or may be opened, for a dialect [of a caller](Self::for_caller).
    fn has_connection(&self) -> bool {
        true
    }

    /// Returns the range of the pauses between [rounds](Self::poll).
    fn poll_interval(&self) -> PollInterval;

    /// Returns a future that wakes waiters whenever another process reports that it is their turn, and never ends. It may be dropped at any
    /// time, and keeps no store alive.
    fn receive_notifications(&self, wakeups: &Arc<Wakeups>) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// Takes the lock if it is the request's turn. Otherwise, if the request queues, it joins the queue or refreshes its queue entry, and
    /// registers in the `wakeups` the request that it waits for, in the order that [`Wakeups`] requires.
    async fn claim(&self, request: &Request, wakeups: &Arc<Wakeups>) -> Result<ClaimRow>;

    /// Returns the time until which an earlier copy of a claim of `request` may be executed; `None` if none can be.
    fn late_until(&self, request: RequestId) -> Option<Moment>;

    /// Returns the number of records about requests, for [`Backend::request_records`].
    fn request_records(&self) -> usize;

    /// Extends the live holds among `requests`, unless they were marked as broken, and the live queue entries. Returns one state for each
    /// request, in their order; `requests` is not empty.
    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<EntryState>>;

    /// Returns the reason for the loss of a hold: the break that left a notice, or [`LostReason::Gone`] without one.
    async fn loss(&self, request: &Request) -> Result<LostReason>;

    /// Releases the hold or withdraws the queue entry, and wakes the waiters of this process that wait for the request.
    async fn release(&self, request: &Request, wakeups: &Wakeups) -> Result<Release>;

    /// Checks, while there are waiters, for requests of other processes that have left, and wakes their waiters. `waiter_added` is true
    /// if a waiter was added since the last round.
    async fn poll(&self, wakeups: &Arc<Wakeups>, waiter_added: bool) -> Result<PollOutcome>;

    /// Returns the holders of `name` and its waiters, live entries only.
    async fn lock(&self, name: &[u8]) -> Result<Vec<LockStatus>>;

    /// Returns the locks with names from `first` to before `end`, by name: from the first [`LIST_ROWS`] live entries of each table.
    async fn page(&self, first: &[u8], end: &[u8]) -> Result<rows::Page>;

    /// Marks the holds of `name`, or removes them and wakes waiters. Returns the entries of its holders.
    async fn break_lock(&self, name: &LockName, order: &BreakOrder, wakeups: &Wakeups) -> Result<Vec<Entry>>;

    /// Deletes expired rows from the next section of the tables.
    async fn sweep(&self) -> Result<()>;

    /// Returns the alerts to notify of a broken lock, if the database pushes breaks to the holders' processes.
    fn alerts(&self) -> Option<&Arc<HoldAlerts>>;
}

/// Returns the range of the names that begin with `prefix`: from the first to before the second, as bytes.
pub(crate) fn range(prefix: &str) -> (Vec<u8>, Vec<u8>) {
    // UTF-8 never contains the byte FF, so incrementing the last byte gives the end of the range.
    let mut end = prefix.as_bytes().to_vec();
    match end.last_mut() {
        Some(last) => *last += 1,
        None => end.push(0xff),
    }
    (prefix.as_bytes().to_vec(), end)
}

/// The locks that a statement of the pessimistic strategy returns: all at once, because each of them occupies a connection.
#[cfg(any(feature = "postgres", feature = "mysql"))]
#[derive(Debug, Clone, Copy)]
pub(crate) enum LockFilter<'a> {
    Name(&'a LockName),
    /// The locks with names that begin with this prefix.
    Prefix(&'a str),
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
impl LockFilter<'_> {
    /// Returns true if an entry that can't be shown is an error; a list leaves it out instead.
    pub(crate) const fn is_strict(self) -> bool {
        matches!(self, Self::Name(_))
    }

    /// Returns the range of the names, from the first to before the second, as bytes; the second is `None` for a single name.
    pub(crate) fn range(self) -> (Vec<u8>, Option<Vec<u8>>) {
        match self {
            Self::Name(name) => (bytes(name).to_vec(), None),
            Self::Prefix(prefix) => {
                let (first, end) = range(prefix);
                (first, Some(end))
            }
        }
    }
}

/// Returns the name as the tables store it.
pub(crate) fn bytes(name: &LockName) -> &[u8] {
    name.as_str().as_bytes()
}

/// Returns the label as the tables store it.
pub(crate) fn label(request: &Request) -> &str {
    request.label.as_ref().map_or("", |label| label.as_str())
}

/// Returns pairs of name and request, as the tables store them: the requests that the waiters of this process wait for ([`Wakeups::watched`]),
/// or the waiters themselves ([`Wakeups::waiting`]).
#[cfg(feature = "postgres")]
pub(crate) fn pairs(names: std::collections::HashMap<LockName, Vec<RequestId>>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut pairs = Vec::new();
    for (name, requests) in names {
        pairs.extend(requests.iter().map(|request| (bytes(&name).to_vec(), request.to_bytes().to_vec())));
    }
    pairs
}

/// Packs the requests of a keep-alive for its routine. Each one consists of one byte for the length of its name, the name, its id, a byte
/// that is 1 if it is exclusive, its TTL and the TTL of its queue entry in us, in eight bytes each, the most significant first.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn packed(requests: &[Arc<Request>]) -> Vec<u8> {
    let mut packed = Vec::with_capacity(requests.len() * 64);
    for request in requests {
        let name = bytes(&request.name);
        packed.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
        packed.extend(name);
        packed.extend(request.id.to_bytes());
        packed.push(u8::from(request.mode == Mode::Exclusive));
        packed.extend(rows::micros(request.ttl).to_be_bytes());
        packed.extend(rows::micros(request.queue_lease()).to_be_bytes());
    }
    packed
}

/// Returns the break notice as the tables store it.
pub(crate) fn notice(order: &BreakOrder) -> String {
    order.notice.to_text()
}

/// Returns the part of a hold that is unique beside its name: nothing if the hold is exclusive, so that the unique index itself refuses a
/// second one; the request id otherwise.
pub(crate) fn slot(request: &Request) -> Vec<u8> {
    if request.mode == Mode::Exclusive { Vec::new() } else { request.id.to_bytes().to_vec() }
}

/// The store over a dialect.
pub(crate) struct Engine<D> {
    inner: Arc<Inner<D>>,
    /// The same store on connections of the callers' runtimes.
    callers: PerRuntime<Self>,
}

/// The part of the store that the poller uses.
pub(crate) struct Inner<D> {
    pub(crate) dialect: D,
    pub(crate) context: Arc<StoreContext>,
}

/// The state of a store that does not depend on its connections.
#[derive(Debug)]
pub(crate) struct StoreContext {
    pub(crate) wakeups: Arc<Wakeups>,
    claims: AtomicU32,
    poller: Poller,
    sweeps: Background,
}

impl<D: Dialect> fmt::Debug for Engine<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.dialect.fmt(f)
    }
}

impl<D: Dialect> Engine<D> {
    fn new(dialect: D, context: Arc<StoreContext>) -> Self {
        Self { inner: Arc::new(Inner { dialect, context }), callers: PerRuntime::default() }
    }

    /// Opens the store over `dialect`, and sweeps the first section of the tables.
    pub(crate) async fn open(dialect: D) -> Store {
        let (wakeups, claims, poller) = (Arc::default(), AtomicU32::new(0), Poller::default());
        let sweeps = Background::new("could not delete expired locks");
        let engine = Self::new(dialect, Arc::new(StoreContext { wakeups, claims, poller, sweeps }));
        engine.sweep().await;
        let alerts = engine.inner.dialect.alerts().cloned();
        let store = Store::inspectable(Arc::new(engine));
        match alerts {
            Some(alerts) => store.alerting(alerts),
            None => store,
        }
    }

    fn wakeups(&self) -> &Arc<Wakeups> {
        &self.inner.context.wakeups
    }

    /// Deletes expired rows from the next section of the tables, if that is possible now.
    async fn sweep(&self) {
        match self.inner.dialect.sweep().await {
            Ok(()) => self.inner.context.sweeps.succeeded(),
            // The next sweep makes up for a failed one, and the claim does not depend on it.
            Err(failure) => self.inner.context.sweeps.failed(&failure),
        }
    }
}

#[async_trait]
impl<D: Dialect> Backend for Engine<D> {
    fn capabilities(&self) -> &Capabilities {
        self.inner.dialect.capabilities()
    }

    fn here(&self) -> Option<Arc<dyn Backend>> {
        let opening = self.inner.dialect.for_caller()?;
        let context = self.inner.context.clone();
        let caller = self.callers.get(|_| true, || async { Ok(Self::new(opening.await?, context)) })?;
        // Otherwise the I/O thread uses the connections, and executes the operation.
        caller.inner.dialect.has_connection().then_some(caller as _)
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        if self.inner.context.claims.fetch_add(1, Ordering::Relaxed) % SWEEP_EVERY == SWEEP_EVERY - 1 {
            self.sweep().await;
        }
        Ok(match self.inner.dialect.claim(request, self.wakeups()).await? {
            ClaimRow::Held(token, lease) => {
                self.wakeups().remove(request.id);
                ClaimOutcome::Granted(Grant::new(token, lease))
            }
            ClaimRow::Blocked { left, ahead } => {
                // At most a third of its TTL, so that the queue entry is refreshed before it expires.
                let recheck = left.min(request.queue_lease() / 3);
                ClaimOutcome::Queued(QueuePosition::new(ahead, recheck))
            }
            ClaimRow::Free => ClaimOutcome::Queued(QueuePosition::new(None, Duration::from_millis(1))),
        })
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        self.inner.ensure_poller_running();
        let wake = self.wakeups().notified(request.id).await;
        if let Wake::Granted(_) = wake {
            self.wakeups().remove(request.id);
        }
        Ok(wake)
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        let dialect = &self.inner.dialect;
        let states = if requests.is_empty() { Vec::new() } else { dialect.keep_alive(requests).await? };
        let mut outcomes = Vec::with_capacity(states.len());
        for (request, state) in requests.iter().zip(states) {
            outcomes.push(match state {
                EntryState::Held => KeepAlive::Held { lease: request.ttl },
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
        let outcome = self.inner.dialect.release(request, self.wakeups()).await?;
        if let Some(until) = self.inner.dialect.late_until(request.id) {
            SystemClock.sleep_until(until).await;
            self.inner.dialect.release(request, self.wakeups()).await?;
        }
        Ok(outcome)
    }

    fn request_records(&self) -> Option<usize> {
        Some(self.inner.dialect.request_records())
    }
}

#[async_trait]
impl<D: Dialect> Inspect for Engine<D> {
    async fn inspect(&self, name: &LockName) -> Result<LockStatus> {
        let lock = self.inner.dialect.lock(bytes(name)).await?.into_iter().next();
        Ok(lock.unwrap_or_else(|| LockStatus::new(name.clone(), Vec::new(), Vec::new())))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockStatus>> {
        let (mut first, end) = range(prefix);
        let mut locks = Vec::new();
        loop {
            let page = self.inner.dialect.page(&first, &end).await?;
            locks.extend(page.locks);
            match page.next {
                rows::NextPage::End => return Ok(locks),
                rows::NextPage::From(name) => first = name,
                rows::NextPage::LongLock(name) => {
                    locks.extend(self.inner.dialect.lock(&name).await?);
                    // The next page begins with the smallest name after it.
                    first = name;
                    first.push(0);
                }
            }
        }
    }

    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        let mut holders = self.inner.dialect.break_lock(name, order, self.wakeups()).await?;
        if let Some(alerts) = self.inner.dialect.alerts() {
            // The holds of this store are checked even if it does not listen.
            alerts.check(name);
        }
        holders.sort_by_key(|holder| holder.token);
        Ok(holders)
    }
}
