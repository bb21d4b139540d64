//! What is the same for every database: a store of [`polylock_core::backend`] over a [`Dialect`].
//!
//! A dialect knows its statements and its connections. The engine knows what a claim's answer means, when to clear up,
//! who waits in this process and how long.

pub(crate) mod background;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod config;
pub(crate) mod gate;
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
    Backend, BreakOrder, Capabilities, Entry, Grant, HoldAlerts, Inspect, KeepAlive, LockName, LockStatus,
    LostReason, Mode, Place, Release, Request, Result, Standing, Store, Wake, hub::Hub,
};

use background::Background;
use poller::Poller;
pub(crate) use poller::{Pace, Round};
pub(crate) use rows::{Look, State};

/// The lease times a database gives: above its clock's step and the deadline's margin by far, and at most a day, for
/// which a holder that died can be waited for.
pub(crate) const SHORTEST: Duration = Duration::from_millis(100);
pub(crate) const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Every so many claims ...
pub(crate) const SWEEP_EVERY: u32 = 256;
/// ... so many rows of each table are looked over: more than came in meanwhile, so the sweep gets round.
pub(crate) const SWEEP_ROWS: i64 = 1024;

/// How many rows of each table one statement of a list returns at most, but for a lock with more waiters.
pub(crate) const LIST_ROWS: i64 = 1000;

/// What one kind of database does in its own way. Every operation is atomic, idempotent in the request's id and ends in
/// bounded time, as [`Backend`] asks.
#[async_trait]
pub(crate) trait Dialect: fmt::Debug + Send + Sync + 'static {
    fn capabilities(&self) -> &Capabilities;

    /// How often a [`round`](Self::round) is due.
    fn pace(&self) -> Pace;

    /// Wakes waiters whenever another process reports that it is their turn, and never ends. May be dropped at any time. It keeps no
    /// store alive.
    fn wakeups(&self, hub: &Arc<Hub>) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// Takes the lock if it is the request's turn; else, if the request queues, joins the queue or keeps its place, and
    /// tells the `hub` whom it waits for, in the order that the hub asks for.
    async fn claim(&self, request: &Request, hub: &Arc<Hub>) -> Result<Look>;

    /// Extends the live holds among `requests`, unless they were marked as broken, and the live queue entries. One state for each
    /// request, in their order; `requests` is not empty.
    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<State>>;

    /// Why a request has lost its hold: a break that left a notice, or nothing that is known.
    async fn loss(&self, request: &Request) -> Result<LostReason>;

    /// Releases or withdraws, and rings for those of this process who wait for it.
    async fn release(&self, request: &Request, hub: &Hub) -> Result<Release>;

    /// Looks, while somebody waits, whether others have left, and rings. `news` says that somebody has begun to wait
    /// since the last round.
    async fn round(&self, hub: &Arc<Hub>, news: bool) -> Result<Round>;

    /// Who holds `name` and who waits for it, live entries only.
    async fn lock(&self, name: &[u8]) -> Result<Vec<LockStatus>>;

    /// The locks whose names lie between `first` and `end`, which is not in it, by name: from the first
    /// [`LIST_ROWS`] live entries of each table.
    async fn page(&self, first: &[u8], end: &[u8]) -> Result<rows::Page>;

    /// Marks the holds of `name`, or removes them and rings: the entries of its holders.
    async fn break_lock(&self, name: &LockName, order: &BreakOrder, hub: &Hub) -> Result<Vec<Entry>>;

    /// Clears the next stretch of the tables of what has expired.
    async fn sweep(&self) -> Result<()>;

    /// What is called with a lock that was broken, if the database pushes that to the holders' processes.
    fn alerts(&self) -> Option<&Arc<HoldAlerts>>;
}

/// The names that begin with `prefix`: from the first to before the second, as bytes.
pub(crate) fn range(prefix: &str) -> (Vec<u8>, Vec<u8>) {
    // No UTF-8 has the byte FF, so counting up the last byte gives the end of all that begin with it.
    let mut end = prefix.as_bytes().to_vec();
    match end.last_mut() {
        Some(last) => *last += 1,
        None => end.push(0xff),
    }
    (prefix.as_bytes().to_vec(), end)
}

/// Which locks a statement of the pessimistic strategy returns: all at once, because each of them keeps a connection.
#[cfg(any(feature = "postgres", feature = "mysql"))]
#[derive(Debug, Clone, Copy)]
pub(crate) enum Which<'a> {
    Named(&'a LockName),
    /// Whose names begin with this.
    Under(&'a str),
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
impl Which<'_> {
    /// Whether an entry that cannot be shown is an error: it is not, for a list of all.
    pub(crate) const fn is_strict(self) -> bool {
        matches!(self, Self::Named(_))
    }

    /// The names from the first to before the second, as bytes; the second is `None` for the one name alone.
    pub(crate) fn range(self) -> (Vec<u8>, Option<Vec<u8>>) {
        match self {
            Self::Named(name) => (bytes(name).to_vec(), None),
            Self::Under(prefix) => {
                let (first, end) = range(prefix);
                (first, Some(end))
            }
        }
    }
}

/// The name as the tables keep it.
pub(crate) fn bytes(name: &LockName) -> &[u8] {
    name.as_str().as_bytes()
}

/// The label as the tables keep it.
pub(crate) fn label(request: &Request) -> &str {
    request.label.as_ref().map_or("", |label| label.as_str())
}

/// Pairs of name and request, as the tables keep them: whom the waiters of this process wait for ([`Hub::watched`]), or the
/// waiters themselves ([`Hub::waiting`]).
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn pairs(
    names: std::collections::HashMap<LockName, Vec<polylock_core::RequestId>>,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut pairs = Vec::new();
    for (name, requests) in names {
        pairs.extend(requests.iter().map(|request| (bytes(&name).to_vec(), request.to_bytes().to_vec())));
    }
    pairs
}

/// The requests of a keep-alive, as its routine reads them: of each one byte for the length of its name, the name, its id, a byte
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
        packed.extend(rows::micros(request.place_ttl()).to_be_bytes());
    }
    packed
}

/// The break notice as the tables keep it.
pub(crate) fn notice(order: &BreakOrder) -> String {
    order.notice.to_text()
}

/// What is unique about a hold beside its name: nothing if it is exclusive, so that the unique index itself refuses a
/// second one; itself otherwise.
pub(crate) fn slot(request: &Request) -> Vec<u8> {
    if request.mode == Mode::Exclusive { Vec::new() } else { request.id.to_bytes().to_vec() }
}

/// A store over a dialect.
pub(crate) struct Engine<D> {
    inner: Arc<Inner<D>>,
}

/// What the poller needs of the store.
pub(crate) struct Inner<D> {
    pub(crate) dialect: D,
    pub(crate) hub: Arc<Hub>,
    claims: AtomicU32,
    poller: Poller,
    sweeping: Background,
}

impl<D: Dialect> fmt::Debug for Engine<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.dialect.fmt(f)
    }
}

impl<D: Dialect> Engine<D> {
    fn new(dialect: D) -> Self {
        let (hub, claims, poller) = (Arc::default(), AtomicU32::new(0), Poller::default());
        let sweeping = Background::new("could not delete expired locks");
        Self { inner: Arc::new(Inner { dialect, hub, claims, poller, sweeping }) }
    }

    /// The store over `dialect`, cleared of some of what has expired.
    pub(crate) async fn open(dialect: D) -> Store {
        let engine = Self::new(dialect);
        engine.sweep().await;
        let alerts = engine.inner.dialect.alerts().cloned();
        let store = Store::inspectable(Arc::new(engine));
        match alerts {
            Some(alerts) => store.alerting(alerts),
            None => store,
        }
    }

    /// Clears the next stretch of the tables of what has expired, if that is possible now.
    async fn sweep(&self) {
        match self.inner.dialect.sweep().await {
            Ok(()) => self.inner.sweeping.succeeded(),
            // The next sweep makes up for it, and the claim does not depend on it.
            Err(failure) => self.inner.sweeping.failed(&failure),
        }
    }
}

#[async_trait]
impl<D: Dialect> Backend for Engine<D> {
    fn capabilities(&self) -> &Capabilities {
        self.inner.dialect.capabilities()
    }

    async fn claim(&self, request: &Request) -> Result<Standing> {
        if self.inner.claims.fetch_add(1, Ordering::Relaxed) % SWEEP_EVERY == SWEEP_EVERY - 1 {
            self.sweep().await;
        }
        Ok(match self.inner.dialect.claim(request, &self.inner.hub).await? {
            Look::Held(token, lease) => {
                self.inner.hub.forget(request.id);
                Standing::Held(Grant::new(token, lease))
            }
            Look::Behind { left, ahead } => {
                if request.queues {
                    self.inner.attend();
                }
                // A third of its own time, so that the place is refreshed before it has run out.
                let recheck = left.min(request.place_ttl() / 3);
                Standing::Queued(Place::new(ahead, recheck))
            }
            Look::Free => Standing::Queued(Place::new(None, Duration::from_millis(1))),
        })
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        let wake = self.inner.hub.rung(request.id).await;
        if let Wake::Granted(_) = wake {
            self.inner.hub.forget(request.id);
        }
        Ok(wake)
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        let dialect = &self.inner.dialect;
        let states = if requests.is_empty() { Vec::new() } else { dialect.keep_alive(requests).await? };
        let mut outcomes = Vec::with_capacity(states.len());
        for (request, state) in requests.iter().zip(states) {
            outcomes.push(match state {
                State::Held => KeepAlive::Held { lease: request.ttl },
                State::Queued => KeepAlive::Queued,
                State::Gone => {
                    // If it was a waiter, it joins the queue at its end, and those behind it wait for another one.
                    self.inner.hub.ring(request.id);
                    KeepAlive::Lost(LostReason::Gone)
                }
                State::Broken => dialect.loss(request).await.map_or(KeepAlive::Unknown, KeepAlive::Lost),
                State::Contested => KeepAlive::Unknown,
            });
        }
        Ok(outcomes)
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        self.inner.hub.forget(request.id);
        self.inner.dialect.release(request, &self.inner.hub).await
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
                rows::Next::End => return Ok(locks),
                rows::Next::From(name) => first = name,
                rows::Next::Long(name) => {
                    locks.extend(self.inner.dialect.lock(&name).await?);
                    // The least of the names behind it.
                    first = name;
                    first.push(0);
                }
            }
        }
    }

    async fn break_lock(&self, name: &LockName, order: &BreakOrder) -> Result<Vec<Entry>> {
        let mut holders = self.inner.dialect.break_lock(name, order, &self.inner.hub).await?;
        if let Some(alerts) = self.inner.dialect.alerts() {
            // The holds of this store, listening or not.
            alerts.check(name);
        }
        holders.sort_by_key(|holder| holder.token);
        Ok(holders)
    }
}
