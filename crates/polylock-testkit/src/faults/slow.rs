//! A store with high latency.

use std::{
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use polylock_core::{
    Backend, Capabilities, ClaimOutcome, Clock, KeepAlive, Operation, Release, Request, Result, SystemClock,
    Wake, sync::lock,
};

use super::Driver;
use crate::random::Random;

/// Delays requests before they take effect, and replies afterwards.
#[derive(Debug, Clone)]
pub struct Slow {
    inner: Arc<dyn Backend>,
    driver: Driver,
    request: Duration,
    reply: Duration,
    jitter: Option<Arc<Mutex<Random>>>,
}

impl Slow {
    /// Creates a wrapper in which every request takes `request` to reach `inner`, and every reply takes `reply` to return.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>, request: Duration, reply: Duration) -> Self {
        Self { inner, driver: Driver::Thread, request, reply, jitter: None }
    }

    /// Makes each delay a random part of the full one, by `seed`, so that requests overtake each other.
    #[must_use]
    pub fn jitter(mut self, seed: u64) -> Self {
        self.jitter = Some(Arc::new(Mutex::new(Random::new(seed))));
        self
    }

    fn delay(&self, full: Duration) -> Duration {
        let Some(jitter) = &self.jitter else { return full };
        let part = lock(jitter).below(1001);
        full.mul_f64(f64::from(u32::try_from(part).unwrap_or(1000)) / 1000.0)
    }

    async fn delayed<T: Send + 'static>(
        &self,
        operation: Operation,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (request, reply) = (self.delay(self.request), self.delay(self.reply));
        self.driver
            .send(self.capabilities().backend, operation, async move {
                SystemClock.sleep_until(SystemClock.now() + request).await;
                let outcome = future.await;
                SystemClock.sleep_until(SystemClock.now() + reply).await;
                outcome
            })
            .await
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Backend for Slow {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn here(&self) -> Option<Arc<dyn Backend>> {
        self.inner.here().map(|inner| Arc::new(Self { inner, driver: Driver::Caller, ..self.clone() }) as _)
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        let (inner, request) = (self.inner.clone(), request.clone());
        self.delayed(Operation::Claim, async move { inner.claim(&request).await }).await
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        let wake = self.inner.wait(request).await;
        SystemClock.sleep_until(SystemClock.now() + self.delay(self.reply)).await;
        wake
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        let (inner, requests) = (self.inner.clone(), requests.to_vec());
        self.delayed(Operation::Renew, async move { inner.keep_alive(&requests).await }).await
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        let (inner, request) = (self.inner.clone(), request.clone());
        self.delayed(Operation::Release, async move { inner.release(&request).await }).await
    }

    fn drop_waiter(&self, request: &Request) {
        self.inner.drop_waiter(request);
    }

    fn request_records(&self) -> Option<usize> {
        self.inner.request_records()
    }
}
