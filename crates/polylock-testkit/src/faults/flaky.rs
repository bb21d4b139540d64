//! Requests and replies that get lost.

use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use polylock_core::{
    Backend, Capabilities, Fault, KeepAlive, Operation, Release, Request, Result, Standing, Unavailable, Wake,
};

use super::{Driver, planted};
use crate::random::Random;

/// What goes wrong with one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// The request never arrives: a temporary error, and nothing has happened.
    RequestLost,
    /// It takes effect, and the answer is lost: a temporary error all the same.
    ReplyLost,
    /// The store fails for good, and nothing has happened.
    Permanent,
    /// The store's code panics.
    Panic,
}

/// Fails operations: a share of them by a seed, or the next ones of a kind on demand.
#[derive(Clone)]
pub struct Flaky {
    inner: Arc<dyn Backend>,
    driver: Driver,
    seeded: Option<(u8, Arc<Mutex<Random>>)>,
    next: Arc<Mutex<VecDeque<(Operation, Trouble)>>>,
    failed: Arc<AtomicU64>,
}

impl Flaky {
    /// Nothing fails yet: see [`next`](Self::next).
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        Self { inner, driver: Driver::Thread, seeded: None, next: Arc::default(), failed: Arc::default() }
    }

    /// `percent` of a hundred operations fail with a temporary error, half of them after they took effect.
    #[must_use]
    pub fn seeded(inner: Arc<dyn Backend>, seed: u64, percent: u8) -> Self {
        Self { seeded: Some((percent, Arc::new(Mutex::new(Random::new(seed))))), ..Self::new(inner) }
    }

    /// The next `times` operations of this kind meet this `trouble`.
    pub fn next(&self, operation: Operation, trouble: Trouble, times: usize) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        next.extend(std::iter::repeat_n((operation, trouble), times));
    }

    /// Nothing that was asked for with [`next`](Self::next) fails any more.
    pub fn recover(&self) {
        self.next.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// How many operations have failed so far.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::SeqCst)
    }

    fn trouble(&self, operation: Operation) -> Option<Trouble> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let planned = next.iter().position(|(of, _)| *of == operation).and_then(|at| next.remove(at));
        let trouble = planned.map(|(_, trouble)| trouble).or_else(|| {
            let (percent, random) = self.seeded.as_ref()?;
            let mut random = random.lock().unwrap_or_else(PoisonError::into_inner);
            let fails = random.percent(*percent);
            fails.then(|| if random.percent(50) { Trouble::ReplyLost } else { Trouble::RequestLost })
        });
        self.failed.fetch_add(u64::from(trouble.is_some()), Ordering::SeqCst);
        trouble
    }

    async fn perhaps<T: Send + 'static>(
        &self,
        operation: Operation,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let backend = self.capabilities().backend;
        match self.trouble(operation) {
            None => self.driver.send(backend, operation, future).await,
            Some(Trouble::RequestLost) => Err(planted(backend, operation, "the request was lost")),
            Some(Trouble::ReplyLost) => {
                self.driver.send(backend, operation, future).await?;
                Err(planted(backend, operation, "the reply was lost"))
            }
            Some(Trouble::Permanent) => {
                Err(Unavailable::new(backend, operation, Fault::Permanent, "broken for good").into())
            }
            // Unwinds like a panic, and does not shout like one.
            Some(Trouble::Panic) => std::panic::resume_unwind(Box::new("a planted panic")),
        }
    }
}

impl fmt::Debug for Flaky {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flaky").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Backend for Flaky {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn here(&self) -> Option<Arc<dyn Backend>> {
        self.inner.here().map(|inner| Arc::new(Self { inner, driver: Driver::Caller, ..self.clone() }) as _)
    }

    async fn claim(&self, request: &Request) -> Result<Standing> {
        let (inner, request) = (self.inner.clone(), request.clone());
        self.perhaps(Operation::Claim, async move { inner.claim(&request).await }).await
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        match self.trouble(Operation::Wait) {
            // A wait that has an effect that is lost is a wake-up that is lost: core has its own clock for that.
            Some(_) => Err(planted(self.capabilities().backend, Operation::Wait, "the connection was cut")),
            None => self.inner.wait(request).await,
        }
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        let (inner, requests) = (self.inner.clone(), requests.to_vec());
        self.perhaps(Operation::Renew, async move { inner.keep_alive(&requests).await }).await
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        let (inner, request) = (self.inner.clone(), request.clone());
        self.perhaps(Operation::Release, async move { inner.release(&request).await }).await
    }
}
