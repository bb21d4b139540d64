//! What a case works with: a target, connections to it, and words for what every case looks at.

use std::{
    future::{Future, IntoFuture, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    thread,
    time::Duration,
};

use polylock_core::{
    Backend, Capabilities, Carrier, Clock, Error, Fencing, Grant, Guard, Inspect, KeepAlive, LockName,
    LockStatus, Locks, Mode, Modes, Options, Order, Release, Request, Result, Standing, Store, SystemClock,
    WakeUp, io,
};

use crate::{
    ManualClock, OwnServer, Target,
    cases::Need,
    faults::{self, Recording},
};

static PATIENCE: AtomicU64 = AtomicU64::new(30_000);

/// How long anything may take that normally happens at once: a hang, not a measure.
pub(crate) fn patience() -> Duration {
    Duration::from_millis(PATIENCE.load(Ordering::Relaxed))
}

/// Sets it for the whole process: for tests of the suite itself, whose cases are meant to fail.
#[doc(hidden)]
pub fn set_patience(limit: Duration) {
    PATIENCE.store(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// The bound for what must not wait for a lease to run out. A waiter's own lease lasts 5 s, a holder's a minute.
pub(crate) const SOON: Duration = Duration::from_secs(4);

/// Why a case can't be run after all.
#[derive(Debug)]
pub(crate) struct Unsupported(pub(crate) String);

/// How a case ends; a promise that is broken is a panic.
pub(crate) type Outcome = Result<(), Unsupported>;

type Wrapper = Arc<dyn Fn(Arc<dyn Backend>) -> Arc<dyn Backend> + Send + Sync>;

/// One case's view of one target.
#[derive(Clone)]
pub(crate) struct Trial {
    target: Arc<dyn Target>,
    bare: Store,
    wrapper: Option<Wrapper>,
}

impl Trial {
    pub(crate) async fn new(target: Arc<dyn Target>) -> Self {
        let bare = connect(&target).await;
        Self { target, bare, wrapper: None }
    }

    /// The same target with every further connection behind a fault.
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

    /// How many of `count` requests for one lock that wait in one process claim it: the first alone if the store keeps no queue.
    pub(crate) fn in_queue(&self, count: usize) -> usize {
        if self.capabilities().order == Order::Arrival { count } else { count.min(1) }
    }

    /// The modes that the store grants, weakest first.
    pub(crate) fn modes(&self) -> impl Iterator<Item = Mode> + Clone {
        let modes = self.capabilities().modes;
        Mode::ALL.into_iter().filter(move |mode| modes.contains(*mode))
    }

    /// What the target lacks of what a case needs.
    pub(crate) async fn lacks(&self, need: Need) -> Option<String> {
        let can = self.capabilities();
        let lack = |lacks: bool, what: &str| lacks.then(|| what.to_owned());
        match need {
            Need::Modes => lack(can.modes != Modes::AllSix, "the store does not grant all six modes"),
            Need::Shared => {
                lack(!can.modes.contains(Mode::Shared), "the store grants the exclusive mode alone")
            }
            Need::Order => lack(can.order != Order::Arrival, "the store keeps no order of arrival"),
            Need::Tokens => lack(can.fencing == Fencing::Absent, "the store gives no fencing tokens"),
            Need::Push => lack(can.wake != WakeUp::Pushed, "the store wakes nobody, it is polled"),
            Need::Anywhere => {
                let what = "a hold lives in its connection, and no other can speak for it";
                lack(can.carrier != Carrier::Entry, what)
            }
            Need::Inspect => lack(self.bare.inspect.is_none(), "the store can't be inspected"),
            Need::Alerts => lack(self.bare.alerts.is_none(), "the store does not push break notices"),
            Need::Count => {
                let lacks = self.count().await.is_none();
                lack(lacks, "the store can't be looked into, and the target does not count what it keeps")
            }
        }
    }

    /// A new connection.
    pub(crate) async fn store(&self) -> Store {
        let store = connect(&self.target).await;
        match &self.wrapper {
            Some(wrapper) => Store { backend: wrapper(store.backend), ..store },
            None => store,
        }
    }

    /// Everything that the store keeps is deleted; false if the target has no way to.
    pub(crate) async fn empty(&self) -> bool {
        let target = self.target.clone();
        self.on_io(async move { target.empty().await }).await
    }

    /// The same on a server of its own, if the target has one.
    pub(crate) async fn on_own_server(&self) -> Option<(Self, Arc<dyn OwnServer>)> {
        let own = self.target.on_own_server().await;
        let own = own.unwrap_or_else(|error| panic!("the server: {}", chain(&error)))?;
        Some((Self::new(own.clone()).await, own))
    }

    /// Locks on a new connection, with a long lease.
    pub(crate) async fn locks(&self) -> Locks {
        self.open(self.store().await)
    }

    /// Locks on `store`, with a long lease.
    pub(crate) fn open(&self, store: Store) -> Locks {
        Locks::builder(store).options(self.options(self.long())).build()
    }

    /// Locks on `store` whose deadlines go by `clock`.
    pub(crate) fn open_by(&self, store: Store, clock: &ManualClock) -> Locks {
        Locks::builder(store).options(self.options(self.long())).clock(Arc::new(clock.clone())).build()
    }

    /// Locks on a new connection, and what they ask of the store.
    pub(crate) async fn recorded(&self) -> (Locks, Arc<Recording>) {
        let (store, recording) = watched(self.store().await, Recording::new);
        (self.open(store), recording)
    }

    /// Default options with this lease.
    pub(crate) fn options(&self, ttl: Duration) -> Options {
        let mut options = Options::default();
        options.ttl = ttl;
        options
    }

    /// A lease that does not run out within a case: what it would free is a leak.
    pub(crate) fn long(&self) -> Duration {
        self.within_range(Duration::from_secs(60))
    }

    /// A lease for cases that wait until it runs out.
    pub(crate) fn short(&self) -> Duration {
        self.within_range(self.target.short_ttl(self.capabilities()))
    }

    /// A lease that is short, but renewed in time on a busy machine.
    pub(crate) fn renewable(&self) -> Duration {
        self.within_range(self.short().max(Duration::from_millis(1200)))
    }

    fn within_range(&self, ttl: Duration) -> Duration {
        ttl.clamp(*self.capabilities().ttl.start(), *self.capabilities().ttl.end())
    }

    pub(crate) fn secrets(&self) -> Vec<String> {
        self.target.secrets()
    }

    /// A connection to be spoken to without core.
    pub(crate) async fn raw(&self) -> Raw {
        Raw(self.store().await.backend)
    }

    /// The same on no new connection, and behind no fault.
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

    pub(crate) fn inspect(&self) -> Arc<dyn Inspect> {
        self.bare
            .inspect
            .clone()
            .unwrap_or_else(|| panic!("a case that looks into the store must need Inspect"))
    }

    /// Who holds and who waits.
    pub(crate) async fn status(&self, name: &str) -> LockStatus {
        let (inspect, name) = (self.inspect(), lock_name(name));
        self.on_io(async move { inspect.inspect(&name).await }).await
    }

    /// How many entries the store keeps.
    pub(crate) async fn count(&self) -> Option<u64> {
        let (target, inspect) = (self.target.clone(), self.bare.inspect.clone());
        self.on_io(async move {
            if let Some(count) = target.leftovers().await? {
                return Ok(Some(count));
            }
            let Some(inspect) = inspect else { return Ok(None) };
            let entries = |status: LockStatus| (status.holders.len() + status.waiters.len()) as u64;
            Ok(Some(inspect.list("").await?.into_iter().map(entries).sum()))
        })
        .await
    }

    /// Within less time than a lease takes to run out, the store keeps `count` entries, if it can be told.
    pub(crate) async fn keeps(&self, count: u64, what: &str) {
        let mut seen = None;
        let by = SystemClock.now() + SOON;
        while SystemClock.now() < by {
            seen = self.count().await;
            if seen.is_none_or(|seen| seen == count) {
                return;
            }
            pause().await;
        }
        panic!("{what}: the store should keep {count} entries and keeps {seen:?}");
    }

    /// Within less time than a lease takes to run out, nothing is left of `names`, and each can be had at once.
    pub(crate) async fn nothing_left(&self, names: &[&str], what: &str) {
        self.keeps(0, what).await;
        let raw = self.bare();
        for name in names {
            raw.is_free(name, what).await;
        }
    }
}

async fn connect(target: &Arc<dyn Target>) -> Store {
    let target = target.clone();
    on_io("testkit", async move { target.connect().await }).await
}

/// `store` behind a fault, and the fault to be played with.
pub(crate) fn watched<B: Backend>(
    store: Store,
    fault: impl FnOnce(Arc<dyn Backend>) -> B,
) -> (Store, Arc<B>) {
    let mut handle = None;
    let store = faults::wrap(store, |inner| handle.insert(Arc::new(fault(inner))).clone());
    let handle = handle.unwrap_or_else(|| unreachable!("`wrap` calls its wrapper once"));
    (store, handle)
}

/// A store's backend, spoken to on the thread it belongs to.
#[derive(Clone)]
pub(crate) struct Raw(pub(crate) Arc<dyn Backend>);

impl Raw {
    pub(crate) async fn claim(&self, request: &Request) -> Standing {
        let (backend, request) = (self.0.clone(), request.clone());
        on_io(self.0.capabilities().backend, async move { backend.claim(&request).await }).await
    }

    /// A claim that must be granted.
    pub(crate) async fn hold(&self, request: &Request) -> Grant {
        match self.claim(request).await {
            Standing::Held(grant) => grant,
            Standing::Queued(place) => {
                panic!("{} should be granted and is queued at {place:?}", request.name)
            }
        }
    }

    /// A claim that must not be granted.
    pub(crate) async fn queue(&self, request: &Request) {
        if let Standing::Held(grant) = self.claim(request).await {
            panic!("{} should be queued and is granted as {grant:?}", request.name);
        }
    }

    /// A keep-alive for one request.
    pub(crate) async fn renew(&self, request: &Request) -> KeepAlive {
        let mut outcomes = self.keep_alive(&[request]).await;
        assert_eq!(outcomes.len(), 1, "one outcome for one request: {outcomes:?}");
        outcomes.remove(0)
    }

    /// Keep-alives for several, in batches of the size that the store takes.
    pub(crate) async fn keep_alive(&self, requests: &[&Request]) -> Vec<KeepAlive> {
        let (backend, capabilities) = (self.0.clone(), self.0.capabilities());
        let requests: Vec<Arc<Request>> =
            requests.iter().map(|request| Arc::new((*request).clone())).collect();
        let size = capabilities.keep_alive_batch;
        on_io(capabilities.backend, async move {
            let mut outcomes = Vec::new();
            for batch in requests.chunks(size) {
                outcomes.extend(backend.keep_alive(batch).await?);
            }
            Ok(outcomes)
        })
        .await
    }

    pub(crate) async fn release(&self, request: &Request) -> Release {
        let (backend, request) = (self.0.clone(), request.clone());
        on_io(self.0.capabilities().backend, async move { backend.release(&request).await }).await
    }

    /// Whether a claim that does not wait is granted; then it is released.
    pub(crate) async fn try_once(&self, name: &str, mode: Mode) -> bool {
        let mut request = Request::new(lock_name(name), mode, self.probe_ttl());
        request.queues = false;
        let held = matches!(self.claim(&request).await, Standing::Held(_));
        if held {
            self.release(&request).await;
        }
        held
    }

    async fn is_free(&self, name: &str, what: &str) {
        let by = SystemClock.now() + SOON;
        while SystemClock.now() < by {
            if self.try_once(name, Mode::Exclusive).await {
                return;
            }
            pause().await;
        }
        panic!("{what}: {name:?} is still taken");
    }

    fn probe_ttl(&self) -> Duration {
        let range = &self.0.capabilities().ttl;
        Duration::from_secs(60).clamp(*range.start(), *range.end())
    }
}

/// A checked name.
pub(crate) fn lock_name(name: &str) -> LockName {
    LockName::new(name).unwrap_or_else(|error| panic!("a case's own name {name:?}: {error}"))
}

/// Runs `future` on the I/O thread of the stores called `backend`; its error fails the case.
async fn on_io<T: Send + 'static>(
    backend: &'static str,
    future: impl Future<Output = Result<T>> + Send + 'static,
) -> T {
    let answer = io::run(backend, future).await.and_then(|answer| answer);
    answer.unwrap_or_else(|error| panic!("the store failed: {}", chain(&error)))
}

/// An error with its causes.
pub(crate) fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// `future`, which must be ready within [`patience`].
pub(crate) async fn soon<T>(what: &str, future: impl IntoFuture<Output = T>) -> T {
    within(patience(), what, future).await
}

/// `future`, which must be ready within `limit`.
pub(crate) async fn within<T>(limit: Duration, what: &str, future: impl IntoFuture<Output = T>) -> T {
    tokio::time::timeout(limit, future).await.unwrap_or_else(|_| panic!("{what}: not within {limit:?}"))
}

/// Looks again until `condition` holds; it must within [`patience`].
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let by = SystemClock.now() + patience();
    while !condition() {
        assert!(SystemClock.now() < by, "{what}: not within {:?}", patience());
        pause().await;
    }
}

/// Lets `time` pass, where the passing of time is what a case is about.
pub(crate) async fn pass(time: Duration) {
    SystemClock.sleep_until(SystemClock.now() + time).await;
}

async fn pause() {
    pass(Duration::from_millis(2)).await;
}

/// An acquisition that must succeed, in [`patience`].
pub(crate) async fn acquired(lock: polylock_core::Lock) -> Guard {
    soon("acquire", lock.acquire()).await.unwrap_or_else(|error| panic!("acquire: {}", chain(&error)))
}

/// A release that must succeed, in [`patience`].
pub(crate) async fn released(guard: Guard) {
    soon("release", guard.release()).await.unwrap_or_else(|error| panic!("release: {}", chain(&error)));
}

/// One try, which must not fail.
pub(crate) async fn tried(lock: polylock_core::Lock) -> Option<Guard> {
    soon("try_acquire", lock.try_acquire())
        .await
        .unwrap_or_else(|error| panic!("try_acquire: {}", chain(&error)))
}

/// A task that must not panic.
pub(crate) async fn join<T>(task: tokio::task::JoinHandle<T>) -> T {
    match within(scaled(patience()), "a task of the case", task).await {
        Ok(value) => value,
        Err(cut) => std::panic::resume_unwind(cut.into_panic()),
    }
}

/// Runs `work` on a thread that knows no runtime.
pub(crate) async fn outside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = thread::spawn(work);
    let joined = tokio::task::spawn_blocking(move || thread.join());
    match within(patience() * 2, "a thread of the case", joined).await {
        Ok(Ok(value)) => value,
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(cut) => std::panic::resume_unwind(cut.into_panic()),
    }
}

/// When a future is dropped.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cut {
    /// Right after its poll number `n` (0: before the first).
    After(usize),
    /// When it has been woken after that poll, and what woke it has not been looked at.
    Woken(usize),
}

/// Polls `future` until it is ready or the cut comes; then drops it.
pub(crate) async fn cut<F: Future>(future: F, cut: Cut) -> Option<F::Output> {
    let mut future = pin!(future);
    let (limit, on_wake) = match cut {
        Cut::After(polls) => (polls, false),
        Cut::Woken(polls) => (polls, true),
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

/// A limit for what takes longer when cases are made longer.
pub(crate) fn scaled(limit: Duration) -> Duration {
    limit.saturating_mul(u32::try_from(scale()).unwrap_or(u32::MAX))
}

/// How many times more than usual the long cases repeat: `POLYLOCK_TESTKIT_SCALE`, 1 by default.
pub(crate) fn scale() -> usize {
    std::env::var("POLYLOCK_TESTKIT_SCALE").ok().and_then(|scale| scale.parse().ok()).unwrap_or(1)
}
