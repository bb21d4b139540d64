//! Releases that overtake their claims.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use polylock_core::{
    Backend, Capabilities, ClaimOutcome, Clock, KeepAlive, Operation, Release, Request, Result, SystemClock,
    Wake,
};

use super::Driver;

/// Delays every claim on its way to the store; all other operations pass at once.
///
/// A release that is sent before its own claim has been answered arrives first and finds nothing. Then the claim arrives, and leaves an
/// entry without an owner.
#[derive(Debug, Clone)]
pub struct Overtaking {
    inner: Arc<dyn Backend>,
    driver: Driver,
    delay: Duration,
}

impl Overtaking {
    /// Creates a wrapper in which claims reach `inner` after `delay`.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>, delay: Duration) -> Self {
        Self { inner, driver: Driver::Thread, delay }
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Backend for Overtaking {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn here(&self) -> Option<Arc<dyn Backend>> {
        self.inner.here().map(|inner| Arc::new(Self { inner, driver: Driver::Caller, ..self.clone() }) as _)
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        let (inner, request, delay) = (self.inner.clone(), request.clone(), self.delay);
        self.driver
            .send(self.capabilities().backend, Operation::Claim, async move {
                SystemClock.sleep_until(SystemClock.now() + delay).await;
                inner.claim(&request).await
            })
            .await
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        self.inner.wait(request).await
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        self.inner.keep_alive(requests).await
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        self.inner.release(request).await
    }

    fn drop_waiter(&self, request: &Request) {
        self.inner.drop_waiter(request);
    }

    fn request_records(&self) -> Option<usize> {
        self.inner.request_records()
    }
}
