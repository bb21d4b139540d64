//! A record of the operations on a store.

use std::{fmt, future::Future, sync::Arc};

use async_trait::async_trait;
use polylock_core::{
    Backend, Capabilities, ClaimOutcome, Clock, KeepAlive, LockName, Operation, Release, Request, RequestId,
    Result, SystemClock, Wake, clock::Moment,
};
use tokio::sync::watch;

/// Records every operation that core calls, with the times of its start and its end.
#[derive(Clone)]
pub struct Recording {
    inner: Arc<dyn Backend>,
    calls: watch::Sender<Vec<Call>>,
}

/// One recorded operation.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Call {
    /// The kind of operation.
    pub operation: Operation,
    /// The request of the operation.
    pub request: Request,
    /// The time at which it was sent.
    pub sent: Moment,
    /// The time at which it returned, if it did, and true if it returned no error.
    pub answered: Option<(Moment, bool)>,
    /// True if it returned that the request is queued.
    pub queued: bool,
}

impl Recording {
    /// Creates an empty recording.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        Self { inner, calls: watch::Sender::new(Vec::new()) }
    }

    /// Returns all operations so far, in the order of sending.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.calls.borrow().clone()
    }

    /// Returns the calls of `operation` so far.
    #[must_use]
    pub fn of(&self, operation: Operation) -> Vec<Call> {
        self.calls.borrow().iter().filter(|call| call.operation == operation).cloned().collect()
    }

    /// Returns the ids of the requests so far, in order of their first operation.
    #[must_use]
    pub fn ids(&self) -> Vec<RequestId> {
        let mut ids = Vec::new();
        for call in self.calls.borrow().iter() {
            if !ids.contains(&call.request.id) {
                ids.push(call.request.id);
            }
        }
        ids
    }

    /// Waits until `condition` returns true for the operations so far.
    pub async fn until(&self, condition: impl Fn(&[Call]) -> bool + Send + Sync) {
        // The sender is a field of `self`, so the channel can't be closed.
        drop(self.calls.subscribe().wait_for(|calls| condition(calls)).await);
    }

    /// Waits until `count` requests for `name` have been queued.
    pub async fn queued(&self, name: &LockName, count: usize) {
        self.until(|calls| {
            let mut ids: Vec<_> =
                calls.iter().filter(|c| c.queued && c.request.name == *name).map(|c| c.request.id).collect();
            ids.sort_unstable();
            ids.dedup();
            ids.len() >= count
        })
        .await;
    }

    async fn record<T>(
        &self,
        operation: Operation,
        request: &Request,
        queued: impl Fn(&T) -> bool + Send,
        future: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let call = self.sent(operation, request);
        let outcome = future.await;
        self.answered(call, outcome.is_ok(), outcome.as_ref().is_ok_and(queued));
        outcome
    }

    /// Records a call, and returns its number.
    fn sent(&self, operation: Operation, request: &Request) -> usize {
        let call = Call {
            operation,
            request: request.clone(),
            sent: SystemClock.now(),
            answered: None,
            queued: false,
        };
        let mut at = 0;
        self.calls.send_modify(|calls| {
            at = calls.len();
            calls.push(call);
        });
        at
    }

    fn answered(&self, call: usize, is_ok: bool, queued: bool) {
        self.calls.send_modify(|calls| {
            calls[call].answered = Some((SystemClock.now(), is_ok));
            calls[call].queued = queued;
        });
    }
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Backend for Recording {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn here(&self) -> Option<Arc<dyn Backend>> {
        self.inner.here().map(|inner| Arc::new(Self { inner, ..self.clone() }) as _)
    }

    async fn claim(&self, request: &Request) -> Result<ClaimOutcome> {
        let queued = |outcome: &ClaimOutcome| matches!(outcome, ClaimOutcome::Queued(_)) && request.queues;
        self.record(Operation::Claim, request, queued, self.inner.claim(request)).await
    }

    async fn wait(&self, request: &Request) -> Result<Wake> {
        self.record(Operation::Wait, request, |_| false, self.inner.wait(request)).await
    }

    async fn keep_alive(&self, requests: &[Arc<Request>]) -> Result<Vec<KeepAlive>> {
        // It records one call for each request, so that tests can count the renewals of a request.
        let calls: Vec<usize> = requests.iter().map(|request| self.sent(Operation::Renew, request)).collect();
        let outcomes = self.inner.keep_alive(requests).await;
        calls.into_iter().for_each(|call| self.answered(call, outcomes.is_ok(), false));
        outcomes
    }

    async fn release(&self, request: &Request) -> Result<Release> {
        self.record(Operation::Release, request, |_| false, self.inner.release(request)).await
    }

    fn drop_waiter(&self, request: &Request) {
        self.inner.drop_waiter(request);
    }

    fn request_records(&self) -> Option<usize> {
        self.inner.request_records()
    }
}
