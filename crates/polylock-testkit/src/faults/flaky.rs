//! Lost requests and lost replies.

use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use polylock_core::{
    Backend, Capabilities, ClaimOutcome, Fault, KeepAlive, Operation, Release, Request, Result, Unavailable,
    Wake, sync::lock,
};

use super::{Driver, injected};
use crate::random::Random;

/// An injected fault of one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum InjectedFault {
    /// The request is lost: the operation has no effect and returns a temporary error.
    RequestLost,
    /// The reply is lost: the operation takes effect, and returns a temporary error.
    ReplyLost,
    /// The store fails permanently: the operation has no effect.
    Permanent,
    /// The store's code panics.
    Panic,
}

/// Makes operations fail: a seeded share of them, or the next ones of a kind on demand.
#[derive(Clone)]
pub struct Flaky {
    inner: Arc<dyn Backend>,
    driver: Driver,
    seeded: Option<(u8, Arc<Mutex<Random>>)>,
    next: Arc<Mutex<VecDeque<(Operation, InjectedFault)>>>,
    failed: Arc<AtomicU64>,
}

impl Flaky {
    /// Creates a wrapper without faults: see [`fail_next`](Self::fail_next).
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        Self { inner, driver: Driver::Thread, seeded: None, next: Arc::default(), failed: Arc::default() }
    }

    /// Creates a wrapper in which `percent` of a hundred operations fail with a temporary error, half of them after they took effect.
    #[must_use]
    pub fn seeded(inner: Arc<dyn Backend>, seed: u64, percent: u8) -> Self {
        Self { seeded: Some((percent, Arc::new(Mutex::new(Random::new(seed))))), ..Self::new(inner) }
    }

    /// Injects `fault` into the next `times` operations of this kind.
    pub fn fail_next(&self, operation: Operation, fault: InjectedFault, times: usize) {
        let mut next = lock(&self.next);
        next.extend(std::iter::repeat_n((operation, fault), times));
    }

    /// Removes all faults that [`fail_next`](Self::fail_next) has scheduled.
    pub fn recover(&self) {
        lock(&self.next).clear();
    }

    /// Returns the number of operations that have failed so far.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::SeqCst)
    }

    fn take_fault(&self, operation: Operation) -> Option<InjectedFault> {
        let mut next = lock(&self.next);
        let planned = next.iter().position(|(of, _)| *of == operation).and_then(|at| next.remove(at));
        let fault = planned.map(|(_, fault)| fault).or_else(|| {
            let (percent, random) = self.seeded.as_ref()?;
            let mut random = lock(random);
            let fails = random.percent(*percent);
            fails.then(
                || if random.percent(50) { InjectedFault::ReplyLost } else { InjectedFault::RequestLost },
            )
        });
        self.failed.fetch_add(u64::from(fault.is_some()), Ordering::SeqCst);
        fault
    }

    async fn send_or_fail<T: Send + 'static>(
        &self,
        operation: Operation,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let backend = self.capabilities().backend;
        match self.take_fault(operation) {
            None => self.driver.send(backend, operation, future).await,
            Some(InjectedFault::RequestLost) => Err(injected(backend, operation, "the request was lost")),
            Some(InjectedFault::ReplyLost) => {
                self.driver.send(backend, operation, future).await?;
                Err(injected(backend, operation, "the reply was lost"))
            }
            Some(InjectedFault::Permanent) => {
                Err(Unavailable::new(backend, operation, Fault::Permanent, "permanent injected fault").into())
            }
            // It unwinds like a panic, without the message of the panic hook.
            Some(InjectedFault::Panic) => std::panic::resume_unwind(Box::new("an injected panic")),
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

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        let (inner, request) = (self.inner.clone(), request.clone());
        self.send_or_fail(Operation::Claim, async move { inner.claim(&request).await }).await
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        match self.take_fault(Operation::Wait) {
            // A lost reply of a wait is a lost wake-up, for which core has its own timer.
            Some(_) => {
                Err(injected(self.capabilities().backend, Operation::Wait, "the connection was reset"))
            }
            None => self.inner.wait(request).await,
        }
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        let (inner, requests) = (self.inner.clone(), requests.to_vec());
        self.send_or_fail(Operation::Renew, async move { inner.keep_alive(&requests).await }).await
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        let (inner, request) = (self.inner.clone(), request.clone());
        self.send_or_fail(Operation::Release, async move { inner.release(&request).await }).await
    }

    fn drop_waiter(&self, request: &Request) {
        self.inner.drop_waiter(request);
    }

    fn request_records(&self) -> Option<usize> {
        self.inner.request_records()
    }
}
