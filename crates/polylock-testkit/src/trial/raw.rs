//! Calls of a store without core.

use std::{future::Future, sync::Arc, time::Duration};

use polylock_core::{
    Backend, ClaimOutcome, Clock, Grant, KeepAlive, LockName, Mode, Release, Request, Result, SystemClock, io,
};

use super::waiting::{SOON, pause};

/// A store's backend. Its operations run on the store's I/O thread.
#[derive(Clone)]
pub(crate) struct Raw(pub(crate) Arc<dyn Backend>);

impl Raw {
    pub(crate) async fn claim(&self, request: &Request) -> ClaimOutcome {
        let (backend, request) = (self.0.clone(), request.clone());
        on_io(self.0.capabilities().backend, async move { backend.claim(&request).await }).await
    }

    /// Claims; the claim must be granted.
    pub(crate) async fn hold(&self, request: &Request) -> Grant {
        match self.claim(request).await {
            ClaimOutcome::Granted(grant) => grant,
            ClaimOutcome::Queued(position) => {
                panic!("expected a grant of {}, queued at {position:?}", request.name)
            }
        }
    }

    /// Claims; the claim must not be granted.
    pub(crate) async fn queue(&self, request: &Request) {
        if let ClaimOutcome::Granted(grant) = self.claim(request).await {
            panic!("expected {} to be queued, granted as {grant:?}", request.name);
        }
    }

    /// Keeps one request alive.
    pub(crate) async fn renew(&self, request: &Request) -> KeepAlive {
        let mut outcomes = self.keep_alive(&[request]).await;
        assert_eq!(outcomes.len(), 1, "expected one outcome for one request: {outcomes:?}");
        outcomes.remove(0)
    }

    /// Keeps several requests alive, in batches of the store's size.
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

    /// Returns true if a claim that does not queue is granted, and releases it.
    pub(crate) async fn try_once(&self, name: &str, mode: Mode) -> bool {
        let mut request = Request::new(lock_name(name), mode, self.probe_ttl());
        request.queues = false;
        let is_granted = matches!(self.claim(&request).await, ClaimOutcome::Granted(_));
        if is_granted {
            self.release(&request).await;
        }
        is_granted
    }

    pub(super) async fn assert_free(&self, name: &str, what: &str) {
        let limit = SystemClock.now() + SOON;
        while SystemClock.now() < limit {
            if self.try_once(name, Mode::Exclusive).await {
                return;
            }
            pause().await;
        }
        panic!("{what}: expected {name:?} to be free, still held after {SOON:?}");
    }

    fn probe_ttl(&self) -> Duration {
        let range = &self.0.capabilities().ttl;
        Duration::from_secs(60).clamp(*range.start(), *range.end())
    }
}

/// Returns a valid name.
pub(crate) fn lock_name(name: &str) -> LockName {
    LockName::new(name).unwrap_or_else(|error| panic!("invalid name {name:?} in a case: {error}"))
}

/// Runs `future` on the I/O thread of the stores called `backend`; its error fails the case.
pub(super) async fn on_io<T: Send + 'static>(
    backend: &'static str,
    future: impl Future<Output = Result<T>> + Send + 'static,
) -> T {
    let reply = io::run(backend, future).await.and_then(|reply| reply);
    reply.unwrap_or_else(|error| panic!("the store failed: {}", error.chain()))
}
