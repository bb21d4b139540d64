//! Claims and keep-alives of one request that do not arrive.

use std::sync::Arc;

use async_trait::async_trait;
use polylock_core::{
    Backend, Capabilities, ClaimOutcome, KeepAlive, Release, Request, RequestId, Result, Wake,
};
use tokio::sync::watch;

/// Withholds the claims and keep-alives of one request until they are delivered. Its keep-alives report that it is queued, so its entry
/// expires in the store while its client does not notice.
#[derive(Debug, Clone)]
pub struct Withheld {
    inner: Arc<dyn Backend>,
    request: watch::Sender<Option<RequestId>>,
}

impl Withheld {
    /// Creates a wrapper that withholds nothing yet.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        Self { inner, request: watch::Sender::new(None) }
    }

    /// Withholds the claims and keep-alives of `request` from now on.
    pub fn withhold(&self, request: RequestId) {
        self.request.send_replace(Some(request));
    }

    /// Delivers the claims that were withheld, and all later messages.
    pub fn deliver(&self) {
        self.request.send_replace(None);
    }

    fn is_withheld(&self, request: RequestId) -> bool {
        *self.request.borrow() == Some(request)
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Backend for Withheld {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn here(&self) -> Option<Arc<dyn Backend>> {
        self.inner.here().map(|inner| Arc::new(Self { inner, ..self.clone() }) as _)
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        // The sender is a field of `self`, so the channel can't be closed.
        drop(self.request.subscribe().wait_for(|withheld| *withheld != Some(request.id)).await);
        self.inner.claim(request).await
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        self.inner.wait(request).await
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        let sent: Vec<Arc<Request>> =
            requests.iter().filter(|request| !self.is_withheld(request.id)).cloned().collect();
        let outcomes = self.inner.keep_alive(&sent).await?;
        let mut outcomes = sent.iter().zip(outcomes).peekable();
        let outcome_of = |request: &Arc<Request>| match outcomes.next_if(|(sent, _)| sent.id == request.id) {
            Some((_, outcome)) => outcome,
            None => KeepAlive::Queued,
        };
        Ok(requests.iter().map(outcome_of).collect())
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
