//! The duration of the polls of a store's operations.

use std::{
    fmt,
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    Backend, Capabilities, ClaimOutcome, Clock, KeepAlive, Release, Request, Result, SystemClock, Wake,
    sync::lock,
};

/// A shorter poll is harmless, even if it blocks.
const THRESHOLD: Duration = Duration::from_millis(1);

/// Measures every poll, and keeps those that have blocked their thread. On Linux these are polls in which the thread gave up its
/// processor voluntarily (to sleep, or to wait for a disk or a lock); elsewhere, polls that took long.
#[derive(Clone)]
pub struct Polls {
    inner: Arc<dyn Backend>,
    operations: Arc<AtomicUsize>,
    blocked: Arc<Mutex<Vec<Duration>>>,
}

impl Polls {
    /// Creates a wrapper that measures the polls of `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        Self { inner, operations: Arc::default(), blocked: Arc::default() }
    }

    /// Returns the number of operations that were carried out.
    pub fn operations(&self) -> usize {
        self.operations.load(Ordering::SeqCst)
    }

    /// Returns the durations of the polls that have blocked their thread.
    pub fn blocked(&self) -> Vec<Duration> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Duration>> {
        lock(&self.blocked)
    }

    async fn measure<F: Future>(&self, operation: F) -> F::Output {
        self.operations.fetch_add(1, Ordering::SeqCst);
        let mut operation = pin!(operation);
        std::future::poll_fn(|context| self.poll(operation.as_mut(), context)).await
    }

    fn poll<F: Future>(&self, operation: Pin<&mut F>, context: &mut Context<'_>) -> Poll<F::Output> {
        let (began, switches) = (SystemClock.now(), voluntary_switches());
        let poll = operation.poll(context);
        let took = SystemClock.now().since(began);
        if took >= THRESHOLD
            && voluntary_switches().zip(switches).is_none_or(|(after, before)| after > before)
        {
            self.lock().push(took);
        }
        poll
    }
}

/// Returns the number of voluntary context switches of this thread; `None` if the system does not report it.
fn voluntary_switches() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}

impl fmt::Debug for Polls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Polls").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Backend for Polls {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn here(&self) -> Option<Arc<dyn Backend>> {
        self.inner.here().map(|inner| Arc::new(Self { inner, ..self.clone() }) as _)
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        self.measure(self.inner.claim(request)).await
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        self.measure(self.inner.wait(request)).await
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        self.measure(self.inner.keep_alive(requests)).await
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        self.measure(self.inner.release(request)).await
    }

    fn drop_waiter(&self, request: &Request) {
        self.inner.drop_waiter(request);
    }

    fn request_records(&self) -> Option<usize> {
        self.inner.request_records()
    }
}
